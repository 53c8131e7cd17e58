"""Conditions on positions, and reads under them: what padding, pooling, indexing and scattering have in common.

In: positions (index expressions or int64 nodes) and the extents of the loop variables in them. Out: bool nodes that
say whether a position lies inside of a tensor, with None for "always", as far as that can be proved; and loads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from itertools import product

import torch

from litz.ir import Node, build
from litz.ir.dtypes import compute_dtype
from litz.ir.index import ONE, ZERO, Expr, Ranges, bounds, known_less, known_nonnegative, mod, placeholder, to_expr
from litz.ir.intervals import Intervals

from .context import Indices, LoweringContext
from .view import Position, Tensor, View, as_position, combined

MAX_UNROLLED = 25
"""The most taps of a window (5 by 5) that are written out as loads of their own; a larger window is a reduction."""


def extents_of(indices: Indices, size: Sequence[Expr]) -> dict[Expr, Expr]:
    """Returns the extent of each loop variable among `indices`."""
    return {index: extent for index, extent in zip(indices, size, strict=True) if index.is_Symbol}


def static(size: Sequence[Expr]) -> list[int]:
    """Returns the extents as numbers. Errors: NotImplementedError if one of them is symbolic or 0."""
    if not all(extent.is_Integer and extent != 0 for extent in size):
        raise NotImplementedError("symbolic or empty sizes")
    return [int(extent) for extent in size]


def as_node(position: Position | int) -> Node:
    """Returns a position as an int64 node."""
    return position if isinstance(position, Node) else build.index(position)


def compare(kind: str, left: Position | int, right: Position | int) -> Node:
    """Returns the condition `left kind right` on positions; kind is lt, le, gt, ge, eq or ne."""
    return build.call(kind, as_node(left), as_node(right))


def all_of(conditions: Sequence[Node | None]) -> Node | None:
    """Returns the conjunction of conditions; None if all of them always hold."""
    return reduce(build.logical_and, conditions, None)


def at_least(position: Expr, low: int | Expr, ranges: Ranges) -> Node | None:
    """Returns the condition low <= position; None if every point of the ranges fulfils it."""
    least = bounds(position - low, ranges)[0]
    if least is not None and known_nonnegative(least):
        return None
    return compare("ge", position, low)


def less_than(position: Expr, high: int | Expr, ranges: Ranges) -> Node | None:
    """Returns the condition position < high; None if every point of the ranges fulfils it."""
    greatest = bounds(position - high, ranges)[1]
    if greatest is not None and known_less(greatest, ZERO):
        return None
    return compare("lt", position, high)


def divisible(position: Expr, number: int, ranges: Ranges) -> Node | None:
    """Returns the condition that `number` divides the position; None if every point of the ranges fulfils it."""
    return less_than(mod(position, to_expr(number), ranges), ONE, ranges) if number != 1 else None


def inside(position: Expr, size: int | Expr, ranges: Ranges) -> Node | None:
    """Returns the condition 0 <= position < size; None if every point of the ranges fulfils it."""
    return build.logical_and(at_least(position, ZERO, ranges), less_than(position, size, ranges))


def masked_load(x: Tensor, indices: Sequence[Position], mask: Node | None, fill: bool | int | float = 0) -> Node:
    """Returns the element of `x` at `indices`, or `fill` where `mask` does not hold (nothing is read there)."""
    value = x.load(indices, mask)
    if mask is None or (fill == 0 and isinstance(x, View)):
        return value
    return build.call("where", mask, value, build.const(fill, x.dtype))


def checked(
    ctx: LoweringContext, index: Node, size: Expr, ranges: Ranges, dim: int | None, *, wrap: bool = False
) -> Position:
    """The value of an index tensor as a position along dimension `dim` (None: all of them, flattened), of `size`; an
    error at run time if it is out of range.

    wrap: negative values count from the end. Neither is done where it provably need not be.
    """
    index = build.cast(index, torch.int64)
    position = as_position(index)
    if not isinstance(position, Node):
        low, high = bounds(position, ranges)
        if low is not None and known_nonnegative(low):
            wrap = False
            if high is not None and known_less(high, size):
                return position
        elif low is not None and high is not None and known_less(high, ZERO) and wrap:
            if known_nonnegative(low + size):
                return position + size
    intervals = Intervals(ranges, ctx.contents)
    low = intervals.of(index).low
    if wrap and not (low is not None and known_nonnegative(low)):
        behind = build.call("add", index, build.index(size))
        index = build.call("where", build.call("lt", index, build.const(0, index.dtype)), behind, index)
    if intervals.inside(placeholder(0), (index,), None, size):
        return index
    return build.bounded(index, size, f"dimension {dim} in {ctx.op}" if dim is not None else ctx.op)


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


def used(ctx: LoweringContext, output: int) -> bool:
    """Does anything in the graph use result number `output` of the node that is being lowered?"""
    users = ctx.node.users
    return not users or any(user.op == "output" or user.args[1:] == (output,) for user in users)
