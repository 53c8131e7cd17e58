"""What one step costs a device: in, functions without arguments; out, milliseconds, kernels, and the speed of a copy.

On a GPU a step is timed by events with the host hidden behind a spin of the device, so a launch costs what it costs the
device. On the CPU, where the benchmarks are only tried out, wall time stands in, and operators stand in for kernels.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

Step = Callable[[], Any]
ROUND_S = 0.01
"""Seconds of a round of one step's calls, about: long beside an event's own time."""
SPIN_MAX_S = 0.05
"""Longest spin before a round; by then the host is far enough ahead."""
CYCLES_PER_S = 2e9
"""Of a GPU's clock, at most: a spin of so many cycles takes a second or somewhat more."""


@dataclass(frozen=True)
class DeviceKernel:
    """A kernel of one step: how many times it ran and the microseconds of all of them."""

    name: str
    count: float
    us: float


def recorded(step: Step) -> Step:
    """The step as a CUDA graph of its own, which holds what it returns. The step may not wait for the device."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    torch._C._cuda_clearCublasWorkspaces()  # so that cuBLAS works in the graph's memory, which no other graph frees
    with torch.cuda.graph(graph):
        outputs = step()

    def replay() -> Any:
        graph.replay()
        return outputs

    return replay


def in_turn(steps: Mapping[str, Step], device: torch.device, seconds: float) -> dict[str, float]:
    """Median milliseconds of a call of each step. They take turns, there and back, for so many seconds in all, and at
    least 3 rounds; each has run before."""
    rounds = {name: _Round(step, device) for name, step in steps.items()}
    samples: dict[str, list[float]] = {name: [] for name in steps}
    deadline = time.perf_counter() + seconds
    order = list(rounds)
    while steps and (len(samples[order[0]]) < 3 or time.perf_counter() < deadline):
        for name in order:
            samples[name].append(rounds[name].ms())
        order.reverse()
    return {name: statistics.median(values) for name, values in samples.items()}


class _Round:
    """Some calls of a step in a row, timed together."""

    def __init__(self, step: Step, device: torch.device) -> None:
        self.step, self.device, self.calls, self.host_s = step, device, 1, SPIN_MAX_S
        each = self.ms() * 1e-3
        self.calls = max(1, min(100, round(ROUND_S / max(each, 1e-7))))
        _wait(device)
        start = time.perf_counter()
        for _ in range(self.calls):
            step()
        self.host_s = min(SPIN_MAX_S, 1.5 * (time.perf_counter() - start))
        _wait(device)

    def ms(self) -> float:
        """Milliseconds of one call."""
        _wait(self.device)
        if self.device.type == "cpu":
            begin = time.perf_counter()
            for _ in range(self.calls):
                self.step()
            return (time.perf_counter() - begin) * 1e3 / self.calls
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(int(self.host_s * CYCLES_PER_S))
        start.record()
        for _ in range(self.calls):
            self.step()
        end.record()
        _wait(self.device)
        return start.elapsed_time(end) / self.calls


def copy_speed(device: torch.device) -> float:
    """Bytes a second, read and written, of a copy of 1 GiB (64 MiB on a CPU)."""
    source = torch.zeros(2**30 if device.type == "cuda" else 2**26, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    ms = in_turn({"copy": lambda: target.copy_(source)}, device, 0.2)["copy"]
    return 2 * source.nbytes / (ms * 1e-3)


def _profiled(step: Step, device: torch.device, calls: int) -> torch.profiler.profile:
    """What torch.profiler sees of so many calls, after one that is not counted."""
    activity = torch.profiler.ProfilerActivity
    step()
    _wait(device)
    with torch.profiler.profile(activities=[activity.CUDA if device.type == "cuda" else activity.CPU]) as seen:
        for _ in range(calls):
            step()
        _wait(device)
    return seen


def kernels(step: Step, device: torch.device, calls: int = 5) -> list[DeviceKernel]:
    """What one call of the step runs on the device, longest first (torch.profiler)."""
    on_gpu, seen = device.type == "cuda", _profiled(step, device, calls)
    found = [
        DeviceKernel(row.key, row.count / calls, us / calls)
        for row in seen.key_averages()
        if (us := float(row.self_device_time_total if on_gpu else row.self_cpu_time_total)) > 0
        and not (on_gpu and getattr(row, "is_user_annotation", False))  # a range around kernels, not one
    ]
    return sorted(found, key=lambda kernel: -kernel.us)


def trace(step: Step, device: torch.device, calls: int = 3) -> list[DeviceKernel]:
    """What one call of the step runs on the device, in order, each with its mean microseconds over the calls; of the
    last call alone where the calls differ in what they run. As `kernels`, operators stand in on a CPU."""
    on_gpu, seen = device.type == "cuda", _profiled(step, device, calls)
    events = [e for e in seen.events() if (e.device_type != torch.autograd.DeviceType.CPU) == on_gpu]
    if on_gpu:
        events = [e for e in events if not getattr(e, "is_user_annotation", False)]
    timed = sorted(((e.time_range.start, e.name, _own_us(e, on_gpu)) for e in events), key=lambda event: event[0])
    timed = [event for event in timed if event[2] > 0 and event[1] not in _PROFILERS_OWN]
    size = len(timed) // calls
    columns = [timed[number * size : (number + 1) * size] for number in range(calls)]
    alike = len(timed) == size * calls and all([e[1] for e in c] == [e[1] for e in columns[0]] for c in columns)
    if alike:
        return [DeviceKernel(same[0][1], 1, sum(e[2] for e in same) / calls) for same in zip(*columns, strict=True)]
    return [DeviceKernel(name, 1, us) for _, name, us in timed[len(timed) - size :]]


_PROFILERS_OWN = ("Activity Buffer Request", "Command Buffer Full")
"""Rows of a profile that stand for no work."""


def _own_us(event: Any, on_gpu: bool) -> float:
    return float(event.time_range.elapsed_us() if on_gpu else event.self_cpu_time_total)


def graphs_made(backend: str) -> int:
    """CUDA graphs that a backend of torch.compile has recorded so far by itself; 0 for eager."""
    if backend.startswith("litz"):
        from litz_cudagraphs import recordings

        return recordings.count()
    if backend.startswith("inductor") and torch.cuda.is_available():
        from torch._inductor.cudagraph_trees import get_manager

        manager = get_manager(torch.cuda.current_device(), create_if_none_exists=False)
        return 0 if manager is None else sum(1 for _ in manager.get_roots())
    return 0


def describe(device: torch.device) -> str:
    """The device and torch's version, for a table's first line."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    return f"{name}, torch {torch.__version__}"


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
