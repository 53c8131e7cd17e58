"""Buckets that are taken apart and put together where communication is exposed. In: a candidate. Out: a better one, or
the same.

`buckets` merges by size alone, before any order is known. Here an order is known, and what is exposed in it. For the
collectives that are exposed longest, and for those that hold them up on their stream, each of these is replayed:

- *split*: the members of a bucket are started as two, where the bucket started or as early as each can;
- *join*: the bucket and its neighbour of the same kind are started as one, where either started;
- *hand over*: the first or the last members go to the neighbour.

The best one is made, and so on, until none helps or enough steps were replayed. Every rank does the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from .improve import LEAST, judged

if TYPE_CHECKING:
    from .planner import Candidate, Planner
    from .source import Source

REPLAYED = 9_000
"""Steps that may be put in order and replayed in all: about 1 s."""
WORST = 3
"""Exposed collectives that are looked at in a round."""

Groups = tuple[tuple[str, ...], ...]
"""What is started as one, each by its members, in the source's order."""


class Move(NamedTuple):
    """groups: in place of those that hold the same members. at: where each of them starts, by its first member."""

    groups: Groups
    at: Mapping[str, int]


def regroup(found: Candidate, planner: Planner) -> Candidate:
    """Returns the candidate with other buckets, of a lower score and within the memory limit, or the candidate."""
    left = REPLAYED
    seen: set[Groups] = set()
    while left > 0:
        best = found
        for move in _moves(found, planner):
            if left <= 0:
                break
            groups = _with(planner.groups_of(found), move.groups)
            key = (*groups, tuple(f"{name} at {place}" for name, place in move.at.items()))
            if key in seen:
                continue
            seen.add(key)
            left -= len(found.steps)
            made = planner.grouped(found, groups, move.at, best.score - LEAST)
            if made is not None and made.peak <= planner.limit:
                best = made
        if best is found:
            break
        found = best
    return found


def _with(groups: Groups, changed: Groups) -> Groups:
    """The groups with those of the same members replaced."""
    gone = {name for group in changed for name in group}
    return (*(group for group in groups if gone.isdisjoint(group)), *changed)


def _moves(found: Candidate, planner: Planner) -> Iterator[Move]:
    groups = {group[0]: group for group in planner.groups_of(found)}
    starts = [n for n, task in enumerate(found.tasks) if task.kind == "start"]
    streams: dict[str, list[int]] = {}
    for number in starts:
        streams.setdefault(found.tasks[number].stream, []).append(number)
    for place in _worst(found, streams):
        one = groups[found.tasks[place].name]
        for cut in _cuts(len(one)):
            yield Move((one[:cut], one[cut:]), {one[0]: place, one[cut]: place})
            yield Move((one[:cut], one[cut:]), {one[0]: -1, one[cut]: -1})
        kind = planner.kind_of(one[0], found.source)
        if kind is None:
            continue
        alike = [n for n in starts if planner.kind_of(found.tasks[n].name, found.source) == kind]
        here = alike.index(place)
        for first, second in ((here - 1, here), (here, here + 1)):
            if first < 0 or second >= len(alike):
                continue
            one, other = (groups[found.tasks[alike[n]].name] for n in (first, second))
            yield from _between(one, other, (alike[first], alike[second]), found.source, planner)


def _between(
    first: tuple[str, ...], second: tuple[str, ...], places: tuple[int, int], source: Source, planner: Planner
) -> Iterator[Move]:
    """The moves of two neighbours, in the order in which they start: join them, or hand some members over."""
    both = planner.in_source_order((*first, *second), source)
    for place in places:
        yield Move((both,), {both[0]: place})
    for cut in _cuts(len(first)):
        parts = first[:cut], planner.in_source_order((*first[cut:], *second), source)
        yield Move(parts, dict(zip((part[0] for part in parts), places, strict=True)))
    for cut in _cuts(len(second)):
        parts = planner.in_source_order((*first, *second[:cut]), source), second[cut:]
        yield Move(parts, dict(zip((part[0] for part in parts), places, strict=True)))


def _cuts(count: int) -> list[int]:
    """Places at which so many members are cut in two: at either end by one, two, four, and so on."""
    found = set[int]()
    step = 1
    while step < count:
        found |= {step, count - step}
        step *= 2
    return sorted(found)


def _worst(found: Candidate, streams: Mapping[str, Sequence[int]]) -> list[int]:
    """The places of the collectives that are exposed longest, each with the one that is ahead of it on its stream."""
    exposed: dict[str, float] = {}
    for replayed in judged(found.tasks):
        for name, us in replayed.exposed.items():
            exposed[name] = exposed.get(name, 0.0) + us
    worst = sorted((name for name in exposed if exposed[name] > LEAST), key=lambda name: -exposed[name])[:WORST]
    places = list[int]()
    for name in worst:
        for line in streams.values():
            names = [found.tasks[n].name for n in line]
            if name in names:
                here = names.index(name)
                places += [line[here], *line[max(0, here - 1) : here]]
    return list(dict.fromkeys(places))
