"""What communication costs and what of it is hidden. In: a report. Out: rows, and a line that sums them up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from litz.logs.units import count_text, size_text, time_text

from .step import Step
from .streams import COMMUNICATION, Realised

if TYPE_CHECKING:
    from .report import CompileReport

MEASURED = ("measured", "of that exposed")
"""The heading above the cells of a profiled run."""


@dataclass(frozen=True)
class Row:
    """A collective: when it begins and how long it takes, how much of that is exposed, and what a run measured."""

    step: Step
    start: float
    us: float
    exposed_us: float
    realised: Realised | None

    def cells(self, report: CompileReport) -> list[str]:
        """Returns the collective's time and the exposed part of the time, estimated and, where the report has a
        measurement, measured."""
        found = [f"{self.us:.1f}", f"{self.exposed_us:.1f}"] if report.timed else ["?", "?"]
        if self.realised is not None:
            return [*found, f"{self.realised.us:.1f}", f"{self.realised.exposed_us:.1f}"]
        return [*found, "?", "?"] if report.realised else found


def rows_of(report: CompileReport) -> list[Row]:
    """Returns a row per collective, in order."""
    return [
        Row(s.step, s.start, s.us, report.timeline.exposed[s.step.name], report.realised.get(s.step.name))
        for s in report.timeline.spans
        if s.stream == COMMUNICATION
    ]


def table_of(report: CompileReport) -> tuple[tuple[str, ...], list[tuple[Row, str, list[str]]]]:
    """Returns the titles of the numbers, and for each collective its row, its name with op and message size (the larger
    of input and output, such as "op4 all_reduce_ 1.5 MiB"), and its numbers as text."""
    columns = ("est. µs", "exposed", *(MEASURED if report.realised else ()))
    return columns, [(row, f"{row.step.name} {_op(row.step)}", row.cells(report)) for row in rows_of(report)]


def _op(step: Step) -> str:
    name = step.what.removeprefix("_c10d_functional.").removesuffix(".default")
    return f"{name} {size_text(max(step.bytes_read, step.bytes_written))}"


def summary(report: CompileReport) -> str:
    """Returns "120 µs, of which 30 µs (25%) exposed, in a graph of 400 µs; measured: ..."."""
    parts = []
    if report.timed:
        timeline = report.timeline
        parts.append(
            _share(timeline.communication_us, timeline.exposed_us) + f", in a graph of {time_text(timeline.us)}"
        )
        unknown = sum(1 for step in report.steps if step.estimate is None and step.kind != "wait")
        if unknown:
            parts.append(f"{count_text(unknown, 'step')} without an estimate, counted as 0 µs")
    found = list(report.realised.values())
    if found:
        measured = _share(sum(one.us for one in found), sum(one.exposed_us for one in found))
        parts.append(f"measured: {measured}")
    return "; ".join(parts)


def _share(total: float, exposed: float) -> str:
    part = f" ({exposed / total:.0%})" if total > 0 else ""
    return f"{time_text(total)}, of which {time_text(exposed)}{part} exposed"
