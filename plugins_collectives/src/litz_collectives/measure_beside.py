"""What overlap costs each side, measured. In: a collective, on a GPU. Out: its times; GEMM peak, copy bandwidth.

One side runs all the time on its stream while the other is timed on its own.
Both are CUDA graphs, so that the host is in nobody's way.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

import torch

from .contention import Beside
from .measure import Call, device_us, record
from .together import CalibrationError, Together, slowest

EDGE = 4096
"""The rows and columns of the square matrices whose product runs beside a collective: about 0.2 ms on an H200."""
PEAK_EDGE = 8192
COPY_BYTES = 512 << 20
WINDOW_US = 3000.0
"""A timed window lasts so long: the ranks start it some tens of microseconds apart."""
LONGER = 4
"""How many times longer the other side runs than the window would take alone."""
TRIES = 3


@dataclass(frozen=True)
class Load:
    """A graph of `calls` calls on its stream. us: what a replay takes alone."""

    graph: torch.cuda.CUDAGraph
    stream: torch.cuda.Stream
    calls: int
    us: float


def gemm_call(edge: int, device: torch.device) -> Call:
    """Returns a call of a bf16 product of random square matrices: zeros draw less power and run faster."""
    left, right = (torch.randn(edge, edge, device=device).to(torch.bfloat16) for _ in range(2))
    out = torch.empty_like(left)
    return lambda: torch.mm(left, right, out=out)


def copy_call(size: int, device: torch.device) -> Call:
    """Returns a call that reads and writes `size` bytes by a kernel: a graph gives plain copies to the copy engine."""
    source = torch.zeros(size // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    return lambda: torch.mul(source, 2.0, out=target)


def gemm_tflops(device: torch.device) -> float:
    """Returns the TFLOP/s that a large bf16 matrix product reaches."""
    edge = PEAK_EDGE if device.type == "cuda" else 128
    us = statistics.median(device_us(gemm_call(edge, device), 4, 5, device))
    return 2 * edge**3 / us / 1e6


def copy_gb_s(device: torch.device) -> float:
    """Returns the GB/s, bytes read plus bytes written, that a memory-bound kernel reaches."""
    size = COPY_BYTES if device.type == "cuda" else 1 << 20
    us = statistics.median(device_us(copy_call(size, device), 4, 5, device))
    return 2 * size / us / 1e3


def measure_beside(call: Call, size: int, gemm: Load, copy: Load, ranks: Together, device: torch.device) -> Beside:
    """Measures one collective of `size` bytes beside kernels, on the slowest rank.

    gemm, copy: what runs beside it, made by `make_load`.
    """
    collective = make_load(call, ranks, device)
    beside = _us_beside(collective, gemm, ranks) / collective.calls
    gemm_factor, copy_factor = (_us_beside(load, collective, ranks) / load.us for load in (gemm, copy))
    return Beside(size, gemm_factor, copy_factor, collective.us / collective.calls, beside)


def make_load(call: Call, ranks: Together, device: torch.device) -> Load:
    """Returns a load: a CUDA graph of as many calls, on every rank, as take `WINDOW_US` on the slowest rank."""
    one = slowest(ranks.run(lambda: device_us(call, 4, 3, device)))
    calls = math.ceil(WINDOW_US / one)
    stream = torch.cuda.Stream(device)
    graph = record(call, calls, stream)
    load = Load(graph, stream, calls, 0.0)
    alone = slowest(ranks.run(lambda: [_replay_us(load) for _ in range(5)]))
    return Load(graph, stream, calls, alone)


def _replay_us(load: Load) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.stream(load.stream):
        load.graph.replay()
        begin.record(load.stream)
        load.graph.replay()
        end.record(load.stream)
    load.stream.synchronize()
    return 1e3 * begin.elapsed_time(end)


def _us_beside(timed: Load, other: Load, ranks: Together) -> float:
    """Returns the µs of a replay of `timed` while `other` runs all the time."""
    longer = LONGER
    for _ in range(TRIES):
        replays = 2 + math.ceil(longer * timed.us / other.us)
        found = ranks.run(lambda: [_beside(timed, other, replays) for _ in range(3)])  # noqa: B023 (called at once)
        if all(covered for times in found for _, covered in times):
            return slowest([[time for time, _ in times] for times in found])
        longer *= 2
    raise CalibrationError(
        "a kernel and a collective did not run at a time, though they were started on two streams",
        todo="unset CUDA_LAUNCH_BLOCKING and CUDA_DEVICE_MAX_CONNECTIONS=1, or give --no-overlap",
    )


def _beside(timed: Load, other: Load, replays: int) -> tuple[float, bool]:
    """(µs of a replay of `timed`, whether `other` ran before, during and after it)."""
    running, over, begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(4))
    with torch.cuda.stream(other.stream):
        other.graph.replay()
        running.record(other.stream)
        for _ in range(replays - 1):
            other.graph.replay()
        over.record(other.stream)
    with torch.cuda.stream(timed.stream):
        timed.stream.wait_event(running)
        begin.record(timed.stream)
        timed.graph.replay()
        end.record(timed.stream)
    torch.cuda.synchronize(timed.stream.device)
    return 1e3 * begin.elapsed_time(end), end.elapsed_time(over) > 0
