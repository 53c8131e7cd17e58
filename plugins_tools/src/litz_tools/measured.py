"""Measured times of a graph's steps. In: a profile of torch.profiler, or the wrapper's own times. Out: `Measured`, and
what another run took.

Under torch.profiler a call of a graph is a range "litz NAME", and each step a range "STEP: what it does" inside
(docs/logs.md). On a GPU the profile has the same ranges as the GPU ran them, and these count.
"""

from __future__ import annotations

import gzip
import json
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from litz.runtime.compiled_graph import RANGE

from .errors import ReportFileError

_ON_GPU, _ON_HOST = "gpu_user_annotation", "user_annotation"
_KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")
_STEP = "ProfilerStep#"
"""The beginning of the name of a range that torch.profiler's `step()` makes."""


@dataclass(frozen=True)
class Measured:
    """Times in µs. source: where they are from. us: of each step by name. call_us: of a call of the graph. calls: how
    many were measured; each time is the median of them."""

    source: str
    us: Mapping[str, float]
    call_us: float
    calls: int


@dataclass(frozen=True)
class Other:
    """Another run, of any compiler. us: of each kernel or operation in a call, by name. counts: how often a call has
    it. facts: name and text of what is known of the run."""

    title: str
    us: Mapping[str, float]
    counts: Mapping[str, float] = field(default_factory=dict)
    facts: Sequence[tuple[str, str]] = ()


def read_trace(path: Path) -> list[dict[str, Any]]:
    """Returns the events with a duration of a Chrome trace, which may be a gzip file. Errors: ReportFileError."""
    try:
        raw = path.read_bytes()
        data = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
        events = data["traceEvents"] if isinstance(data, dict) else data
        return [event for event in events if event.get("ph") == "X" and "dur" in event]
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ReportFileError(f"this is no trace of torch.profiler: {error}", path=str(path)) from error


def from_profile(path: Path, graph: str, steps: Iterable[str]) -> Measured:
    """Returns the times of a graph's steps in a profile. graph, steps: names. Errors: ReportFileError if the profile
    has no call of the graph."""
    events = read_trace(path)
    name = f"{RANGE}{graph}"
    kind = _ON_GPU if any(one["name"] == name and one.get("cat") == _ON_GPU for one in events) else _ON_HOST
    ranges = [one for one in events if one.get("cat") == kind]
    calls = [one for one in ranges if one["name"] == name]
    if not calls:
        known = sorted({one["name"].removeprefix(RANGE) for one in ranges if one["name"].startswith(RANGE)})
        said = f"it has calls of {', '.join(known)}" if known else "it has no call of a graph of litz's"
        raise ReportFileError(f"the profile has no call of {graph}: {said}", path=str(path))
    wanted, times = frozenset(steps), dict[str, list[float]]()
    for call in calls:
        inside = Counter[str]()
        for one in ranges:
            if call["ts"] <= one["ts"] and one["ts"] + one["dur"] <= call["ts"] + call["dur"] + 1 and _alike(one, call):
                step = one["name"].partition(":")[0]
                if step in wanted:
                    inside[step] += one["dur"]
        for step, us in inside.items():
            times.setdefault(step, []).append(us)
    medians = {step: statistics.median(own) for step, own in times.items()}
    return Measured(f"torch.profiler, {path.name}", medians, statistics.median(one["dur"] for one in calls), len(calls))


def _alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Returns whether two events are of one thread; ranges of a GPU may be on several streams."""
    return one.get("cat") == _ON_GPU or (one.get("pid"), one.get("tid")) == (other.get("pid"), other.get("tid"))


def from_wrapper(wrapper: Path, steps: Sequence[Mapping[str, Any]], seconds: float = 1.0) -> Measured:
    """Runs the wrapper of a report, and returns the times of its steps. steps: of the page's data. Errors:
    WrapperFileError, and what the steps raise."""
    from .wrapper_bench import RUNS, time_wrapper

    times = time_wrapper(wrapper, seconds)
    us = {row.step: row.us for row in times.rows}
    found = {step["name"]: us[step["name"]] for step in steps if step["kind"] == "kernel" and step["name"] in us}
    calls: dict[str, list[str]] = {}
    for step in steps:
        if step["kind"] != "kernel":
            calls.setdefault(step["what"].removeprefix("aten.").partition(".")[0], []).append(step["name"])
    for op, names in calls.items():
        rows = [row.us for row in times.rows if row.step == op or row.step.removesuffix("_default") == op]
        if len(rows) == len(names):  # in the order of the wrapper; with other counts nobody knows which is which
            found |= dict(zip(names, rows, strict=True))
    return Measured(f"the wrapper by itself, on {times.device}", found, times.us, RUNS)


def from_other_trace(path: Path, calls: int | None = None) -> Other:
    """Returns what another run took, by kernel of the GPU, or by operation with the time of its own on a CPU. calls: of
    the model in the trace; by default the steps of torch.profiler, else the calls of litz's graphs, else 1."""
    events = read_trace(path)
    ranges = Counter(
        one["name"] for one in events if one.get("cat") == _ON_HOST and one["name"].startswith((_STEP, RANGE))
    )
    steps = sum(name.startswith(_STEP) for name in ranges)
    times = calls or steps or max([1, *ranges.values()])
    kernels = [one for one in events if one.get("cat") in _KERNELS]
    us, counts = dict[str, float](), dict[str, float]()
    for name, own in [(one["name"], float(one["dur"])) for one in kernels] or _own_times(events):
        us[name] = us.get(name, 0.0) + own / times
        counts[name] = counts.get(name, 0.0) + 1 / times
    facts = [("calls", str(times)), ("kernels" if kernels else "operations", f"{sum(counts.values()):g} a call")]
    return Other(path.name, us, counts, facts)


def _own_times(events: Sequence[Mapping[str, Any]]) -> Iterable[tuple[str, float]]:
    """Yields the name of each operation on a host and its time without the operations inside."""
    threads: dict[Any, list[Mapping[str, Any]]] = {}
    for one in events:
        if one.get("cat") in ("cpu_op", _ON_HOST) and not one["name"].startswith(_STEP):
            threads.setdefault((one.get("pid"), one.get("tid")), []).append(one)
    for own in threads.values():
        open_: list[list[Any]] = []
        for one in sorted(own, key=lambda event: (event["ts"], -event["dur"])):
            while open_ and open_[-1][1] <= one["ts"]:
                name, _, left = open_.pop()
                yield name, left
            if open_:
                open_[-1][2] -= one["dur"]
            open_.append([one["name"], one["ts"] + one["dur"], float(one["dur"])])
        for name, _, left in open_:
            yield name, left
