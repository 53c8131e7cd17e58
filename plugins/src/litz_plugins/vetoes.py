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

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ALL = "*"
YES, NO = "yes", "no"
"""The ways of a decision that is taken or not."""
VETOED = "vetoed (option veto)"
"""The reason on record for a decision that was left out."""


def key_of(graph: str, maker: str, subject: str = "") -> str:
    """Returns the key of a decision. graph '': the decision in all graphs. subject '': the maker's only decision."""
    text = f"{maker}/{subject}" if subject else maker
    return f"{graph}:{text}" if graph else text


def parts_of(key: str) -> tuple[str, str, str]:
    """Returns the (graph, maker, subject) of a key; '' for parts that the key lacks."""
    graph, colon, rest = key.partition(":")
    maker, _, subject = (rest if colon else key).partition("/")
    return (graph if colon else ""), maker, subject


@dataclass(frozen=True)
class Vetoes:
    """The decisions that must not be taken: keys, with or without graph and subject ("fuse" is all fusion in all
    graphs), or "*" for all decisions."""

    keys: frozenset[str] = frozenset()

    def forbid(self, graph: str, maker: str, subject: str = "") -> bool:
        """Returns whether a decision of `maker` in `graph` is vetoed. subject: '' for the maker as a whole."""
        if not self.keys:
            return False
        exact = {ALL, maker, key_of(graph, maker)}
        if subject:
            exact |= {key_of("", maker, subject), key_of(graph, maker, subject)}
        return not self.keys.isdisjoint(exact)

    @property
    def makers(self) -> frozenset[str]:
        """Returns the makers that the keys name."""
        return frozenset(parts_of(key)[1] for key in self.keys if key != ALL)


def read_vetoes(given: Iterable[str]) -> Vetoes:
    """Returns the vetoes that an option names: keys, and @FILE for a file with one key a line. Errors: OSError where a
    file cannot be read."""
    keys: list[str] = []
    for item in given:
        keys += (
            Path(os.path.expanduser(item[1:])).read_text(encoding="utf-8").splitlines()
            if item.startswith("@")
            else [item]
        )
    return Vetoes(frozenset(filter(None, (key.strip() for key in keys))))


@dataclass(frozen=True)
class Preferences:
    """The preferred ways of some decisions, by key with or without graph. why: the reason that reports show."""

    ways: Mapping[str, str] = field(default_factory=dict, hash=False)
    why: str = "preferred (option prefer)"

    def way(self, key: str) -> str | None:
        """Returns the preferred way of a decision, by its key; None leaves the decision to the estimates."""
        if not self.ways:
            return None
        return self.ways.get(key, self.ways.get(key.partition(":")[2]))

    @property
    def makers(self) -> frozenset[str]:
        """Returns the makers that the keys name."""
        return frozenset(parts_of(key)[1] for key in self.ways)


def read_preferences(given: Iterable[str]) -> Preferences:
    """Returns the preferences that an option names, as KEY=WAY. Errors: ValueError with the text that is wrong."""
    ways: dict[str, str] = {}
    for item in given:
        key, equals, way = item.strip().rpartition("=")
        if not (key and equals and way):
            raise ValueError(f"{item!r} is no KEY=WAY")
        ways[key] = way
    return Preferences(ways)


@dataclass(frozen=True)
class Weighed:
    """A decision that was weighed. ways: each with its expected time in µs, None where no estimate is known. chosen:
    the way that was taken. without: the way that a veto leaves."""

    key: str
    ways: tuple[tuple[str, float | None], ...]
    chosen: str
    without: str = NO

    def us(self, way: str) -> float | None:
        """Returns the expected time of a way in µs, None where no estimate is known."""
        return dict(self.ways).get(way)

    def gain(self, way: str) -> float | None:
        """Returns the µs that another way would save by the estimates, below 0 for most ways; None where an estimate is
        missing."""
        now, other = self.us(self.chosen), self.us(way)
        return None if now is None or other is None else now - other

    @property
    def margin(self) -> float | None:
        """Returns how far the chosen way is ahead of the next best, as a share of the chosen way's time: 0 is a tie.
        Below 0 where something else than the estimates decided, None where only one estimate is known."""
        gains = [gain for way, _ in self.ways if way != self.chosen and (gain := self.gain(way)) is not None]
        now = self.us(self.chosen)
        return -max(gains) / now if gains and now else None


@dataclass
class Gate:
    """Answers, before each decision of one graph's compile, whether it may be taken, and remembers the answers by key.

    taken, left_out: keys in the order of the first questions about them. weighed: the decisions that have estimates, as
    they were last weighed.
    """

    graph: str = ""
    vetoes: Vetoes = Vetoes()
    taken: dict[str, None] = field(default_factory=dict)
    left_out: dict[str, None] = field(default_factory=dict)
    preferences: Preferences = Preferences()
    weighed: dict[str, Weighed] = field(default_factory=dict)

    def forbids(self, maker: str, subject: str = "") -> bool:
        """Returns whether the decision is vetoed. A decision that is not vetoed need not be taken."""
        forbidden = self.vetoes.forbid(self.graph, maker, subject)
        if forbidden:
            self.left_out[key_of(self.graph, maker, subject)] = None
        return forbidden

    def refuses(self, maker: str, subject: str = "") -> bool:
        """Returns whether the decision is vetoed or NO is its way, for passes that must know before they can weigh."""
        return self.forbids(maker, subject) or self.preferences.way(key_of(self.graph, maker, subject)) == NO

    def take(self, maker: str, subject: str = "") -> bool:
        """Returns whether the caller may take a decision, and remembers the decision as taken if so."""
        if self.forbids(maker, subject):
            return False
        self.taken[key_of(self.graph, maker, subject)] = None
        return True

    def choose(
        self, maker: str, subject: str, ways: Sequence[tuple[str, float | None]], best: str, without: str
    ) -> tuple[str, str]:
        """Returns the way of a decision and why: `without` where the decision is vetoed, the preferred way if there is
        one, else `best`, the way that the estimates favour. The reason is '' for the estimates.

        ways: all possible ways, each with its expected time in µs, None where no estimate is known. without: the way
        that is taken if nothing is decided, one of `ways`.
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
        """Returns whether a decision is taken, and why; the reason is '' for the estimates. pays: do the estimates
        favour it?

        without_us, with_us: the expected time (µs) of everything that the decision concerns, if it is not taken and if
        it is.
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
