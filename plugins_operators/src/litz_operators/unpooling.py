"""Lowerings of what puts values at the places that a max pool found: max_unpool, and the gradients of adaptive and
fractional max pools. A place is a position in the flattened plane (2 dimensions) or volume (3); one outside of it is
an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from litz.ir.index import Expr, product, to_expr
from litz.ir.operation import StoreMode
from litz.lower import (
    Indices,
    LoweringContext,
    Position,
    Tensor,
    View,
    checked,
    extents_of,
    reshape,
)

from .scatter import put_in_zeros
from .table import of_ranks


def put_in_planes(
    ctx: LoweringContext, values: Tensor, places: Tensor, size: Sequence[Expr], ndim: int, mode: StoreMode
) -> Tensor:
    """A tensor of `size`, zeros but for `values`, each stored (or added, by `mode`) at its place in the flattened last
    `ndim` dimensions. values, places: of one shape, which begins as `size` does."""
    lead = len(size) - ndim
    plane = product(size[lead:])

    def flat(target: View) -> Tensor:
        return reshape(target, [*size[:lead], plane], ctx.hint)

    def where(indices: Indices) -> list[Position]:
        ranges = extents_of(indices, values.size)
        return [*indices[:lead], checked(ctx, places.load(indices), plane, ranges, None)]

    return put_in_zeros(ctx, values, size, where, mode, flat)


def max_unpool(
    ndim: int, ctx: LoweringContext, x: Tensor, places: Tensor, output_size: Sequence[int | Expr], *_: Any
) -> Tensor:
    """Lowers max unpooling: zeros of `output_size`, with x at the places that the pool found."""
    return put_in_planes(ctx, x, places, (*x.size[: x.ndim - ndim], *map(to_expr, output_size)), ndim, "set")


def max_pool_backward(ndim: int, ctx: LoweringContext, grad: Tensor, x: Tensor, *rest: Any) -> Tensor:
    """Lowers the gradients of adaptive and fractional max pooling: each is added at the place of its window's greatest
    element. rest: window and output sizes, which are not needed, and the places last."""
    return put_in_planes(ctx, grad, rest[-1], x.size, ndim, "add")


LOWERINGS = {
    **of_ranks((2, 3), "aten.max_unpool{}d.default", max_unpool),
    **of_ranks((2, 3), "aten.adaptive_max_pool{}d_backward.default", max_pool_backward),
    **of_ranks((2, 3), "aten.fractional_max_pool{}d_backward.default", max_pool_backward),
}
