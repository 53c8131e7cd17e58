"""The lanes in which a timeline is drawn, as text and as a picture: one for computation, and one for each group's
communication."""

from __future__ import annotations

from litz.report.streams import COMMUNICATION, COMPUTE, Span, Timeline


def lanes_of(timeline: Timeline) -> dict[str, list[Span]]:
    """Returns the spans that take time, by stream: "compute", then "communication", or where several groups communicate
    "group 1" and so on, by the groups' names as they first come."""
    groups = list(dict.fromkeys(span.step.group for span in timeline.spans if span.stream == COMMUNICATION))
    names = {group: f"group {group}" if len(groups) > 1 else COMMUNICATION for group in groups}
    lanes: dict[str, list[Span]] = {COMPUTE: [], **{names[group]: [] for group in groups}}
    for span in timeline.spans:
        if span.us > 0:
            lanes[names[span.step.group] if span.stream == COMMUNICATION else COMPUTE].append(span)
    return lanes
