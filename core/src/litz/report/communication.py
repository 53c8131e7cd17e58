"""What communication costs and what of it is hidden. In: a report. Out: rows, a line that sums them up, a picture.

The picture has two lanes, computation above communication, to one scale of time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from litz.logs.units import count_text, time_text

from .step import Step
from .streams import COMMUNICATION, COMPUTE, Realised, Span, Timeline

if TYPE_CHECKING:
    from .report import CompileReport

MEASURED = ("measured", "of that exposed")
"""The heading above the cells of a profiled run."""
GAP = 1 / 2000
"""Spans of one colour that are closer than this share of the whole are drawn as one."""


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


def timeline_svg(timeline: Timeline) -> str:
    """Returns both lanes as SVG that stretches with its column; '' where nothing takes time."""
    if timeline.us <= 0:
        return ""
    lanes = []
    for stream, top in ((COMPUTE, 0), (COMMUNICATION, 12)):
        for start, end, color, title in _merged(timeline.on(stream), timeline.us * GAP):
            x, width = 1000 * start / timeline.us, max(0.4, 1000 * (end - start) / timeline.us)
            lanes.append(
                f'<rect class="{color}" x="{x:.2f}" y="{top}" width="{width:.2f}" height="10">'
                f"<title>{escape(title)}</title></rect>"
            )
    return f'<svg viewBox="0 0 1000 22" preserveAspectRatio="none" role="img">{"".join(lanes)}</svg>'


def _merged(spans: Iterable[Span], gap: float) -> list[tuple[float, float, str, str]]:
    """Returns (start, end, colour, title) of the boxes to draw."""
    boxes: list[tuple[float, float, str, str]] = []
    count = 1
    for span in spans:
        color = {"collective": "net", "wait": "stall", "kernel": "kernel"}.get(span.step.kind, "call")
        title = f"{span.step.name}: {span.step.title}, {time_text(span.us)} from {time_text(span.start)} on"
        last = boxes[-1] if boxes else None
        if last is not None and last[2] == color and span.us < gap and span.start - last[1] < gap:
            count += 1
            boxes[-1] = (last[0], span.end, color, f"{count} steps up to {title}")
        else:
            count = 1
            boxes.append((span.start, span.end, color, title))
    return boxes
