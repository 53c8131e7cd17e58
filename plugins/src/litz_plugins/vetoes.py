"""Decisions by their keys, and which of them a compile must not take.

A key is ``GRAPH:MAKER/SUBJECT``: the graph's name, who decides (the name of a pass, or "fuse", "choose", "lower" ...),
and what about. A decision that is all a maker decides in a graph has no subject. Keys are the same in every run of a
program that is compiled with the same options, so that what one run put on record another can leave out: the option
`veto` takes them, and `litz bisect` finds the one that does harm.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

ALL = "*"
VETOED = "vetoed (option veto)"
"""The reason on record for a decision that was left out."""


def key_of(graph: str, maker: str, subject: str = "") -> str:
    """The key of a decision; without a graph it is that decision in all graphs."""
    text = f"{maker}/{subject}" if subject else maker
    return f"{graph}:{text}" if graph else text


def parts_of(key: str) -> tuple[str, str, str]:
    """(graph, maker, subject) of a key; '' for what it does not say."""
    graph, colon, rest = key.partition(":")
    maker, _, subject = (rest if colon else key).partition("/")
    return (graph if colon else ""), maker, subject


@dataclass(frozen=True)
class Vetoes:
    """What must not be decided: keys, with or without graph and subject ("fuse" is all fusion, in all graphs), or "*"
    for all that there is."""

    keys: frozenset[str] = frozenset()

    def forbid(self, graph: str, maker: str, subject: str = "") -> bool:
        if not self.keys:
            return False
        exact = {ALL, maker, key_of(graph, maker)}
        if subject:
            exact |= {key_of("", maker, subject), key_of(graph, maker, subject)}
        return not self.keys.isdisjoint(exact)

    @property
    def makers(self) -> frozenset[str]:
        """Who is named in them."""
        return frozenset(parts_of(key)[1] for key in self.keys if key != ALL)


def read_vetoes(given: Iterable[str]) -> Vetoes:
    """The vetoes that an option names: keys, and @FILE for the keys in a file, one a line.

    Errors: OSError where a file cannot be read.
    """
    keys: list[str] = []
    for item in given:
        keys += Path(item[1:]).expanduser().read_text().splitlines() if item.startswith("@") else [item]
    return Vetoes(frozenset(filter(None, (key.strip() for key in keys))))


@dataclass
class Gate:
    """Asked before each decision of one graph's compile; remembers what was taken and what was not, by key.

    taken, left_out: keys in the order in which they were first asked about.
    """

    graph: str = ""
    vetoes: Vetoes = Vetoes()
    taken: dict[str, None] = field(default_factory=dict)
    left_out: dict[str, None] = field(default_factory=dict)

    def forbids(self, maker: str, subject: str = "") -> bool:
        """Must this not be decided? Says nothing of whether it is."""
        forbidden = self.vetoes.forbid(self.graph, maker, subject)
        if forbidden:
            self.left_out[key_of(self.graph, maker, subject)] = None
        return forbidden

    def take(self, maker: str, subject: str = "") -> bool:
        """May this be decided, which is about to be?"""
        if self.forbids(maker, subject):
            return False
        self.taken[key_of(self.graph, maker, subject)] = None
        return True


__all__ = ["ALL", "VETOED", "Gate", "Vetoes", "key_of", "parts_of", "read_vetoes"]
