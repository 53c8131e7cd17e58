"""A timeline as a picture. In: the steps on their streams. Out: SVG, a lane for computation and below it one for each
group's communication, to one scale of time.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from litz.logs.units import time_text
from litz.report.streams import Span, Timeline

from ..lanes import lanes_of

GAP = 1 / 2000
"""Spans of one colour that are closer than this share of the whole are drawn as one."""


def timeline_svg(timeline: Timeline) -> str:
    """Returns the lanes as SVG that stretches with its column; '' where nothing takes time."""
    if timeline.us <= 0:
        return ""
    boxes, lanes = [], lanes_of(timeline)
    for number, spans in enumerate(lanes.values()):
        for start, end, color, title in _merged(spans, timeline.us * GAP):
            x, width = 1000 * start / timeline.us, max(0.4, 1000 * (end - start) / timeline.us)
            boxes.append(
                f'<rect class="{color}" x="{x:.2f}" y="{12 * number}" width="{width:.2f}" height="10">'
                f"<title>{escape(title)}</title></rect>"
            )
    height = 12 * len(lanes) - 2
    style = f' style="height: {2.2 * len(lanes):.1f}rem"' if len(lanes) > 2 else ""  # page.css is for two
    return f'<svg viewBox="0 0 1000 {height}" preserveAspectRatio="none" role="img"{style}>{"".join(boxes)}</svg>'


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
