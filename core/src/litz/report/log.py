"""What a compile notes down while it runs: decisions, and how long each stage takes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from litz_plugins import Decision, Gate, Pass, Watcher
from litz_plugins.nouns import Noun

if TYPE_CHECKING:
    from litz.schedule.implementations import ContractionRecord

T = TypeVar("T")

clock = time.perf_counter
"""The clock, in seconds, that times stages; a benchmark on a busy machine counts processor time instead."""


@dataclass
class Log:
    """Filled by the pipeline, read by `make_report`. `seconds` has the wall time of each stage, by name; `running` is
    the stage that the compile is in, or that it failed in; `watchers` are told of each that begins. `attachments`: file
    name -> text that a plugin adds. `contractions`: what runs each, in order. `gate` is asked before what the option
    `veto` can leave out. `unsettled`: why another process may choose otherwise. `noted`: what watchers say of
    passes."""

    decisions: list[Decision] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    attachments: dict[str, str] = field(default_factory=dict)
    contractions: list[ContractionRecord] = field(default_factory=list)
    unsettled: list[str] = field(default_factory=list)
    running: str = "start"
    watchers: list[Watcher] = field(default_factory=list)
    gate: Gate = field(default_factory=Gate)
    noted: list[Any] = field(default_factory=list)
    _aside: float = 0.0

    def branch(self) -> Log:
        """Returns a log of its own that begins with the content of this log."""
        gate = _with_own(self.gate, "taken", "left_out", "weighed")
        own = ("decisions", "seconds", "attachments", "contractions", "unsettled", "noted")
        return replace(_with_own(self, *own), gate=gate, _aside=0.0)

    def pass_ran(self, pass_: Pass, before: Noun, after: Noun, seconds: float) -> None:
        """Notes that a pass has run, in `seconds`, and made `after` of `before`."""
        begun = time.perf_counter()
        for watcher in self.watchers:
            note = None if watcher.passed is None else watcher.passed(pass_, before, after, seconds)
            self.noted += [] if note is None else [note]
        self._aside += time.perf_counter() - begun

    def include(self, earlier: Log | None) -> None:
        """Adds what the stages before this log began have noted down."""
        if earlier is None:
            return
        self.decisions += earlier.decisions
        self.attachments.update(earlier.attachments)
        for name, seconds in earlier.seconds.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        self.gate.taken.update(earlier.gate.taken)
        self.gate.left_out.update(earlier.gate.left_out)
        self.gate.weighed.update(earlier.gate.weighed)
        self.noted += earlier.noted

    def note(self, decision: Decision) -> None:
        """Puts a decision on the graph's record."""
        self.decisions.append(decision)

    def built(self, kernels: int) -> None:
        """Tells the watchers that one of so many kernels is built. Any thread may call this."""
        for watcher in self.watchers:
            if watcher.built is not None:
                watcher.built(kernels)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Adds the time that the `with` takes to the stage's."""
        self.running = name
        for watcher in self.watchers:
            if watcher.stage is not None:
                watcher.stage(name)
        start = clock()
        try:
            yield
        finally:
            aside, self._aside = self._aside, 0.0
            self.seconds[name] = self.seconds.get(name, 0.0) + clock() - start - aside
            if aside:
                self.seconds["report"] = self.seconds.get("report", 0.0) + aside


def _with_own(record: T, *names: str) -> T:
    """The record with lists and tables of its own under some names."""
    return replace(record, **{name: copy(getattr(record, name)) for name in names})  # type: ignore[type-var]
