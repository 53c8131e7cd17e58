"""What passes changed, counted. In: the nouns before and after a pass. Out: an `Effect`.

Nodes are a Graph's nodes, a Program's operations and a Schedule's steps. Bytes are what all operations together read
and write.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from litz.cost import count_work
from litz.ir import Loop, Program
from litz.schedule.schedule import Schedule
from litz_plugins.nouns import Noun


@dataclass(frozen=True)
class Effect:
    """The effect of a pass: how many nodes, loops and bytes it adds; less than 0 for fewer. loops: 0
    for a graph. bytes: None for a graph."""

    nodes: int = 0
    loops: int = 0
    bytes: float | None = None

    def __add__(self, other: Effect) -> Effect:
        known = [count for count in (self.bytes, other.bytes) if count is not None]
        return Effect(self.nodes + other.nodes, self.loops + other.loops, sum(known) if known else None)


def effect(before: Noun, after: Noun) -> Effect:
    """Returns the effect that leads from one noun to another of the same kind."""
    if not isinstance(after, (Program, Schedule)):
        return Effect(len(after.nodes) - len(before.nodes))
    old, new = _parts(before), _parts(after)
    known = {id(part) for part in old} & {id(part) for part in new}
    count = _bytes(new, after, known) - _bytes(old, before, known)
    return Effect(len(new) - len(old), _loops(new) - _loops(old), count)


def _parts(noun: Any) -> list[Any]:
    return list(noun.operations if isinstance(noun, Program) else noun.steps)


def _loops(parts: Iterable[Any]) -> int:
    return sum(isinstance(part, Loop) or len(getattr(part, "loops", ())) for part in parts)


def _bytes(parts: Iterable[Any], noun: Any, known: set[int]) -> float:
    """Returns the bytes that the parts that are in one noun alone read and write."""
    program = noun if isinstance(noun, Program) else noun.program
    return sum((count_work(part, program).total_bytes for part in parts if id(part) not in known), 0.0)


__all__ = ["Effect", "effect"]
