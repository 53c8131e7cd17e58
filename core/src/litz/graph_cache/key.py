"""The key of a graph in the graph cache. In: what a compile depends on, part by part. Out: one digest, and parts that
can be compared with those of another key.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from litz.cache.disk import digest


@dataclass(frozen=True)
class Part:
    """One thing that a compile depends on. name: "graph", "option cpp.march". text: its content; equal texts mean equal
    results. setter: who set it, for people."""

    name: str
    text: str
    setter: str


@dataclass(frozen=True)
class Key:
    """All parts that a compile of a graph depends on, in order, and their digest."""

    parts: tuple[Part, ...]

    @cached_property
    def digest(self) -> str:
        """Returns the digest of all parts, in their order: 40 hex digits."""
        return digest(*(text for part in self.parts for text in (part.name, part.text)))

    def to_json(self) -> str:
        """Returns the parts as a JSON list of [name, text, setter]."""
        return json.dumps([[part.name, part.text, part.setter] for part in self.parts])

    @staticmethod
    def from_json(text: str | bytes) -> Key:
        """Returns the key that `to_json` wrote. Errors: ValueError for text that is no key."""
        data: Any = json.loads(text)
        if not isinstance(data, list) or not all(isinstance(row, list) and len(row) == 3 for row in data):
            raise ValueError("this is no key of the graph cache")
        return Key(tuple(Part(*map(str, row)) for row in data))

    def differences(self, other: Key) -> tuple[Difference, ...]:
        """Returns the parts that differ, in this key's order, then the parts that only the other key has."""
        return tuple(_differences(_by_name(self.parts), _by_name(other.parts)))


@dataclass(frozen=True)
class Difference:
    """A part in which two keys differ. mine: of the key that asks. theirs: of the other key. Either is None where that
    key has no such part."""

    name: str
    mine: Part | None
    theirs: Part | None

    @property
    def setter(self) -> str:
        """Returns what sets the part (an option, an environment variable ...), '' if unknown."""
        part = self.mine or self.theirs
        return "" if part is None else part.setter

    @property
    def lines(self) -> tuple[str, str]:
        """Returns the first lines that differ: of the other key, and of the key that asks; '' where a text has
        ended."""
        mine, theirs = ([] if part is None else part.text.splitlines() for part in (self.mine, self.theirs))
        for number in range(max(len(mine), len(theirs))):
            if mine[number : number + 1] != theirs[number : number + 1]:
                return "".join(theirs[number : number + 1]), "".join(mine[number : number + 1])
        return "", ""


def _by_name(parts: Sequence[Part]) -> Mapping[str, Part]:
    return {part.name: part for part in parts}


def _differences(mine: Mapping[str, Part], theirs: Mapping[str, Part]) -> Iterator[Difference]:
    for name in dict.fromkeys((*mine, *theirs)):
        own, other = mine.get(name), theirs.get(name)
        if own is None or other is None or own.text != other.text:
            yield Difference(name, own, other)
