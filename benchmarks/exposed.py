"""Communication that nothing hides: what ran on the device, by torch.profiler, and for how long only NCCL did."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

SPIN_CYCLES = 100_000_000
"""About 50 ms of a GPU: longer than any kernel of a step, and than the host takes to queue a step."""


def exposed_time(kernels: Iterable[tuple[str, float, float]]) -> tuple[float, float]:
    """(time in which a kernel of NCCL ran, time in which only such ran) of kernels (name, start, end)."""
    edges: list[tuple[float, int, int]] = []
    for name, start, end in kernels:
        side = (1, 0) if name.startswith("nccl") else (0, 1)
        edges += [(start, *side), (end, -side[0], -side[1])]
    total = exposed = last = 0.0
    communicating = computing = 0
    for at, communication, computation in sorted(edges):
        total += at - last if communicating else 0.0
        exposed += at - last if communicating and not computing else 0.0
        communicating, computing, last = communicating + communication, computing + computation, at
    return total, exposed


def kernels_of(step: Callable[[], Any], count: int, path: Path | None = None) -> list[dict[str, Any]]:
    """What ran on the device in some steps, by start. path: a Chrome trace to write, with the host's side.

    Ranks begin to record at different times, and the host is behind the device when a step begins after a wait. So they
    meet in a step that does not count, and the others are queued behind a spin of the device, as in a training loop.
    """
    activities = [torch.profiler.ProfilerActivity.CUDA]
    if path is not None:
        activities.append(torch.profiler.ProfilerActivity.CPU)
    with torch.profiler.profile(activities=activities) as recorded:
        step()
        dist.barrier()
        torch.cuda.synchronize()
        torch.cuda._sleep(SPIN_CYCLES)
        for _ in range(count):
            step()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(plain))
        text = plain.read_text()
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text.encode()))
    # Of the categories on a device the others are annotations, which span kernels.
    kinds = ("kernel", "gpu_memcpy", "gpu_memset")
    found = sorted((e for e in json.loads(text)["traceEvents"] if e.get("cat") in kinds), key=lambda e: e["ts"])
    return after_the_spin(found)


def after_the_spin(kernels: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of kernels by start those that began after the longest that is not NCCL's."""
    spin = max((e for e in kernels if not e["name"].startswith("nccl")), key=lambda e: e["dur"])
    return [e for e in kernels if e["ts"] >= spin["ts"] + spin["dur"]]


def profiled(step: Callable[[], Any], count: int = 4) -> tuple[float, float]:
    """(ms of communication, ms of it exposed) a step, mean of the ranks."""
    found = [(e["name"], e["ts"], e["ts"] + e["dur"]) for e in kernels_of(step, count)]
    sums = torch.tensor(exposed_time(found), dtype=torch.float64, device="cuda") / (count * 1e3)
    dist.all_reduce(sums)
    return tuple((sums / dist.get_world_size()).tolist())  # type: ignore[return-value]


def longest_exposed(kernels: Sequence[Mapping[str, Any]], count: int = 12) -> list[str]:
    """The longest times in which only communication ran, as lines: how long, when, the collective, and the kernels
    before and after."""
    others = [e for e in kernels if not e["name"].startswith("nccl")]
    begin = kernels[0]["ts"] if kernels else 0.0
    found: list[tuple[float, str]] = []
    number = 0
    for event in kernels:
        if not event["name"].startswith("nccl"):
            continue
        number += 1
        start, end = event["ts"], event["ts"] + event["dur"]
        beside = sorted((max(start, e["ts"]), min(end, e["ts"] + e["dur"])) for e in others if _meet(e, start, end))
        at, hole = start, (0.0, start)
        for low, high in [*beside, (end, end)]:
            hole = max(hole, (low - at, at))
            at = max(at, high)
        before = next((e["name"] for e in reversed(others) if e["ts"] < hole[1]), "none")
        after = next((e["name"] for e in others if e["ts"] >= hole[1]), "none")
        took = f"{event['dur']:.0f} µs from {(start - begin) / 1e3:.2f} ms"
        what = event["name"].removeprefix("ncclDevKernel_").partition("(")[0]
        size = event.get("args", {}).get("In msg nelems", "")
        found.append(
            (
                hole[0],
                f"{hole[0]:7.0f} µs at {(hole[1] - begin) / 1e3:7.2f} ms of collective {number}, {what} {size} "
                f"({took}): after {before[:48]}, before {after[:48]}",
            )
        )
    return [line for us, line in sorted(found, key=lambda pair: -pair[0])[:count] if us > 1.0]


def _meet(event: Mapping[str, Any], start: float, end: float) -> bool:
    return event["ts"] < end and event["ts"] + event["dur"] > start
