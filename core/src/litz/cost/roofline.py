"""The roofline: in, an operation, its Program and a device; out, an `Estimate` of its time in microseconds.

    time = max(FLOPs / rate, bytes / bandwidth) + launch

Peaks are never reached, so each is multiplied by what kernels of the kind reach of it (`Target.shares`): usually
(`us`), at best (`low_us`) and at worst (`high_us`). A figure from a calibration file was reached by a real kernel, so
it is used as it is for the usual time. Williams, Waterman and Patterson, "Roofline: an insightful visual performance
model", 2009.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from litz.ir import Collective, Program
from litz.target import CacheFigures, Room, figures_of, rate_kind
from litz_plugins import Estimate, Share, Target

from .work import Work, count_work


@dataclass(frozen=True)
class RooflineFigures(Room):
    """Figures of the roofline, which `target/figures/any/roofline.toml` explains."""

    table = "roofline"
    launch_share: tuple[float, float, float]
    unknown_times: float
    cpu_times: float
    measured_times: float


def estimate(operation: Any, target: Target, program: Program) -> Estimate | None:
    """Returns core's answer to `litz_estimate_runtime`; None for a Collective, whose time depends on the network. The
    estimate of a CPU that nobody measured is 0."""
    if isinstance(operation, Collective):
        return None
    if target.rough and not target.measured:
        # The cost of a CPU graph depends on its processor, of which no table knows enough; only measuring helps.
        return Estimate(0.0, 0.0, 0.0, "a CPU costs nothing here until it is measured: python -m litz_tools.calibrate")
    return estimate_work(count_work(operation, program), target)


def estimate_work(work: Work, on: Target, cold: float = 0.0) -> Estimate:
    """Returns the time of so many FLOPs and bytes on a machine; 0 µs for work of kind "none". cold: bytes that come
    from memory at best, too."""
    if work.kind == "none":
        return Estimate(0.0, 0.0, 0.0, "nothing to run: a view, an allocation or no elements")
    limits, caches = figures_of(on, RooflineFigures), figures_of(on, CacheFigures)
    memory, memory_share, memory_text = _memory(work, on)
    compute, compute_share, compute_text = _compute(work, on)
    bound = max(memory / memory_share.usual, compute / compute_share.usual)
    far = min(cold / on.bandwidth, memory)
    cached = far + (memory - far) / caches.left_times if work.total_bytes <= on.cache_bytes else memory
    low = max(cached / memory_share.best, compute / compute_share.best)
    high = max(memory / memory_share.worst, compute / compute_share.worst)
    # The rest waits for what one unit has to do alone.
    alone = work.alone * on.units / (caches.second_level_times * on.bandwidth)
    bound, low, high = max(bound, alone), max(low, alone), max(high, alone)
    if work.kind == "other":
        high = max(high, limits.unknown_times * memory)
    launch, (fastest, _, slowest) = on.launch_us * work.launches, limits.launch_share
    us, low, high = bound + launch, low + fastest * launch, high + slowest * launch
    if on.rough:
        low, high = low / limits.cpu_times, high * limits.cpu_times
    why = memory_text if memory / memory_share.usual >= compute / compute_share.usual else compute_text
    if alone > max(memory / memory_share.usual, compute / compute_share.usual):
        why = f"one unit alone reads {_scaled(work.alone, 'B')}"
    if bound < launch:
        why = f"launch-bound ({launch:.3g} µs; {why})"
    return Estimate(us, min(low, us), max(high, us), why)


def _memory(work: Work, on: Target) -> tuple[float, Share, str]:
    """(µs at the given bandwidth, shares of it, text)."""
    text = f"memory-bound: {_scaled(work.total_bytes, 'B')} at {on.bandwidth / 1e3:.4g} GB/s"
    return work.total_bytes / on.bandwidth, _shares(on.shares["memory"], "bandwidth_gb_s" in on.measured, on), text


def _compute(work: Work, on: Target) -> tuple[float, Share, str]:
    """Returns the time of the arithmetic, as `_memory` does for the traffic. A contraction too small to fill the
    machine runs at a part of its rate."""
    total, measured, longest, text = 0.0, True, 0.0, ""
    for dtype, flops in work.flops.items():
        rate, figure = _rate(work, dtype, on)
        if work.pieces:
            rate *= min(1.0, work.pieces / on.units)
        total += flops / rate
        measured = measured and figure in on.measured
        if flops / rate >= longest:
            longest = flops / rate
            text = f"{_scaled(work.total_flops, 'FLOP')} at {rate / 1e6:.4g} TFLOP/s {figure.partition('.')[2]}"
    share = on.shares[work.kind]
    # What was measured is how fast ordinary work goes; only contractions are measured as contractions.
    shares = _shares(share, measured and bool(work.flops) and work.kind != "loop", on)
    return total, shares, f"compute-bound: {text}"


def _rate(work: Work, dtype: torch.dtype, on: Target) -> tuple[float, str]:
    if work.kind in ("loop", "other"):
        return on.vector_rate(rate_kind(dtype))
    return on.matrix_rate(rate_kind(dtype), "convolution" if work.kind == "convolution" else "matmul")


def _shares(share: Share, measured: bool, on: Target) -> Share:
    """Returns the shares of a speed: of a measured one the usual share is all, and the best and the worst move
    along."""
    if not measured:
        return share
    most = figures_of(on, RooflineFigures).measured_times
    return Share(min(most, share.best / share.usual), 1.0, share.worst / share.usual)


def _scaled(count: float, unit: str) -> str:
    power = 0
    while count >= 1000 and power < 4:
        count, power = count / 1000, power + 1
    return f"{count:.3g} {('', 'k', 'M', 'G', 'T')[power]}{unit}"
