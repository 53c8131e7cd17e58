"""Kernels of two backends beside each other, so that each loss names its kernels.

    python -m benchmarks.beside rows.json                                      what side_by_side wrote, every row
    python -m benchmarks.beside rows.json --only resnet50 --tasks inference --peers inductor litz --top 15

For each row three tables. By kind: microseconds and launches of products, convolutions, pointwise kernels and so on. By
place: a place is a contraction (product, convolution, attention) and what runs after it up to the next. Both backends
have the same contractions in much the same order, so the n-th place of one is aligned with that of the other (by the
longest common run of kinds, where one has more); between them each fuses as it likes, and a place's sum compares that.
Places that look alike in both (the layers of a model) are one, with their number. Those that cost `theirs` less come
first, with the kernels of both. Kernels that a backend moves to another place make a loss in one and a gain in the
other: the table by kind has the balance.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import groupby
from pathlib import Path

from benchmarks.device_time import DeviceKernel
from benchmarks.kernel_kinds import ANCHORS, KINDS, kind_of, short
from benchmarks.own_kernels import Own, described, matched

Trace = Sequence[DeviceKernel]


@dataclass(frozen=True)
class Place:
    """What runs from one contraction to the next in two backends. anchor: the contraction's kind."""

    anchor: str
    theirs: tuple[DeviceKernel, ...]
    ours: tuple[DeviceKernel, ...]

    @property
    def lost_us(self) -> float:
        """Microseconds that ours takes longer."""
        return _sum(self.ours) - _sum(self.theirs)

    @property
    def looks(self) -> tuple[object, ...]:
        """What places of equal layers have in common."""
        return self.anchor, *(tuple(_unnumbered(k.name) for k in side) for side in (self.theirs, self.ours))


@dataclass(frozen=True)
class Kind:
    """All kernels of a kind: microseconds and launches of each backend."""

    name: str
    theirs_us: float
    ours_us: float
    theirs_count: int
    ours_count: int


def by_kind(theirs: Trace, ours: Trace) -> list[Kind]:
    """The kinds that there are, what ours loses most in first."""
    found = []
    for kind in KINDS:
        one, other = ([k for k in trace if kind_of(k.name) == kind] for trace in (theirs, ours))
        if one or other:
            found.append(Kind(kind, _sum(one), _sum(other), len(one), len(other)))
    return sorted(found, key=lambda kind: kind.theirs_us - kind.ours_us)


def by_place(theirs: Trace, ours: Trace) -> list[Place]:
    """The places in order; together they have every kernel once."""
    one, other = _segments(theirs), _segments(ours)
    matcher = SequenceMatcher(None, [kind for kind, _ in one], [kind for kind, _ in other], autojunk=False)
    places: list[Place] = []
    for tag, begin, end, start, stop in matcher.get_opcodes():
        if tag == "equal":
            pairs = zip(one[begin:end], other[start:stop], strict=True)
            places += [Place(kind, tuple(a), tuple(b)) for (kind, a), (_, b) in pairs]
        else:
            kinds = dict.fromkeys(kind for kind, _ in (*one[begin:end], *other[start:stop]))
            places.append(Place("/".join(kinds), _joined(one[begin:end]), _joined(other[start:stop])))
    return places


def alike(places: Sequence[Place]) -> list[tuple[Place, ...]]:
    """Places that look alike together; what ours loses most in first."""
    ordered = sorted(places, key=lambda place: repr(place.looks))
    groups = [tuple(found) for _, found in groupby(ordered, key=lambda place: place.looks)]
    return sorted(groups, key=lambda group: -sum(place.lost_us for place in group))


def _unnumbered(name: str) -> str:
    """Inductor numbers its kernels."""
    return re.sub(r"_\d+$", "", name) if name.startswith("triton_") else name


def _segments(trace: Trace) -> list[tuple[str, list[DeviceKernel]]]:
    """(kind, kernels): each contraction with what follows it; what comes before the first is a "start"."""
    segments: list[tuple[str, list[DeviceKernel]]] = [("start", [])]
    for kernel in trace:
        kind = kind_of(kernel.name)
        if kind in ANCHORS:
            segments.append((kind, []))
        segments[-1][1].append(kernel)
    return segments


def _joined(segments: Sequence[tuple[str, Sequence[DeviceKernel]]]) -> tuple[DeviceKernel, ...]:
    return tuple(kernel for _, kernels in segments for kernel in kernels)


def _sum(kernels: Sequence[DeviceKernel]) -> float:
    return sum(kernel.us for kernel in kernels)


