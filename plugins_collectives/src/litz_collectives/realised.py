"""What communication took in a run. In: a trace of torch.profiler (JSON) and reports. Out: `Realised` times by step.

Each call of a graph is a range "litz NAME" on the host. In it every collective shows as an op `_c10d_functional::...`,
in the order of the schedule. On a GPU the op launches NCCL's kernel, known by its correlation; it is exposed while no
other kernel runs on its device. On the CPU, gloo's span on a thread of its own is exposed while the host waits.
"""

from __future__ import annotations

import bisect
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from litz.report import CompileReport
from litz.report.streams import Realised
from litz.runtime.compiled_graph import RANGE

WAIT = "_c10d_functional::wait_tensor"
COLLECTIVE = "_c10d_functional::"
NCCL, GLOO = "nccl", "gloo:"
"""What the names of their kernels and spans begin with."""
Interval = tuple[float, float]


@dataclass(frozen=True)
class _Event:
    name: str
    category: str
    thread: Any
    device: Any
    start: float
    end: float
    correlation: Any

    def within(self, other: _Event) -> bool:
        return other.start <= self.start and self.end <= other.end


def realised_times(trace: Mapping[str, Any], reports: Sequence[CompileReport]) -> list[dict[str, Realised]]:
    """Returns the measured times of each report's collectives, by step: medians over the calls of the graph, the first
    call left out if there are others. Empty where the trace has no call of it whose collectives can be told apart."""
    events = sorted(map(_event, _complete(trace)), key=lambda event: event.start)
    measured = _measured(events)
    found: list[dict[str, Realised]] = []
    for report in reports:
        names = [step.name for step in report.steps if step.kind == "collective"]
        calls = [e for e in events if e.name == RANGE + report.name and e.category in ("user_annotation", "cpu_op")]
        times = [measured(call) for call in calls[1:] or calls]
        found.append(_medians(names, [row for row in times if len(row) == len(names)]))
    return found


def _complete(trace: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    return (event for event in trace.get("traceEvents", ()) if event.get("ph") == "X" and "dur" in event)


def _event(data: Mapping[str, Any]) -> _Event:
    args = data.get("args", {})
    start = float(data["ts"])
    return _Event(
        str(data["name"]),
        str(data.get("cat", "")),
        (data.get("pid"), data.get("tid")),
        args.get("device"),
        start,
        start + float(data["dur"]),
        args.get("correlation"),
    )


def _measured(events: Sequence[_Event]) -> Any:
    """A function from a call of a graph to (µs, exposed µs) of each of its collectives, in order."""
    kernels = [event for event in events if event.category == "kernel"]
    return _on_gpu(events, kernels) if kernels else _on_cpu(events)


def _on_gpu(events: Sequence[_Event], kernels: Sequence[_Event]) -> Any:
    ours = {e.correlation: e for e in kernels if e.name.lower().startswith(NCCL)}
    busy: dict[Any, list[Interval]] = {}
    for kernel in kernels:
        if not kernel.name.lower().startswith(NCCL):
            busy.setdefault(kernel.device, []).append((kernel.start, kernel.end))
    merged = {device: _merge(intervals) for device, intervals in busy.items()}
    launches = [e for e in events if e.category in ("cuda_runtime", "cuda_driver") and e.correlation in ours]

    def times(call: _Event) -> list[tuple[float, float]]:
        found = []
        for op in _started(event for event in _inside(events, call) if event.thread == call.thread):
            started = [ours[e.correlation] for e in _inside(launches, op) if e.thread == op.thread]
            if started:
                span = (min(e.start for e in started), max(e.end for e in started))
                hidden = _overlap(span, merged.get(started[0].device, []))
                found.append((span[1] - span[0], span[1] - span[0] - hidden))
        return found

    return times


def _on_cpu(events: Sequence[_Event]) -> Any:
    """Assigns each op the first span after it: gloo's threads take work in the order that it was given to them."""
    free = [event for event in events if event.name.startswith(GLOO)]
    spans: dict[_Event, _Event] = {}
    for op in events:
        if op.category == "cpu_op" and op.name.startswith("c10d::"):
            mine = next((span for span in free if span.start >= op.start), None)
            if mine is not None:
                free.remove(mine)
                spans[op] = mine
    waits = _merge([(e.start, e.end) for e in events if e.name == WAIT])

    def times(call: _Event) -> list[tuple[float, float]]:
        inside = [e for e in _inside(events, call) if e.thread == call.thread]
        found = []
        for op in _started(inside):
            mine = next((spans[e] for e in inside if e in spans and e.within(op)), None)
            if mine is not None:
                found.append((mine.end - mine.start, _overlap((mine.start, mine.end), waits)))
        return found

    return times


def _started(events: Iterable[_Event]) -> list[_Event]:
    """The ops that start collectives, the outermost of those that call themselves through the dispatcher."""
    found: list[_Event] = []
    for event in events:
        starts = event.category == "cpu_op" and event.name.startswith(COLLECTIVE) and event.name != WAIT
        if starts and not (found and event.within(found[-1])):
            found.append(event)
    return found


def _inside(events: Sequence[_Event], outer: _Event) -> list[_Event]:
    """Returns those of the events, sorted by start, that lie within `outer`."""
    first = bisect.bisect_left(events, outer.start, key=lambda event: event.start)
    last = bisect.bisect_right(events, outer.end, key=lambda event: event.start)
    return [event for event in events[first:last] if event.end <= outer.end]


def _merge(intervals: Iterable[Interval]) -> list[Interval]:
    """Disjoint intervals that cover the same, in order."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _overlap(span: Interval, merged: Sequence[Interval]) -> float:
    """Returns how much of the span disjoint intervals, in order, cover."""
    first = bisect.bisect_left(merged, span[0], key=lambda interval: interval[1])
    total = 0.0
    for start, end in merged[first:]:
        if start >= span[1]:
            break
        total += min(end, span[1]) - max(start, span[0])
    return total


def _medians(names: Sequence[str], calls: Sequence[Sequence[tuple[float, float]]]) -> dict[str, Realised]:
    if not calls:
        return {}
    return {
        name: Realised(
            statistics.median(call[n][0] for call in calls), statistics.median(call[n][1] for call in calls), len(calls)
        )
        for n, name in enumerate(names)
    }
