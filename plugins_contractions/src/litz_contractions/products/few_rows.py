"""What a product of few rows takes on a processor: as a loop that makes its weights on the way, and as the library's
call on weights that were written out. In: sizes and a `FewRows`. Out: two estimates."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from litz.target import Room, figures_of, rate_kind
from litz_plugins import Estimate, Target

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
    known = on.few_rows
    if known is None:
        return None
    library = known.library.get(rate_kind(problem.dtype))
    if library is None:
        return None
    limits = figures_of(on, MarginFigures)
    share = problem.weights * 1e-3 / on.units
    walks = -(-problem.rows // AT_A_TIME)
    own = share * (known.node * problem.nodes * walks + known.multiply_add * problem.rows)
    product = [time for rows, time in zip(MEASURED, library, strict=True) if rows <= problem.rows][-1]
    written = known.packed if problem.lanes > 1 else known.written
    if problem.weights * problem.dtype.itemsize > on.cache_bytes:
        written = max(written, known.far * problem.dtype.itemsize)
    other = share * (product + written)
    why = f"{problem.rows} rows, {problem.nodes:.3g} operations a weight"
    return (
        Estimate(own, own * limits.library_share, own * limits.loop_times, why),
        Estimate(
            other,
            other * limits.library_share,
            other * limits.loop_times,
            "the library's product of weights that are written out",
        ),
    )


__all__ = ["FewRowsProblem", "compare"]
