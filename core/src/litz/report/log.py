"""What a compile notes down while it runs: decisions, and how long each stage takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from litz.schedule.implementations import ContractionRecord
from litz_plugins import Decision, Gate

clock = time.perf_counter
"""What stages are timed by, in seconds; a benchmark on a busy machine counts processor time instead."""


@dataclass
class Log:
    """Filled by the pipeline, read by `make_report`. `seconds` has the wall time of each stage, by name; `running` is
    the stage that the compile is in, or that it failed in; `watch` is told of each that begins. `attachments`: file
    name -> text that a plugin adds. `contractions`: what runs each, in order. `gate` is asked before what the option
    `veto` can leave out. `unsettled`: why another process may choose otherwise."""

    decisions: list[Decision] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    attachments: dict[str, str] = field(default_factory=dict)
    contractions: list[ContractionRecord] = field(default_factory=list)
    unsettled: list[str] = field(default_factory=list)
    running: str = "start"
    watch: Callable[[str], None] = lambda stage: None
    gate: Gate = field(default_factory=Gate)

    def branch(self) -> Log:
        """A log of its own that begins with what is in this one."""
        gate = replace(
            self.gate,
            taken=dict(self.gate.taken),
            left_out=dict(self.gate.left_out),
            weighed=dict(self.gate.weighed),
        )
        return Log(
            list(self.decisions),
            dict(self.seconds),
            dict(self.attachments),
            list(self.contractions),
            list(self.unsettled),
            self.running,
            self.watch,
            gate,
        )

    def note(self, decision: Decision) -> None:
        self.decisions.append(decision)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time that the `with` takes to the stage's."""
        self.running = name
        self.watch(name)
        start = clock()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + clock() - start
