"""Stretches that repeat, such as the layers of a model. In: a sequence. Out: where it repeats, and how often."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from litz.report.step import Step

from ..groups import stems

LONGEST = 400
"""Steps of a stretch, at most: finding stretches takes time in proportion to it."""
LEAST = 3
"""Steps that a repeat has to spare a reader."""
_NUMBERED = re.compile(r"^((?:[A-Za-z_]\w*\.)*)(\d+)(?:\.|$)")


@dataclass(frozen=True)
class Repeat:
    """`count` equal stretches of `period` items, one after the other from `start` on."""

    start: int
    period: int
    count: int

    @property
    def end(self) -> int:
        """Returns the position behind the last repeated item."""
        return self.start + self.period * self.count


def find_repeats(items: Sequence[Hashable]) -> list[Repeat]:
    """Returns the repeats that together spare most, in order; none overlaps another. Takes time in proportion to the
    number of items times the longest period."""
    numbers = {item: number for number, item in enumerate(dict.fromkeys(items))}
    ids = [numbers[item] for item in items]
    runs = [run for period in range(1, min(len(ids) // 2, LONGEST) + 1) for run in _runs(ids, period)]
    return sorted(_best(runs, 0, len(ids)), key=lambda repeat: repeat.start)


def _runs(ids: Sequence[int], period: int) -> Iterator[tuple[int, int, int]]:
    """(start, end, period) of the longest stretches that are equal to themselves `period` items on."""
    start = 0
    for at in range(len(ids) - period + 1):
        if at == len(ids) - period or ids[at] != ids[at + period]:
            if at - start >= period:
                yield start, at + period, period
            start = at + 1


def _best(runs: Sequence[tuple[int, int, int]], low: int, high: int) -> list[Repeat]:
    """The repeat that spares most between two places, then those before and after it."""
    best, spared = None, LEAST - 1
    inside = []
    for start, end, period in runs:
        start, end = max(start, low), min(end, high)
        count = (end - start) // period
        if count < 2:
            continue
        inside.append((start, end, period))
        if (count - 1) * period > spared:  # of equals the one found first, which has the shortest period
            best, spared = Repeat(start, period, count), (count - 1) * period
    if best is None:
        return []
    return [*_best(inside, low, best.start), best, *_best(inside, best.end, high)]


def step_repeats(steps: Sequence[Step]) -> list[Repeat]:
    """Returns the stretches of steps that do the same on data of the same shape."""
    return find_repeats([(step.kind, step.what, stems(step)) for step in steps])


def layers_of(steps: Sequence[Step]) -> str:
    """Returns "layers.0-47": the numbered modules that steps come from; '' for several kinds, or unknown ones."""
    found: dict[str, set[int]] = {}
    for step in steps:
        for module in step.modules:
            numbered = _NUMBERED.match(module)
            if numbered:
                found.setdefault(numbered[1], set()).add(int(numbered[2]))
    if len(found) != 1:
        return ""
    ((prefix, numbers),) = found.items()
    low, high = min(numbers), max(numbers)
    prefix = prefix or ("module " if low == high else "modules ")  # of a Sequential: a bare number says nothing
    return f"{prefix}{low}" if low == high else f"{prefix}{low}-{high}"
