"""Sums over the taps of a window: what pools, folds and the gradients of resampling have in common."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import product

from litz.ir import Node, build
from litz.ir.dtypes import compute_dtype
from litz.ir.index import Expr, Ranges, to_expr
from litz.lower import Indices, LoweringContext, Tensor, View, combined, extents_of

MAX_UNROLLED = 25
"""The most taps of a window (5 by 5) that are written out as loads of their own; a larger window is a reduction."""


def static(size: Sequence[Expr]) -> list[int]:
    """Returns the extents as numbers. Errors: NotImplementedError if one of them is symbolic or 0."""
    if not all(extent.is_Integer and extent != 0 for extent in size):
        raise NotImplementedError("symbolic or empty sizes")
    return [int(extent) for extent in size]


def sum_taps(
    ctx: LoweringContext,
    size: Sequence[Expr],
    taps: Sequence[int],
    tensor: Tensor,
    tap: Callable[[Indices, Indices, Ranges], Node],
    then: Callable[[Indices, Node], Node] = lambda _, total: total,
) -> View:
    """Returns a new tensor of `size`: at `indices` the sum of `tap(indices, position, ranges)` over all positions in a
    window.

    taps: the window's extents. tap: nodes of the dtype that is summed in, 0 where there is nothing to add; ranges:
    of the variables among its indices. then: turns a sum into the element. The result has the dtype and device of
    `tensor`. Small windows are written out, larger ones are a reduction.
    """
    inner_size = tuple(map(to_expr, taps))

    def at(indices: Indices, position: Indices) -> Node:
        return tap(indices, position, extents_of((*indices, *position), (*size, *inner_size)))

    def unrolled(indices: Indices) -> Node:
        if 0 in taps:
            return then(indices, build.const(0, compute_dtype(tensor.dtype)))
        return then(indices, combined("add", (at(indices, position) for position in window_positions(taps))))

    def reduced(indices: Indices, inner: Indices) -> Node:
        return then(indices, build.reduce("sum", at(indices, inner)))

    if math.prod(taps) <= MAX_UNROLLED:
        return ctx.pointwise(size, tensor.dtype, tensor.device, unrolled)
    return ctx.reduction(size, inner_size, [tensor.dtype], tensor.device, reduced)[0]


def window_positions(taps: Sequence[int]) -> Iterable[Indices]:
    """Yields every position in a window, in row-major order."""
    return product(*(map(to_expr, range(extent)) for extent in taps))
