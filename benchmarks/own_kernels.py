"""What litz's own kernels do in a step and what they must move: in, reports of its compiles; out, a record for each.

A report knows the operations behind each kernel and the bytes that it reads and writes; the profiler knows names and
times. `matched` brings both together by name and order.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from benchmarks.device_time import DeviceKernel

if TYPE_CHECKING:
    from litz.report import CompileReport

_KERNEL = re.compile(r"@triton\.jit\ndef (\w+)\(")


@dataclass(frozen=True)
class Own:
    """A kernel of litz's. symbol: its name for the profiler. what: the operations of the model that it does. bytes:
    read and written, each tensor once."""

    symbol: str
    what: str
    bytes: float


def own_kernels(reports: Sequence[CompileReport]) -> list[Own]:
    """The Triton kernels of all graphs, in the order in which they run; C++ kernels have no name for the profiler."""
    from litz_tools.groups import in_short

    found = []
    for report in reports:
        for step in report.steps:
            names = _KERNEL.findall(report.kernel_sources.get(step.name, ""))
            if names:
                found.append(Own(names[-1], in_short(step), step.bytes))
    return found


def described(trace: Sequence[DeviceKernel], own: Sequence[Own]) -> list[DeviceKernel]:
    """The trace, with what litz's kernels do behind their names."""
    purposes = {id(launch): kernel.what for launch, kernel in matched(trace, own)}
    return [
        replace(launch, name=f"{launch.name} = {purposes[id(launch)]}") if id(launch) in purposes else launch
        for launch in trace
    ]


def matched(trace: Sequence[DeviceKernel], own: Sequence[Own]) -> list[tuple[DeviceKernel, Own]]:
    """The trace's kernels that are litz's, with what they do. Names that run more or less often than the reports say
    (a graph that ran twice, or not at all) are left out."""
    waiting: dict[str, deque[Own]] = defaultdict(deque)
    for kernel in own:
        waiting[kernel.symbol].append(kernel)
    times: dict[str, int] = defaultdict(int)
    for launch in trace:
        times[launch.name] += 1
    sure = {name for name, kernels in waiting.items() if times[name] == len(kernels)}
    return [(launch, waiting[launch.name].popleft()) for launch in trace if launch.name in sure]
