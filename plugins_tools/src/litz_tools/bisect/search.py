"""The search. In: decisions, and a measure of the script without some of them. Out: the few without which it is better.

Groups of decisions are left out, first all of each maker (a pass, fusion, the choices of kernels), then halves of the
group that gained most, and so on down to one. Where no maker's decisions gain by themselves, groups that lost least
are halved as well: one bad fusion hides among good ones. Where only several makers' decisions together gain, those are
reduced by delta debugging (Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input", 2002).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

KEEPS = 0.5
"""A part of a group has the fault if it gains at least this share of what the group gained."""

Measure = Callable[[tuple[str, ...]], float]
"""Keys left out -> the value without them: smaller is better, infinite for what could not be measured."""


class OutOfRuns(Exception):
    """Raised when the runs that the user granted are used up."""


@dataclass(frozen=True)
class Group:
    """Decisions that are left out together. keys: of the decisions. maker: the pass or stage that took all of them, ''
    for several."""

    keys: tuple[str, ...]
    maker: str = ""

    @property
    def halves(self) -> tuple[Group, Group]:
        """Returns the first and the second half of the decisions as groups; the first has the extra one of an odd
        number."""
        middle = (len(self.keys) + 1) // 2
        return Group(self.keys[:middle], self.maker), Group(self.keys[middle:], self.maker)


@dataclass(frozen=True)
class Measured:
    """A group, and the value of a run that leaves the group out."""

    group: Group
    value: float


class Search:
    """base: the value with all decisions. least: by how much of it a value must be smaller to count. most: runs.
    hides: may a decision that does good hide one that does harm?"""

    def __init__(self, base: float, least: float, measure: Measure, most: int, hides: bool = True) -> None:
        self.base, self.least, self.measure, self.most, self.hides = base, least, measure, most, hides
        self.measured: list[Measured] = []
        self.exhausted = False

    def run(self, makers: Mapping[str, Sequence[str]]) -> Measured | None:
        """The smallest group that was found to be at fault, None if none was. makers: their decisions' keys, those
        first that by estimate gain least."""
        groups = [Group(tuple(keys), maker) for maker, keys in makers.items() if keys]
        try:
            alone: list[Measured] = []
            for group in groups:
                alone.append(self.look(group))
                if not self.hides and self.gains(alone[-1]):
                    return self.descend(alone[-1:])
            if not any(map(self.gains, alone)) and len(groups) > 1:
                everything = self.look(Group(tuple(key for group in groups for key in group.keys)))
                if self.gains(everything):
                    return self.reduced(groups, everything)
            if any(map(self.gains, alone)) or self.hides:
                return self.descend(alone)
            return None
        except OutOfRuns:
            self.exhausted = True
            return self.smallest()

    def look(self, group: Group) -> Measured:
        """Returns a group with its value, which is measured once. Errors: OutOfRuns."""
        for known in self.measured:
            if set(known.group.keys) == set(group.keys):
                return known
        if len(self.measured) >= self.most:
            raise OutOfRuns
        found = Measured(group, self.measure(group.keys))
        self.measured.append(found)
        return found

    def gains(self, found: Measured) -> bool:
        """Returns whether the measured value is smaller than the base by at least the part `least`."""
        return found.value < self.base * (1 - self.least)

    def gain(self, found: Measured) -> float:
        """Returns how much smaller the measured value is than the base, in the unit of the measure."""
        return self.base - found.value

    def descend(self, first: Sequence[Measured]) -> Measured | None:
        """Halves groups, the one that gained most (or lost least) first, until one decision is left; None if none
        gains."""
        queue = [(found.value, number, found) for number, found in enumerate(first)]
        heapq.heapify(queue)
        number = len(queue)
        while queue:
            _, _, found = heapq.heappop(queue)
            if len(found.group.keys) == 1:
                if self.gains(found):
                    return found
                continue
            halves = [self.look(half) for half in found.group.halves]
            if self.gains(found):
                best = min(halves, key=lambda half: half.value)
                if not self.gains(best) or self.gain(best) < KEEPS * self.gain(found):
                    return self.reduced([half.group for half in halves], found)
                queue = []  # the fault is in here, and nowhere else need be looked
                halves = [best]
            for half in halves:
                number += 1
                heapq.heappush(queue, (half.value, number, half))
        return self.smallest()

    def reduced(self, parts: Sequence[Group], whole: Measured) -> Measured:
        """Returns a group of the parts' decisions, as small as the search finds, that gains nearly as much as `whole`,
        the group of all of them. Source: the ddmin algorithm (delta debugging)."""
        best, chunks = whole, list(parts)
        while len(best.group.keys) > 1:
            found = self.first_that_keeps(chunks, whole)
            if found is not None:  # one is enough
                best, chunks = found, list(found.group.halves)
                continue
            rests = [_without(chunks, chunk) for chunk in chunks] if len(chunks) > 2 else []
            found = self.first_that_keeps(rests, whole)
            if found is not None:  # one is not needed
                best, chunks = found, [chunk for chunk in chunks if set(chunk.keys) <= set(found.group.keys)]
                continue
            finer = [half for chunk in chunks for half in (chunk.halves if len(chunk.keys) > 1 else (chunk,))]
            if len(finer) == len(chunks):
                break
            chunks = finer
        return best

    def first_that_keeps(self, groups: Sequence[Group], whole: Measured) -> Measured | None:
        """Measures groups in order and returns the first that gains nearly as much as `whole` (`keeps`), or None."""
        return next((found for found in map(self.look, groups) if self.keeps(found, whole)), None)

    def keeps(self, found: Measured, whole: Measured) -> bool:
        """Returns whether `found` gains, and at least the share `KEEPS` of what `whole` gains."""
        return self.gains(found) and self.gain(found) >= KEEPS * self.gain(whole)

    def smallest(self) -> Measured | None:
        """Returns the smallest of the groups that gain at least half of the largest gain; None if no group gains."""
        gaining = [found for found in self.measured if self.gains(found)]
        most = max(map(self.gain, gaining), default=0.0)
        worthy = [found for found in gaining if self.gain(found) >= KEEPS * most]
        return min(worthy, key=lambda found: (len(found.group.keys), found.value), default=None)


def _without(chunks: Sequence[Group], one: Group) -> Group:
    return Group(tuple(key for chunk in chunks if chunk is not one for key in chunk.keys))


__all__ = ["Group", "Measured", "Search"]
