"""Times of one call on the present group. In: a kind of collective, or any function. Out: microseconds per call.

On a GPU the calls are recorded into a CUDA graph and replayed, so that the time is the device's and not the host's; the
replays are queued at once, so that the ranks run in step. On the CPU it is wall time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist

Call = Callable[[], object]
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
"""The kinds that are measured; a broadcast and a permutation are estimated by these."""

GPU_CALLS = ((256 << 10, 20, 9), (8 << 20, 8, 7), (128 << 20, 3, 5), (float("inf"), 1, 5))
"""(up to so many bytes, calls per replay, replays): a replay takes some tenths of a millisecond, or one call."""
CPU_CALLS = ((64 << 10, 4, 3), (float("inf"), 1, 2))
ALIGNMENT = 16
"""Bytes that a rank's part is a multiple of: NCCL is slower on others, and few tensors have such parts."""
DTYPE = torch.bfloat16


@dataclass(frozen=True)
class Buffers:
    """Memory that all messages use: two tensors of bytes, as large as the largest message."""

    first: torch.Tensor
    second: torch.Tensor

    @staticmethod
    def of(size: int, device: torch.device) -> Buffers:
        """Returns two buffers of `size` zero bytes on the device."""
        return Buffers(*(torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2)))


def message_bytes(size: int, world_size: int) -> int:
    """Returns the least number of bytes, from `size`, that splits into equal and aligned parts for all ranks."""
    part = world_size * ALIGNMENT
    return -(-size // part) * part


def make_call(kind: str, size: int, group: Any, world_size: int, buffers: Buffers) -> Call:
    """Returns the collective as a function. size: bytes as in `nccl.Message`, a result of `message_bytes`."""
    whole, other = (one[:size].view(DTYPE) for one in (buffers.first, buffers.second))
    part = other[: other.numel() // world_size]
    # torch 2.13 gave two of them new names, and warns of the old ones.
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return {
        "all_reduce": lambda: dist.all_reduce(whole, group=group),
        "all_gather": lambda: gather(whole, part, group=group),
        "reduce_scatter": lambda: scatter(part, whole, group=group),
        "all_to_all": lambda: dist.all_to_all_single(other, whole, group=group),
    }[kind]


def repeats(size: int, device: torch.device) -> tuple[int, int]:
    """Returns (calls per replay, replays) for a message of `size` bytes."""
    table = GPU_CALLS if device.type == "cuda" else CPU_CALLS
    return next((calls, replays) for upto, calls, replays in table if size <= upto)


def device_us(call: Call, calls: int, replays: int, device: torch.device) -> list[float]:
    """Returns the µs of device time per call for each replay of `calls` calls in a row; wall time on a CPU."""
    if device.type != "cuda":
        call()
        return [_wall_us(call, calls) for _ in range(replays)]
    stream = torch.cuda.Stream(device)
    graph = record(call, calls, stream)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(replays + 1)]
    with torch.cuda.stream(stream):
        graph.replay()  # warms up, and brings the ranks in step
        for mark in marks[:-1]:
            mark.record(stream)
            graph.replay()
        marks[-1].record(stream)
    stream.synchronize()
    return [1e3 * begin.elapsed_time(end) / calls for begin, end in pairwise(marks)]


def eager_us(call: Call, calls: int, device: torch.device) -> float:
    """Returns the µs per call of `calls` calls in a row from Python: the host's time for small messages."""
    if device.type != "cuda":
        return _wall_us(call, calls)
    call()
    torch.cuda.synchronize(device)
    start = time.perf_counter()
    for _ in range(calls):
        call()
    torch.cuda.synchronize(device)
    return 1e6 * (time.perf_counter() - start) / calls


def record(call: Call, calls: int, stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
    """Returns a CUDA graph of `calls` calls, made on `stream` after two that warm up.

    NCCL's own thread asks for events meanwhile, which only a capture of this thread alone allows.
    """
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
        call()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(capture_error_mode="thread_local")  # torch.cuda.graph() collects garbage: 0.1 s each
        try:
            for _ in range(calls):
                call()
        finally:
            graph.capture_end()
    return graph


def _wall_us(call: Call, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return 1e6 * (time.perf_counter() - start) / calls
