"""Conditions on positions, and reads under them: what padding, pooling, indexing and scattering have in common.

In: positions (index expressions or int64 nodes) and the extents of the loop variables in them. Out: bool nodes that
say whether a position lies inside of a tensor, with None for "always", as far as that can be proved; and loads.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch

from litz.ir import Node, build
from litz.ir.index import ZERO, Expr, Ranges, bounds, known_less, known_nonnegative, placeholder
from litz.ir.intervals import Intervals

from .context import Indices, LoweringContext
from .view import Position, Tensor, View, as_position


def extents_of(indices: Indices, size: Sequence[Expr]) -> dict[Expr, Expr]:
    """Returns the extent of each loop variable among `indices`."""
    return {index: extent for index, extent in zip(indices, size, strict=True) if index.is_Symbol}


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


def used(ctx: LoweringContext, output: int) -> bool:
    """Returns whether the graph uses result number `output` of the node that is being lowered."""
    users = ctx.node.users
    return not users or any(user.op == "output" or user.args[1:] == (output,) for user in users)
