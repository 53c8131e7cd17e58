"""A schedule drawn as text. In: a timeline. Out: lines of 80 columns: a row for computation, and below it one for each
group's communication, to one scale of time.

    compute  ####....################        '#' computes, '.' waits for communication
    group 2  ====xxxx========                'x' exposed: computation waits for this group, '=' hidden
    group 1  xxxx            ====

A column shows what takes most of its time, so that what is shorter than half a column may not be seen. The figures at
the end of a row are exact: what the stream did, and how much of that was exposed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from litz.logs.units import time_text
from litz.report.streams import COMPUTE, Timeline

from .lanes import lanes_of

WIDTH = 80
LEGEND = "# computes  . waits for communication  = hidden  x exposed"

Part = tuple[float, float, str]
"""From, until, and the letter that stands for it."""


def timeline_text(timeline: Timeline, width: int = WIDTH) -> list[str]:
    """Returns the lines; none where nothing takes time."""
    if timeline.us <= 0:
        return []
    lanes = lanes_of(timeline)
    group_of = {span.step.name: span.step.group for span in timeline.spans if span.stream != COMPUTE}
    waits = [span for span in lanes[COMPUTE] if span.step.kind == "wait"]
    rows: list[tuple[str, list[Part], str]] = []
    for name, spans in lanes.items():
        if name == COMPUTE:
            parts = [(span.start, span.end, "." if span.step.kind == "wait" else "#") for span in spans]
            rows.append((name, parts, f"{_time(parts, '#')}, waits {_time(parts, '.')}"))
        else:
            own = {span.step.group for span in spans}
            stalls = [(w.start, w.end) for w in waits if any(group_of.get(of) in own for of in w.step.waits_for)]
            parts = [part for span in spans for part in _cut(span.start, span.end, stalls)]
            rows.append((name, parts, f"{_time(parts, '=x')}, exposed {_time(parts, 'x')}"))
    left = max(len(name) for name, _, _ in rows) + 1
    columns = max(1, width - left - max(len(text) for _, _, text in rows) - 1)
    lines = [f"{name:<{left}}{_drawn(parts, timeline.us, columns)} {text}" for name, parts, text in rows]
    end = time_text(timeline.us)
    return [*lines, f"{'':<{left}}0{end:>{max(columns - 1, len(end) + 1)}}", LEGEND]


def _cut(start: float, end: float, stalls: Sequence[tuple[float, float]]) -> Iterable[Part]:
    """A collective's span in parts: exposed where computation is held up, else hidden."""
    for begun, over in stalls:
        first, last = max(start, begun), min(end, over)
        if first < last:
            if start < first:
                yield start, first, "="
            yield first, last, "x"
            start = last
    if start < end:
        yield start, end, "="


def _time(parts: Iterable[Part], letters: str) -> str:
    return time_text(sum(end - start for start, end, letter in parts if letter in letters))


def _drawn(parts: Sequence[Part], us: float, columns: int) -> str:
    """So many letters: in each column that of what takes most of it, nothing included."""
    shares = [dict[str, float]() for _ in range(columns)]
    each = us / columns
    for start, end, letter in parts:
        for column in range(int(start / each), min(columns, int(end / each) + 1)):
            share = min(end, (column + 1) * each) - max(start, column * each)
            shares[column][letter] = shares[column].get(letter, 0.0) + max(0.0, share)
    for found in shares:
        found[" "] = each - sum(found.values())
    return "".join(max(found, key=found.__getitem__) for found in shares)
