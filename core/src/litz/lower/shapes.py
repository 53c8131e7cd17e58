"""Lowerings of ATen's view ops, and of those that copy only because a view cannot.

Views make no operation. The size of the result is taken from the fake result where sizes are inferred or clamped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import sympy
import torch
from torch._ops import OpOverload

from litz.capture.torch_api import sympy_of
from litz.ir.index import ZERO, Expr, to_expr

from . import views
from .context import LoweringContext
from .registry import lowering
from .view import Computed, Tensor, View

aten = torch.ops.aten
prims = torch.ops.prims
Size = Sequence[int | Expr]


def meta_size(ctx: LoweringContext, output: int | None = None) -> tuple[Expr, ...]:
    """Returns the size of the node's result (of result number `output`)."""
    meta = ctx.meta if output is None else ctx.meta[output]
    return tuple(map(sympy_of, meta.shape))


def _is_view(function: Callable[..., Tensor], *ops: OpOverload, any_dtype: bool = True) -> None:
    """Enter a function of `views` as the lowering of ops with the same arguments."""

    @lowering(*ops, any_dtype=any_dtype)
    def lowered(ctx: LoweringContext, *args: Any) -> Tensor:
        return function(*args)


_is_view(lambda x: x, prims.view_of.default, aten.alias.default, aten.lift_fresh.default)
_is_view(views.permute, aten.permute.default, prims.transpose.default)
_is_view(views.squeeze, aten.squeeze.dims, prims.squeeze.default)
_is_view(views.unsqueeze, aten.unsqueeze.default)
_is_view(views.unfold, aten.unfold.default)
_is_view(views.flip, aten.flip.default, any_dtype=False)  # torch has no negative strides


@lowering(aten.view.default, aten.reshape.default, aten._reshape_copy.default, any_dtype=True)
@lowering(prims.collapse_view.default, prims.split_dim.default, any_dtype=True)
def view(ctx: LoweringContext, x: Tensor, *_: Any) -> Tensor:
    """Lowers view and reshape, to the size of the fake result: a View where strides allow one, else a copy."""
    return reshape_or_copy(ctx, x, meta_size(ctx))


@lowering(prims.reshape.default, any_dtype=True)
def prims_reshape(ctx: LoweringContext, x: Tensor, size: Size) -> Tensor:
    """Lowers prims.reshape, whose result is always a copy."""
    return ctx.copy(reshape_or_copy(ctx, x, size))


def reshape_or_copy(ctx: LoweringContext, x: Tensor, size: Size) -> Tensor:
    """Returns x reshaped. A copy is made first where Loops cannot read x and the reshape is not a strided view of x."""
    result = views.reshape(x, size, ctx.hint)
    if ctx.holds(x.dtype, x.device) or not isinstance(result, View) or result.layout() is not None:
        return result
    return views.reshape(ctx.realize(x), size, ctx.hint)


@lowering(aten.expand.default, any_dtype=True)
def expand(ctx: LoweringContext, x: Tensor, size: Size, *, implicit: bool = False) -> Tensor:
    """Lowers expand: dimensions of size 1 are repeated without a copy."""
    return views.expand(x, size)


@lowering(prims.broadcast_in_dim.default, any_dtype=True)
def broadcast_in_dim(ctx: LoweringContext, x: Tensor, size: Size, dims: Sequence[int]) -> Tensor:
    """Lowers broadcast_in_dim: dimension n of x becomes dimension dims[n] of the result, the others are repeated."""
    for dim in range(len(size)):
        if dim not in dims:
            x = views.unsqueeze(x, dim)
    return views.expand(x, size)


@lowering(aten.select.int, any_dtype=True)
def select(ctx: LoweringContext, x: Tensor, dim: int, index: int | Expr) -> Tensor:
    """Lowers select: entry `index` along `dim`, which the result lacks."""
    return views.select(x, dim, selected(ctx, x, dim, index))


