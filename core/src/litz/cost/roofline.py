"""The roofline: in, an operation, its Program and a device; out, an `Estimate` of its time in microseconds.

    time = max(FLOPs / rate, bytes / bandwidth) + launch

Peaks are never reached, so each is multiplied by what kernels of the kind reach of it (`Target.shares`): usually
(`us`), at best (`low_us`) and at worst (`high_us`). A figure from a calibration file was reached by a real kernel, so
it is used as it is for the usual time. Williams, Waterman and Patterson, "Roofline: an insightful visual performance
model", 2009.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from litz.ir import Collective, Program
from litz.target import CacheFigures, figures_of, rate_kind
from litz.target.times import Limit, RooflineFigures, launches, longest, memory, second_level, time_of
from litz_plugins import Estimate, Share, Target

from .work import Work, count_work


def estimate(operation: Any, target: Target, program: Program) -> Estimate | None:
    """Returns core's answer to `litz_estimate_runtime`; None for a Collective, whose time depends on the network. The
    estimate of a CPU that nobody measured is 0."""
    if isinstance(operation, Collective):
        return None
    if target.rough and not target.measured:
        # The cost of a CPU graph depends on its processor, of which no table knows enough; only measuring helps.
        return Estimate(0.0, 0.0, 0.0, "a CPU costs nothing here until it is measured: `litz calibrate cpu`")
    return estimate_work(count_work(operation, program, target), target)


def estimate_work(work: Work, on: Target, cold: float = 0.0) -> Estimate:
    """Returns the time of so many FLOPs and bytes on a machine; 0 µs for work of kind "none". cold: bytes that come
    from memory at best, too."""
    if work.kind == "none":
        return Estimate(0.0, 0.0, 0.0, "nothing to run: a view, an allocation or no elements")
    bounds = [_memory(work, on, cold), _compute(work, on)]
    if work.alone:  # the rest waits for what one unit has to do alone
        bounds.append(
            second_level(work.alone, on, 1 / on.units, why=f"one unit alone reads {_scaled(work.alone, 'B')}")
        )
    first, launch = longest(bounds), on.launch_us * work.launches
    why = f"launch-bound ({launch:.3g} µs; {first.why})" if first.at("usual") < launch else first.why
    spread = figures_of(on, RooflineFigures).cpu_times if on.rough else 1.0
    return time_of(bounds, on, launches(work.launches, on), spread=spread, why=why)


def _memory(work: Work, on: Target, cold: float) -> Limit:
    """The limit of the traffic. At best the cache has what fits."""
    share = _shares(on.shares["memory"], "bandwidth_gb_s" in on.measured, on)
    why = f"memory-bound: {_scaled(work.total_bytes, 'B')} at {on.bandwidth / 1e3:.4g} GB/s"
    found = memory(work.total_bytes, on, share, why=why)
    if work.total_bytes <= on.cache_bytes:
        far = min(memory(cold, on).us, found.us)
        found = replace(found, best_us=far + (found.us - far) / figures_of(on, CacheFigures).left_times)
    if work.kind == "other":
        worst = min(share.worst, 1 / figures_of(on, RooflineFigures).unknown_times)
        found = replace(found, share=replace(share, worst=worst))
    return found


def _compute(work: Work, on: Target) -> Limit:
    """The limit of the arithmetic. A contraction too small to fill the machine runs at a part of its rate."""
    total, measured, longest_us, text = 0.0, True, 0.0, ""
    for dtype, flops in work.flops.items():
        rate, figure = _rate(work, dtype, on)
        if work.pieces:
            rate *= min(1.0, work.pieces / on.units)
        total += flops / rate
        measured = measured and figure in on.measured
        if flops / rate >= longest_us:
            longest_us = flops / rate
            text = f"{_scaled(work.total_flops, 'FLOP')} at {rate / 1e6:.4g} TFLOP/s {figure.partition('.')[2]}"
    # What was measured is how fast ordinary work goes; only contractions are measured as contractions.
    measured = measured and bool(work.flops) and work.kind != "loop"
    return Limit(total, _shares(on.shares[work.kind], measured, on), f"compute-bound: {text}")


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
