"""`litz calibrate-collectives` measures this job's group. In: what to measure, by torchrun. Out: times, and a profile.

Every rank runs the same plan in the same order; a group of n ranks is the first n, the others wait meanwhile. What is
measured is shared, so that every rank knows all of it and ends in the same way.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist

from .contention import Contention, contention_rows
from .evaluate import split_points
from .fit import LEAST_SIZES, REGIMES, Point
from .measure import KINDS, Buffers, device_us, eager_us, make_call, message_bytes, repeats
from .measure_beside import (
    COPY_BYTES,
    EDGE,
    copy_call,
    copy_gb_s,
    gemm_call,
    gemm_tflops,
    make_load,
    measure_beside,
)
from .profile import LAUNCH_BYTES, Profile, make_profile
from .together import CalibrationError, Together, slowest
from .topology import Topology

LEAST, MOST = 1 << 10, 1 << 30
OVERLAP_BYTES = (1 << 20, 16 << 20, 128 << 20)
"""Sizes of the collectives that run beside kernels."""
Tell = Callable[[float, str], None]
"""Called with the share that is done and what is measured now."""


@dataclass(frozen=True)
class Request:
    """The measurements to make. least, most: bytes of a message. seconds: half of the sizes are left out from then on,
    see `plan`. hold_out: world sizes that are measured and not fitted to."""

    world_sizes: tuple[int, ...]
    hold_out: tuple[int, ...] = ()
    kinds: tuple[str, ...] = KINDS
    least: int = LEAST
    most: int = MOST
    seconds: float = float("inf")
    overlap: bool = True


@dataclass(frozen=True)
class Row:
    """One message: device time of the slowest rank, and the mean of back-to-back eager calls."""

    kind: str
    world_size: int
    bytes: int
    time_us: float
    launch_us: float


@dataclass(frozen=True)
class Measured:
    """All that was measured. seconds: how long that took. skipped: how many messages there was no time for."""

    rows: tuple[Row, ...]
    gemm_tflops: float
    copy_gb_s: float
    contention: Mapping[str, tuple[Contention, ...]] = field(default_factory=dict)
    seconds: float = 0.0
    skipped: int = 0

    @property
    def points(self) -> dict[str, list[Point]]:
        """Returns the measured points by kind, as `fit.fit_curve` takes them."""
        found: dict[str, list[Point]] = {}
        for row in self.rows:
            found.setdefault(row.kind, []).append((row.bytes, row.world_size, row.time_us))
        return found

    @property
    def launch_us(self) -> dict[str, float]:
        """Returns the host time of an eager call in µs, by kind: the median over messages up to `LAUNCH_BYTES`."""
        small: dict[str, list[float]] = {}
        for row in self.rows:
            if row.bytes <= LAUNCH_BYTES:
                small.setdefault(row.kind, []).append(row.launch_us)
        return {kind: round(statistics.median(found), 1) for kind, found in small.items()}


@dataclass(frozen=True)
class _Task:
    """One message to measure; a `spare` one is left out when time is up."""

    kind: str
    world_size: int
    size: int
    spare: bool


def plan(request: Request) -> list[_Task]:
    """Returns every message, by world size so that each group runs in one go: first every other size, enough for a
    curve, of all; then the sizes between, which are left out when time is up."""
    sizes = [request.least << power for power in range(64) if request.least << power <= request.most]
    needed = REGIMES * LEAST_SIZES
    if len(sizes) < needed:
        raise CalibrationError(
            f"{len(sizes)} message sizes from {request.least} to {request.most} bytes are too few for a curve",
            todo=f"let --most be {1 << needed - 1} times --least or more",
        )
    first = sizes[::2] if len(sizes[::2]) >= needed else sizes
    between = [size for size in sizes if size not in first]
    groups = sorted({*request.world_sizes, *request.hold_out})
    return [
        _Task(kind, n, size, chosen is between)
        for chosen in (first, between)
        for n in groups
        for kind in request.kinds
        for size in chosen
    ]


def measure(request: Request, ranks: Together, device: torch.device, tell: Tell) -> Measured:
    """Runs the plan. Every rank of the job calls this with the same request; all get the same result.

    Errors: CalibrationError, on every rank.
    """
    start = time.monotonic()
    tasks = plan(request)
    biggest = max((*request.world_sizes, *request.hold_out))
    if biggest > ranks.world_size:
        raise CalibrationError(
            f"a world size of {biggest} was asked for and the job has {ranks.world_size} ranks",
            todo="start it with torchrun --nproc-per-node at least that, or give other --world-sizes",
        )
    most = min(ranks.run(lambda: _fitting(request.most, device)))
    groups = {n: _group(n, ranks.world_size) for n in sorted({task.world_size for task in tasks})}
    room = max(message_bytes(most, n) for n in (*groups, ranks.world_size))
    buffers = _everywhere(ranks, lambda: Buffers.of(room, device))

    tell(0.0, "matrix products and copies")
    tflops = min(ranks.run(lambda: gemm_tflops(device)))
    bandwidth = min(ranks.run(lambda: copy_gb_s(device)))

    rows, skipped = [], 0
    for number, task in enumerate(tasks):
        late = task.spare and any(ranks.share(time.monotonic() - start > request.seconds))
        if late or task.size > most:
            skipped += 1
            continue
        tell(number / len(tasks), f"{task.kind} on {task.world_size} ranks")
        rows.append(_measure_one(task, groups[task.world_size], ranks, buffers, device))

    found = {}
    if request.overlap and device.type == "cuda":
        sizes = [size for size in OVERLAP_BYTES if size <= most]
        found = _measure_overlap(request.kinds, sizes, ranks, buffers, device, tell)
    rows.sort(key=lambda row: (row.world_size, request.kinds.index(row.kind), row.bytes))
    return Measured(tuple(rows), tflops, bandwidth, found, time.monotonic() - start, skipped)


def _measure_overlap(
    kinds: Sequence[str],
    sizes: Sequence[int],
    ranks: Together,
    buffers: Buffers,
    device: torch.device,
    tell: Tell,
) -> dict[str, tuple[Contention, ...]]:
    """Collectives of all ranks beside kernels."""
    gemm = make_load(gemm_call(EDGE, device), ranks, device)
    copy = make_load(copy_call(COPY_BYTES, device), ranks, device)
    found = {}
    for kind in kinds:
        tell(1.0, f"{kind} beside kernels")
        rows = []
        for size in sizes:
            call = make_call(kind, message_bytes(size, ranks.world_size), None, ranks.world_size, buffers)
            rows.append(measure_beside(call, size, gemm, copy, ranks, device))
        found[kind] = contention_rows(rows)
    return found


def profile_of_measured(measured: Measured, topology: Topology, hold_out: Sequence[int], source: str) -> Profile:
    """Returns the profile that fits the measurements. hold_out: world sizes that the fit leaves out."""
    points, _ = split_points(measured.points, hold_out)
    profile = make_profile(topology, points, measured.launch_us, source)
    return replace(
        profile,
        gemm_tflops=float(f"{measured.gemm_tflops:.4g}"),
        copy_gb_s=float(f"{measured.copy_gb_s:.4g}"),
        contention=measured.contention,
    )


def csv_text(rows: Sequence[Row]) -> str:
    """Returns the rows as CSV, as `profile.read_points` reads them."""
    lines = ["collective,world_size,bytes,time_us,launch_us"]
    lines += [f"{r.kind},{r.world_size},{r.bytes},{r.time_us:.2f},{r.launch_us:.2f}" for r in rows]
    return "\n".join(lines) + "\n"


def _measure_one(task: _Task, group: Any, ranks: Together, buffers: Buffers, device: torch.device) -> Row:
    size = message_bytes(task.size, task.world_size)
    calls, replays = repeats(size, device)

    def own() -> tuple[list[float], float] | None:
        if ranks.rank >= task.world_size:
            return None
        call = make_call(task.kind, size, group, task.world_size, buffers)
        return device_us(call, calls, replays, device), eager_us(call, calls, device)

    found = [times for times in ranks.run(own) if times is not None]
    us = slowest([times for times, _ in found])
    return Row(task.kind, task.world_size, size, us, max(launch for _, launch in found))


def _group(world_size: int, all_ranks: int) -> Any:
    """The group of the first `world_size` ranks; None, the default one, if that is all."""
    return None if world_size == all_ranks else dist.new_group(list(range(world_size)))


def _fitting(most: int, device: torch.device) -> int:
    """`most`, or what fits into a third of the free memory."""
    if device.type != "cuda":
        return most
    free, _ = torch.cuda.mem_get_info(device)
    return min(most, free // 3)


def _everywhere(ranks: Together, make: Callable[[], Buffers]) -> Buffers:
    made: list[Buffers] = []
    ranks.run(lambda: made.append(make()))
    return made[0]


def default_world_sizes(local: int) -> tuple[int, ...]:
    """Returns 2, 4, 8, ... below the number of the node's ranks, and that number."""
    powers = itertools.takewhile(lambda n: n < local, (1 << power for power in itertools.count(1)))
    return (*powers, local)
