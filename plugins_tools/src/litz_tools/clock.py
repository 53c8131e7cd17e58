"""Clocks. In: a function and the target that it works on. Out: the seconds of one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from litz_plugins import Target

ROW_SECONDS = 0.002
"""A row of runs takes at least so long: the clock's and the event's own error are a thousandth of it."""
MOST_IN_A_ROW = 1000


def median_seconds(run: Callable[[], object], target: Target, times: int) -> float:
    """Returns the seconds of one run: the median of several, each long enough for the clock, after a warm-up."""
    for _ in range(3):
        run()
    return statistics.median(_seconds(run, target) for _ in range(times))


def row_seconds(run: Callable[[], object], target: Target, seconds: float = 0.2) -> float:
    """Returns the seconds of one run in a row of them, for runs too short for the clock. seconds: for all measurements
    together.

    Where CUDA graphs can record it the row is one, so that the time is the GPU's and not the host's.
    """
    run()
    once = max(_seconds(run, target), 1e-7)
    count = max(1, min(MOST_IN_A_ROW, round(ROW_SECONDS / once)))

    def row() -> None:
        for _ in range(count):
            run()

    times = max(3, min(100, round(seconds / (count * once))))
    return median_seconds(recorded(row, target), target, times) / count


def recorded(run: Callable[[], object], target: Target) -> Callable[[], object]:
    """Returns a function that replays what `run` has the GPU do, as one CUDA graph; `run` itself if the target cannot
    record."""
    if "recording" not in target.abilities:
        return run
    graph = torch.cuda.CUDAGraph()
    run()
    torch.cuda.synchronize(target.index)
    with torch.cuda.graph(graph):
        run()
    replay: Callable[[], None] = graph.replay
    return replay


def _seconds(run: Callable[[], object], target: Target) -> float:
    if target.asynchronous:
        event = torch.get_device_module(target.type).Event
        begin, end = event(enable_timing=True), event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
