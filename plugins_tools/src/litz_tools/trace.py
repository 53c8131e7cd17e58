"""The estimated timeline as a Chrome trace. In: a report. Out: JSON-able data for chrome://tracing or ui.perfetto.dev.

The format is the Trace Event Format's "complete" events: `ts` and `dur` in microseconds. Steps run one after the other
on their device, collectives on a stream for each group (`streams`); the stages of the compile are a process of their
own, with their measured times. Of a report without times, a microsecond stands for 1,000 bytes read or written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from litz.report.report import CompileReport
from litz.report.streams import COMMUNICATION, COMPUTE, Span

_COMPILE, _RUN = 1, 2


def make_trace(report: CompileReport) -> dict[str, Any]:
    """Returns the Chrome trace of one report."""
    unit = "estimated" if report.timed else "no times: 1 µs stands for 1 kB"
    events: list[dict[str, Any]] = [
        _name("process_name", _RUN, 0, f"{report.name} ({unit})"),
        _name("process_name", _COMPILE, 0, f"compiling {report.name} (measured)"),
    ]
    threads: dict[str, int] = {}
    several = len({step.group for step in report.steps if step.kind == "collective"}) > 1
    for span in spans_of(report):
        step, estimate = span.step, span.step.estimate
        group = f" of group {step.group}" if several else ""
        track = f"{step.device} communication{group}" if span.stream == COMMUNICATION else step.device
        details = {
            "does": step.title,
            "from": step.origin,
            "reads": ", ".join(step.reads),
            "writes": ", ".join(step.writes),
            "flops": step.flops,
            "bytes": step.bytes,
        }
        if estimate is not None:
            details |= {"low_us": estimate.low_us, "high_us": estimate.high_us, "why": estimate.why}
        if step.waits_for:
            details["waits for"] = ", ".join(step.waits_for)
        thread = threads.setdefault(track, len(threads) + 1)
        events.append(_event(step.name, step.kind, _RUN, thread, span.start, span.us, details))
    events += [_name("thread_name", _RUN, thread, device) for device, thread in threads.items()]
    now = 0.0
    for stage, seconds in report.stage_seconds.items():
        events.append(_event(stage, "compile", _COMPILE, 1, now, seconds * 1e6, {}))
        now += seconds * 1e6
    return {"traceEvents": events, "displayTimeUnit": "ns"}


def spans_of(report: CompileReport) -> Sequence[Span]:
    """Returns the steps on their streams. Without times, steps follow each other, and 1 kB takes 1 µs."""
    if report.timed:
        return report.timeline.spans
    spans, now = list[Span](), 0.0
    for step in report.steps:
        stream = COMMUNICATION if step.kind == "collective" else COMPUTE
        spans.append(Span(step, stream, now, step.bytes / 1e3))
        now = spans[-1].end
    return spans


def _name(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _event(
    name: str, category: str, process: int, thread: int, start: float, duration: float, details: dict[str, Any]
) -> dict[str, Any]:
    return {
        "name": name,
        "cat": category,
        "ph": "X",
        "pid": process,
        "tid": thread,
        "ts": start,
        "dur": duration,
        "args": details,
    }