def text(theirs: Trace, ours: Trace, names: tuple[str, str], top: int, width: int = 100) -> list[str]:
    """Both tables, as lines of so many columns."""
    lines = [f"{'by kind':14}{names[0] + ' us':>14}{names[1] + ' us':>12}{'lost us':>10}{'launches':>12}"]
    for kind in by_kind(theirs, ours):
        lost = kind.ours_us - kind.theirs_us
        counts = f"{kind.theirs_count} {kind.ours_count}"
        lines.append(f"{kind.name:14}{kind.theirs_us:14.1f}{kind.ours_us:12.1f}{lost:10.1f}{counts:>12}")
    lines.append(f"{'all':14}{_sum(theirs):14.1f}{_sum(ours):12.1f}{_sum(ours) - _sum(theirs):10.1f}")
    groups = alike(by_place(theirs, ours))
    lines.append("by place")
    for group in groups[:top]:
        lost = sum(place.lost_us for place in group)
        if lost <= 0:
            break
        one, other = (sum(_sum(getattr(place, side)) for place in group) for side in ("theirs", "ours"))
        lines.append(
            f"lost {lost:.1f} us in {len(group)} x after a {group[0].anchor}: "
            f"{names[0]} {one:.1f}, {names[1]} {other:.1f}"
        )
        for name, side in zip(names, ("theirs", "ours"), strict=True):
            lines += _kernels(name, [getattr(place, side) for place in group], width)
    gains = sum(place.lost_us for group in groups for place in group if sum(p.lost_us for p in group) <= 0)
    lines.append(f"gained in all other places: {-gains:.1f} us")
    return lines


def _kernels(name: str, columns: Sequence[Sequence[DeviceKernel]], width: int, most: int = 8) -> list[str]:
    """A line for each name among the kernels of places that look alike: microseconds and launches of all of them."""
    spent: dict[str, list[float]] = {}
    for kernel in _joined([("", column) for column in columns]):
        spent.setdefault(kernel.name, []).append(kernel.us)
    rows = sorted(spent.items(), key=lambda row: -sum(row[1]))
    lines = [f"    {name:9}{sum(us):9.1f}{len(us):5}x  {short(kernel, width - 31)}" for kernel, us in rows[:most]]
    if rows[most:]:
        rest = [us for _, each in rows[most:] for us in each]
        lines.append(f"    {name:9}{sum(rest):9.1f}{len(rest):5}x  others")
    return lines or [f"    {name:9}{0.0:9.1f}{0:5}x"]


def slow(trace: Trace, own: Sequence[Own], speed: float) -> list[tuple[float, float, int, Own]]:
    """litz's kernels that take longer than a copy of what they move: (microseconds lost, share of the copy's speed,
    launches, kernel); those of one name and purpose together, the most lost first. speed: bytes a second."""
    found: dict[tuple[str, str], list[tuple[DeviceKernel, Own]]] = {}
    for kernel, what in matched(trace, own):
        found.setdefault((what.symbol, what.what), []).append((kernel, what))
    rows = []
    for group in found.values():
        us, ideal = sum(kernel.us for kernel, _ in group), sum(what.bytes for _, what in group) / speed * 1e6
        rows.append((us - ideal, ideal / us, len(group), group[0][1]))
    return sorted((row for row in rows if row[0] > 0), key=lambda row: -row[0])


def slow_text(trace: Trace, own: Sequence[Own], speed: float, top: int, width: int = 100) -> list[str]:
    """The table of `slow`."""
    rows = slow(trace, own, speed)
    if not rows:
        return []
    lines = [f"litz's own kernels beyond a copy of what they move{'lost us':>14}{'share':>8}{'launches':>10}"]
    for lost, share, count, kernel in rows[:top]:
        lines.append(f"    {kernel.symbol[:58]:60}{lost:9.1f}{share:8.2f}{count:9}x")
        lines.append(f"        {kernel.what}"[:width])
    lines.append(f"    {'all':60}{sum(row[0] for row in rows):9.1f}")
    return lines


def main(argv: Sequence[str] | None = None) -> None:
    """Print the tables of the rows of a file."""
    from benchmarks.rows import read_facts, read_rows

    parser = argparse.ArgumentParser(prog="python -m benchmarks.beside", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path, help="what side_by_side wrote to --out")
    parser.add_argument("--only", nargs="+", metavar="MODEL")
    parser.add_argument("--tasks", nargs="+")
    parser.add_argument("--modes", nargs="+")
    parser.add_argument("--peers", nargs=2, default=["inductor", "litz"], help="theirs and ours")
    parser.add_argument("--top", type=int, default=8, help="places to show, of each row")
    parser.add_argument("--below", type=float, default=float("inf"), help="rows with theirs / ours below this")
    args = parser.parse_args(argv)
    for row in read_rows(args.file):
        asked = ((args.only, row.model), (args.tasks, row.task), (args.modes, row.mode))
        if any(wanted and value not in wanted for wanted, value in asked):
            continue
        theirs, ours = (row.peers[peer].trace if peer in row.peers else [] for peer in args.peers)
        if not theirs or not ours or _sum(theirs) >= args.below * _sum(ours):
            continue
        ratio = _sum(theirs) / _sum(ours)
        print(f"\n{row.model}, {row.task}, {row.mode}: {args.peers[0]} / {args.peers[1]} {ratio:.2f}")
        own = row.peers[args.peers[1]].own
        print("\n".join(text(theirs, described(ours, own), (args.peers[0], args.peers[1]), args.top)))
        print("\n".join(slow_text(ours, own, read_facts(args.file)["copy_bytes_per_second"], args.top)))


if __name__ == "__main__":
    main()
