"""Things in order: in, things with names, each with the names of those that it comes after and before; out, their
places, sorted.

Sorting is stable: what ``after`` and ``before`` leave open stays as given, so that adding an unrelated thing moves
nothing. Passes and the functions of a hook are sorted here.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Protocol

OPTIONAL = "?"
"""At the end of a name in `after` or `before`: it need not be there, as its plugin may be absent."""


class Ordered(Protocol):
    """Something that has a place among others. after, before: names without a "?" at their end."""

    @property
    def name(self) -> str:
        """Returns its name, which no other thing has."""

    @property
    def after(self) -> Sequence[str]:
        """Returns the names of what comes before it."""

    @property
    def before(self) -> Sequence[str]:
        """Returns the names of what comes after it."""


class Circular(Exception):
    """Things wait for each other. places: of one cycle."""

    def __init__(self, places: Sequence[int]) -> None:
        super().__init__("things wait for each other")
        self.places = tuple(places)


def in_order(items: Sequence[Ordered]) -> list[int]:
    """Returns the places of all things in their order: Kahn's algorithm, with a heap of places, which makes it stable.
    Names that nothing has are passed over. Raises Circular."""
    index = {item.name: i for i, item in enumerate(items)}
    followers: list[set[int]] = [set() for _ in items]
    for i, item in enumerate(items):
        for name in item.after:
            if name in index:
                followers[index[name]].add(i)
        for name in item.before:
            if name in index:
                followers[i].add(index[name])
    waiting = [0] * len(items)
    for nexts in followers:
        for i in nexts:
            waiting[i] += 1

    ready = [i for i, count in enumerate(waiting) if count == 0]
    heapq.heapify(ready)
    ordered: list[int] = []
    while ready:
        i = heapq.heappop(ready)
        ordered.append(i)
        for j in followers[i]:
            waiting[j] -= 1
            if waiting[j] == 0:
                heapq.heappush(ready, j)
    if len(ordered) < len(items):
        raise Circular(_find_cycle(followers, {i for i, count in enumerate(waiting) if count > 0}))
    return ordered


def _find_cycle(followers: Sequence[set[int]], stuck: set[int]) -> list[int]:
    """Returns one cycle among what could not be ordered, in order.

    Each of them waits for another of them, so walking backwards must come around.
    """
    leaders: dict[int, int] = {}
    for i in sorted(stuck):
        for j in followers[i] & stuck:
            leaders.setdefault(j, i)
    path: list[int] = []
    at = min(leaders)
    while at not in path:
        path.append(at)
        at = leaders[at]
    cycle = path[path.index(at) :]
    cycle.reverse()
    start = cycle.index(min(cycle))
    return cycle[start:] + cycle[:start]


__all__ = ["OPTIONAL", "Circular", "Ordered", "in_order"]