def selected(ctx: LoweringContext, x: Tensor, dim: int, index: int | Expr) -> Expr:
    """Returns the position `index` of dimension `dim`, counted from the front. The run checks the position where the
    extent depends on data."""
    extent = x.size[views.canonical_dim(dim, x.ndim)]
    position = views.from_front(index, extent)
    message = f"select(): index {index} out of range for size {extent} at dimension {dim}"
    for condition in (sympy.Ge(position, 0), sympy.Lt(position, extent)):
        ctx.promises.require(condition, message, IndexError)
    return position


@lowering(aten.slice.Tensor, any_dtype=True)
def slice_(
    ctx: LoweringContext,
    x: Tensor,
    dim: int = 0,
    start: int | Expr | None = None,
    end: int | Expr | None = None,
    step: int | Expr = 1,
) -> Tensor:
    """Lowers slice: every `step`-th entry along `dim` from `start` on; the size is the fake result's."""
    dim = views.canonical_dim(dim, x.ndim)
    first = slice_start(ctx, start, x.size[dim])
    return views.narrow(x, dim, first, meta_size(ctx)[dim], step)


def slice_start(ctx: LoweringContext, start: int | Expr | None, extent: Expr) -> Expr:
    """Returns where a slice begins: a negative start counts from the end, and the start is held within the extent, as
    in eager."""
    if start is None:
        return to_expr(0)
    first = to_expr(start)
    if first.is_Integer and extent.is_Integer:
        return to_expr(slice(int(first), None).indices(int(extent))[0])
    if first.is_negative:
        first = first + extent
    if first.is_nonnegative and (extent - first).is_nonnegative:
        return first
    # The result's size was made by comparing, so the guards that decide these are there already.
    if ctx.decide(first < ZERO):
        first = first + extent if not to_expr(start).is_negative else ZERO
    return extent if ctx.decide(first > extent) else first


@lowering(aten.split_with_sizes.default, any_dtype=True)
def split(ctx: LoweringContext, x: Tensor, sizes: object, dim: int = 0) -> tuple[Tensor, ...]:
    """Lowers split_with_sizes: consecutive pieces along `dim`, of the sizes of the node's fake results."""
    dim = views.canonical_dim(dim, x.ndim)
    lengths = [meta_size(ctx, number)[dim] for number in range(len(ctx.meta))]
    starts = accumulate(lengths, initial=ZERO)
    return tuple(views.narrow(x, dim, start, length) for start, length in zip(starts, lengths))


@lowering(aten.diagonal.default, any_dtype=True)
def diagonal(ctx: LoweringContext, x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Lowers diagonal: a View whose last dimension walks both dimensions at once."""
    return views.diagonal(x, offset, dim1, dim2, meta_size(ctx)[-1])


@lowering(aten.as_strided.default, any_dtype=True)
def as_strided(
    ctx: LoweringContext, x: Tensor, size: Size, stride: Size, storage_offset: int | Expr | None = None
) -> Tensor:
    """Lowers as_strided on a buffer whose storage begins where the buffer does. Errors: NotImplementedError for other
    storage, for views that are not strided, and for positions beyond the end of the buffer."""
    sizes, strides = tuple(map(to_expr, size)), tuple(map(to_expr, stride))
    if isinstance(x, Computed):
        # A buffer of its own, laid out as in eager, so that offsets mean the same.
        x = ctx.realize(x, ctx.meta_strides(x.size))
    assert isinstance(x, View)
    begin = ctx.storage_offsets.get(x.buffer.name, ZERO)
    if begin is None:
        raise NotImplementedError("as_strided on a tensor whose storage begins elsewhere")
    if storage_offset is None:
        layout = x.layout()
        if layout is None:
            raise NotImplementedError("as_strided of a view that is not strided")
        offset = layout.offset
    else:
        offset = to_expr(storage_offset) - begin
    found = views.as_strided(x, sizes, strides, offset, ctx.hint)
    if found is None:
        raise NotImplementedError("as_strided on a buffer that is not dense, or beyond its end")
    return found
