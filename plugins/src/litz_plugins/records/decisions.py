"""What is expected of an operation, and what was decided about it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from litz_plugins.nouns import Operation, Program
from litz_plugins.records.targets import Target


@dataclass(frozen=True)
class Estimate:
    """The time that something is expected to run. A decision is kept only where its gain survives the interval. Errors:
    ValueError unless 0 <= low_us <= us <= high_us and us is finite.

    us: the likely time, in microseconds. low_us, high_us: what the time will hardly be below and above. why: what
    bounds the time, or where the number was measured; for reports.
    """

    us: float
    low_us: float
    high_us: float
    why: str

    def __post_init__(self) -> None:
        if not (0 <= self.low_us <= self.us <= self.high_us) or not math.isfinite(self.us):
            raise ValueError(
                f"an estimate needs 0 <= low_us <= us <= high_us with a finite us; got low_us={self.low_us}, "
                f"us={self.us}, high_us={self.high_us}"
            )


@dataclass(frozen=True)
class Decision:
    """One decision on record.

    subject: what the decision is about: a node, an operation, a kernel. chosen: the way that was taken. reason: why.
    stage: "graph", "lower", "program", "schedule" or a later one ("codegen", "runtime"). considered: (name,
    microseconds) of each candidate, None where no cost is known. plugin: who decided; "core" for core itself. key: what
    the option `veto` calls it (`litz_plugins.vetoes`), '' where it cannot be left out alone. gained_us: by how much it
    was measured to be faster than what there would be without it, None where nobody measured.
    """

    stage: str
    subject: str
    chosen: str
    reason: str
    considered: tuple[tuple[str, float | None], ...] = ()
    plugin: str = "core"
    key: str = ""
    gained_us: float | None = None

    def __str__(self) -> str:
        text = f"{self.subject}: {self.chosen} ({self.reason})"
        if self.considered:
            costs = ", ".join(name if us is None else f"{name} {us:.4g} us" for name, us in self.considered)
            text += f"; considered {costs}"
        return text


Ask = Callable[[Operation, Target, Program], "tuple[str, Estimate] | None"]
"""Returns the time that plugins expect of an operation and the name of the plugin that answered; None where all plugins
decline."""


def no_attachment(name: str, text: str) -> None:
    """Takes a file's name and text, and keeps nothing."""


def no_note(decision: Decision) -> None:
    """Takes a decision, and keeps nothing."""
