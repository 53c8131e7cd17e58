"""Decisions by their keys: which of them a compile must not take, and which it takes in a way that is named.

A key is ``GRAPH:MAKER/SUBJECT``: the graph's name, who decides (the name of a pass, or "fuse", "choose", "lower" ...),
and what about. A decision that is all a maker decides in a graph has no subject. Keys are the same in every run of a
program that is compiled with the same options, so that what one run put on record another can leave out: the option
`veto` takes them, and `litz bisect` finds the one that does harm.

A decision that is weighed has ways, each with the microseconds that it is expected to take; the Gate remembers them
(`Weighed`). The option `prefer` names the way of a decision, KEY=WAY, whatever the estimates say: so what was measured
can correct what was estimated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ALL = "*"
YES, NO = "yes", "no"
"""The ways of a decision that is taken or not."""
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


@dataclass(frozen=True)
class Preferences:
    """The ways of some decisions: key, with or without graph -> way. why: who says so, for the record."""

    ways: Mapping[str, str] = field(default_factory=dict, hash=False)
    why: str = "preferred (option prefer)"

    def way(self, key: str) -> str | None:
        """What a decision is to be, by its key; None for what the estimates say."""
        if not self.ways:
            return None
        return self.ways.get(key, self.ways.get(key.partition(":")[2]))

    @property
    def makers(self) -> frozenset[str]:
        """Who is named in them."""
        return frozenset(parts_of(key)[1] for key in self.ways)


def read_preferences(given: Iterable[str]) -> Preferences:
    """The preferences that an option names, as KEY=WAY. Errors: ValueError, with what is wrong."""
    ways: dict[str, str] = {}
    for item in given:
        key, equals, way = item.strip().rpartition("=")
        if not (key and equals and way):
            raise ValueError(f"{item!r} is no KEY=WAY")
        ways[key] = way
    return Preferences(ways)


@dataclass(frozen=True)
class Weighed:
    """A decision as it was weighed. ways: each with the µs that what it is about is expected to take then, None where
    nobody knows. chosen: the one taken. without: the one that a veto leaves."""

    key: str
    ways: tuple[tuple[str, float | None], ...]
    chosen: str
    without: str = NO

    def us(self, way: str) -> float | None:
        """What a way is expected to take."""
        return dict(self.ways).get(way)

    def gain(self, way: str) -> float | None:
        """The µs that another way would save by the estimates, so less than 0 for most; None where nobody knows."""
        now, other = self.us(self.chosen), self.us(way)
        return None if now is None or other is None else now - other

    @property
    def margin(self) -> float | None:
        """By how much the chosen way is ahead of the next, as a share of its time: 0 is a tie. None where only one is
        known, below 0 where something else than the estimates decided."""
        gains = [gain for way, _ in self.ways if way != self.chosen and (gain := self.gain(way)) is not None]
        now = self.us(self.chosen)
        return -max(gains) / now if gains and now else None


@dataclass
class Gate:
    """Asked before each decision of one graph's compile; remembers what was taken and what was not, by key.

    taken, left_out: keys in the order in which they were first asked about. weighed: the decisions that have estimates,
    as they were last weighed.
    """

    graph: str = ""
    vetoes: Vetoes = Vetoes()
    taken: dict[str, None] = field(default_factory=dict)
    left_out: dict[str, None] = field(default_factory=dict)
    preferences: Preferences = Preferences()
    weighed: dict[str, Weighed] = field(default_factory=dict)

    def forbids(self, maker: str, subject: str = "") -> bool:
        """Must this not be decided? Says nothing of whether it is."""
        forbidden = self.vetoes.forbid(self.graph, maker, subject)
        if forbidden:
            self.left_out[key_of(self.graph, maker, subject)] = None
        return forbidden

    def refuses(self, maker: str, subject: str = "") -> bool:
        """As `forbids`, or is NO preferred? For who has to know long before it is weighed."""
        return self.forbids(maker, subject) or self.preferences.way(key_of(self.graph, maker, subject)) == NO

    def take(self, maker: str, subject: str = "") -> bool:
        """May this be decided, which is about to be?"""
        if self.forbids(maker, subject):
            return False
        self.taken[key_of(self.graph, maker, subject)] = None
        return True

    def choose(
        self, maker: str, subject: str, ways: Sequence[tuple[str, float | None]], best: str, without: str
    ) -> tuple[str, str]:
        """The way of a decision: `without` where it is vetoed, the preferred one, else `best`, which is what the
        estimates say. And why, '' for the estimates.

        ways: all that are possible here, each with what it is expected to take (µs). without: of them, what there is if
        nothing is decided.
        """
        key = key_of(self.graph, maker, subject)
        wanted = self.preferences.way(key)
        way, why = best, ""
        if wanted in dict(ways):
            way, why = str(wanted), "" if wanted == best else self.preferences.why
        if way != without and not self.take(maker, subject):
            way, why = without, VETOED
        self.weighed[key] = Weighed(key, tuple(ways), way, without)
        return way, why

    def weigh(
        self, maker: str, subject: str, pays: bool, without_us: float | None, with_us: float | None
    ) -> tuple[bool, str]:
        """Is this decided? pays: what the estimates say. And why, '' for the estimates.

        without_us, with_us: what all that it is about is expected to take if it is not and if it is decided.
        """
        ways = ((NO, without_us), (YES, with_us))
        way, why = self.choose(maker, subject, ways, YES if pays else NO, NO)
        return way == YES, why


__all__ = [
    "ALL",
    "NO",
    "VETOED",
    "YES",
    "Gate",
    "Preferences",
    "Vetoes",
    "Weighed",
    "key_of",
    "parts_of",
    "read_preferences",
    "read_vetoes",
]
