"""Lowerings of the gradients of padding by replication and by reflection.

Each element adds up its own gradient and those of the elements that were copied from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from litz.ir import Node, build
from litz.ir.dtypes import compute_dtype
from litz.ir.index import ZERO, Expr, Ranges, to_expr
from litz.lower import (
    Indices,
    LoweringContext,
    Tensor,
    at_least,
    combined,
    compare,
    extents_of,
    less_than,
    masked_load,
)

from .table import of_ranks

MAX_PLACES = 27
"""The most elements of a padded gradient that one element of the result adds up."""


def _replicated(where: Expr, extent: Expr, left: int, right: int, ranges: Ranges) -> list[tuple[Expr, Node]]:
    """Returns the places in grad that replicate an element at an edge, each with the condition that the element is at
    that edge."""
    at_first, at_last = compare("eq", where, ZERO), compare("eq", where, extent - 1)
    first = [(to_expr(step), at_first) for step in range(left)]
    return [*first, *((extent + left + step, at_last) for step in range(right))]


def _reflected(where: Expr, extent: Expr, left: int, right: int, ranges: Ranges) -> list[tuple[Expr, Node | None]]:
    """Returns the places in grad that mirror an element at either edge, each with its condition."""
    found: list[tuple[Expr, Node | None]] = []
    if left:
        mirrored = build.logical_and(at_least(where, 1, ranges), less_than(where, left + 1, ranges))
        found.append((left - where, mirrored))
    if right:
        mirrored = build.logical_and(at_least(where, extent - 1 - right, ranges), less_than(where, extent - 1, ranges))
        found.append((left + 2 * (extent - 1) - where, mirrored))
    return found


def pad_backward(
    ndim: int, ctx: LoweringContext, grad: Tensor, x: Tensor, padding: Sequence[int], *, copies: Any
) -> Tensor:
    """Lowers the gradient of padding: for each element of `x`, the sum of `grad` at its own place and at those that
    were copied from it.

    copies(position, extent, left, right, ranges): (place in grad, condition) pairs along one dimension.
    """
    if any(not isinstance(extent, int) or extent < 0 for extent in padding):
        raise NotImplementedError("padding that is symbolic or negative")
    outer = x.ndim - ndim
    wide = compute_dtype(grad.dtype)

    def body(indices: Indices) -> Node:
        ranges = extents_of(indices, x.size)
        found: list[tuple[list[Expr], Node | None]] = [(list(indices[:outer]), None)]
        for dim in range(outer, x.ndim):
            pair = 2 * (x.ndim - 1 - dim)
            left, right = padding[pair : pair + 2]
            along = [(indices[dim] + left, None), *copies(indices[dim], x.size[dim], left, right, ranges)]
            if len(found) * len(along) > MAX_PLACES:
                raise NotImplementedError("padding so wide that the library does better")
            found = [
                ([*position, place], build.logical_and(mask, condition))
                for position, mask in found
                for place, condition in along
            ]
        return combined("add", [build.cast(masked_load(grad, position, mask), wide) for position, mask in found])

    return ctx.pointwise(x.size, x.dtype, x.device, body)


LOWERINGS = {
    **of_ranks((1, 2, 3), "aten.replication_pad{}d_backward.default", pad_backward, copies=_replicated),
    **of_ranks((1, 2, 3), "aten.reflection_pad{}d_backward.default", pad_backward, copies=_reflected),
}
