"""What a product of few rows takes on a processor: as a loop that makes its weights on the way, and as the library's
call on weights that were written out. In: sizes and a target. Out: two estimates.

A processor differs from the one that was measured, so the figures serve to compare two ways of doing one product, which
meet the same processor, and a margin is left between them. The file for AVX-512 has the library's bfloat16 with
instructions for it, the fastest there is short of AMX, which has no file.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from litz.target import Room, figures_of, rate_kind
from litz.target.times import NONE, Limit, time_of
from litz_plugins import Estimate, Share, Target

MEASURED = (1, 2, 4, 8, 16)
"""Rows whose products were measured."""
AT_A_TIME = 8
"""Rows in one walk along the weights."""


@dataclass(frozen=True)
class MarginFigures(Room):
    """Figures of two ways of products of few rows, which `figures/any/few_rows_margin.toml` explains."""

    table = "few_rows_margin"
    loop_times: float
    library_share: float


@dataclass(frozen=True)
class FewRowFigures(Room):
    """Nanoseconds of one thread for each weight, which `figures/cpu-avx2.toml` explains; None where nobody measured."""

    table = "few_rows"
    multiply_add_ns: float = 0.0
    node_ns: float = 0.0
    written_ns: float = 0.0
    far_ns: float = 0.0
    packed_ns: float = 0.0
    fp32_library_ns: tuple[float, ...] | None = None
    bf16_library_ns: tuple[float, ...] | None = None


@dataclass(frozen=True)
class FewRowsProblem:
    """A product of `rows` activations of type `dtype` with so many weights; nodes: operations that make one. lanes:
    weights in an element of storage."""

    rows: int
    weights: int
    dtype: torch.dtype
    nodes: float
    lanes: int = 1


def compare(problem: FewRowsProblem, on: Target) -> tuple[Estimate, Estimate] | None:
    """Returns the estimates of the loop and of the library's product; None where the library's speed is unknown."""
    known = figures_of(on, FewRowFigures)
    library = {"fp32": known.fp32_library_ns, "bf16": known.bf16_library_ns}.get(rate_kind(problem.dtype))
    if library is None:
        return None
    limits = figures_of(on, MarginFigures)
    share = problem.weights * 1e-3 / on.units
    walks = -(-problem.rows // AT_A_TIME)
    own = share * (known.node_ns * problem.nodes * walks + known.multiply_add_ns * problem.rows)
    product = [time for rows, time in zip(MEASURED, library, strict=True) if rows <= problem.rows][-1]
    written = known.packed_ns if problem.lanes > 1 else known.written_ns
    if problem.weights * problem.dtype.itemsize > on.cache_bytes:
        written = max(written, known.far_ns * problem.dtype.itemsize)
    other = share * (product + written)
    surely = Share(1 / limits.library_share, 1.0, 1 / limits.loop_times)
    ways = (
        Limit(own, surely, f"{problem.rows} rows, {problem.nodes:.3g} operations a weight"),
        Limit(other, surely, "the library's product of weights that are written out"),
    )
    loop, call = (time_of((way,), on, NONE) for way in ways)
    return loop, call


__all__ = ["FewRowsProblem", "compare"]
