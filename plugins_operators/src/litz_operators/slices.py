"""Lowerings of what takes elements by where they lie: slices, entries and diagonals laid over a tensor (what a write
through a view is to autograd), pads with a constant, roll, and copies of views.

A loop chooses for each element by its position, so that what is chosen from fuses with what comes before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch

from litz.capture import torch_api
from litz.ir import Layout, Node, build
from litz.ir.index import ZERO, Expr, floordiv, mod, to_expr
from litz.lower import (
    Indices,
    LoweringContext,
    Tensor,
    View,
    all_of,
    at_least,
    canonical_dim,
    compare,
    core_lowerings,
    extents_of,
    inside,
    less_than,
    lowering,
    masked_load,
    meta_size,
)
from litz.lower.shapes import selected, slice_start
from litz.lower.strides import layout_of, overlap
from litz.lower.view import ranges_of, variables
from litz.lower.views import as_strided, from_front

aten = torch.ops.aten
SLICE = "expected src to have a size equal to the slice of self"


def replaced(
    ctx: LoweringContext, x: Tensor, source: Tensor, at: Callable[[Indices], tuple[Node | None, Sequence[Expr]]]
) -> View:
    """Returns a tensor like x with elements of `source`: at(indices) says under which condition, and which. The result
    has x's strides, as in eager. NotImplementedError where its elements overlap (x was unfolded): what a place holds
    then depends on the order in which eager writes."""
    if overlap(layout_of(ctx.meta), ctx.hint):
        raise NotImplementedError("a result whose elements overlap")

    def body(indices: Indices) -> Node:
        mask, position = at(indices)
        chosen = build.cast(source.load(position, mask), x.dtype)
        return chosen if mask is None else build.call("where", mask, chosen, x.load(indices))

    return ctx.pointwise(x.size, x.dtype, x.device, body)


@lowering(moves=True)
def select_scatter(ctx: LoweringContext, x: Tensor, source: Tensor, dim: int, index: int | Expr) -> Tensor:
    """Lowers select_scatter: x with entry `index` along `dim` replaced by `source`."""
    dim = canonical_dim(dim, x.ndim)
    where = selected(ctx, x, dim, index)
    ctx.same_size(source.size, (*x.size[:dim], *x.size[dim + 1 :]), SLICE)

    def at(indices: Indices) -> tuple[Node, list[Expr]]:
        return compare("eq", indices[dim], where), [*indices[:dim], *indices[dim + 1 :]]

    return replaced(ctx, x, source, at)


@lowering(moves=True)
def slice_scatter(
    ctx: LoweringContext,
    x: Tensor,
    source: Tensor,
    dim: int = 0,
    start: int | Expr | None = None,
    end: int | Expr | None = None,
    step: int | Expr = 1,
) -> Tensor:
    """Lowers slice_scatter: x with `source` in place of a slice. The extent of `source` says where the slice ends."""
    dim = canonical_dim(dim, x.ndim)
    first, stride = slice_start(ctx, start, x.size[dim]), to_expr(step)
    length = source.size[dim]
    last = x.size[dim] if end is None else from_front(end, x.size[dim])
    most = floordiv(sympy.Max(first, sympy.Min(last, x.size[dim])) - first + stride - 1, stride)
    ctx.same_size((length,), (most,), SLICE)

    def at(indices: Indices) -> tuple[Node | None, list[Expr]]:
        ranges = extents_of(indices, x.size)
        offset = indices[dim] - first
        conditions = [at_least(offset, 0, ranges), less_than(offset, length * stride, ranges)]
        if stride != 1:
            conditions.append(compare("eq", mod(offset, stride, ranges), 0))
        return all_of(conditions), [*indices[:dim], floordiv(offset, stride, ranges), *indices[dim + 1 :]]

    return replaced(ctx, x, source, at)


@lowering(moves=True)
def diagonal_scatter(
    ctx: LoweringContext, x: Tensor, source: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    """Lowers diagonal_scatter: x with a diagonal of two of its dimensions replaced by `source`."""
    row, column = canonical_dim(dim1, x.ndim), canonical_dim(dim2, x.ndim)
    rows, columns = x.size[row] - max(-offset, 0), x.size[column] - max(offset, 0)
    ctx.same_size(source.size[-1:], (sympy.Max(0, sympy.Min(rows, columns)),), SLICE)

    def at(indices: Indices) -> tuple[Node, list[Expr]]:
        rest = [index for dim, index in enumerate(indices) if dim not in (row, column)]
        mask = compare("eq", indices[column] - indices[row], offset)
        return mask, [*rest, indices[row] - max(-offset, 0)]

    return replaced(ctx, x, source, at)


@lowering(moves=True)
def as_strided_scatter(
    ctx: LoweringContext,
    x: Tensor,
    source: Tensor,
    size: Sequence[int | Expr],
    stride: Sequence[int | Expr],
    storage_offset: int | Expr | None = None,
) -> Tensor:
    """Lowers as_strided_scatter to a copy of x, and a second loop that writes `source` over the strided view of the
    copy. Errors: NotImplementedError where x is not contiguous or does not begin at its storage's start, and where
    elements of the view share a place, which torch refuses."""
    meta = ctx.node.args[0].meta["val"]  # type: ignore[union-attr]
    strided = Layout(tuple(map(to_expr, size)), tuple(map(to_expr, stride)), to_expr(storage_offset or 0))
    if not meta.is_contiguous() or torch_api.sympy_of(meta.storage_offset()) != 0 or overlap(strided, ctx.hint):
        raise NotImplementedError("as_strided_scatter on a tensor with gaps, or over one place several times")
    result = ctx.copy(x)
    target = as_strided(result, strided.size, strided.stride, strided.offset, ctx.hint)
    if not isinstance(target, View):
        raise NotImplementedError("as_strided_scatter on a tensor with gaps")
    ctx.write(target, source.load)
    return result


@lowering(moves=True)
def constant_pad_nd(ctx: LoweringContext, x: Tensor, pad: Sequence[int | Expr], value: Any = 0) -> Tensor:
    """Lowers padding with a constant; pad: (before, after) pairs from the last dimension on, negative ones cut off.
    Errors: NotImplementedError for a value that is no plain number."""
    if not isinstance(value, (bool, int, float)):
        raise NotImplementedError(f"padding with {value}")
    size = meta_size(ctx)
    front = _front(pad, x.ndim)

    def body(indices: Indices) -> Node:
        ranges = extents_of(indices, size)
        position = [index - left for index, left in zip(indices, front, strict=True)]
        conditions = [
            inside(where, extent, ranges)
            for where, extent, left, new in zip(position, x.size, front, size, strict=True)
            if left != 0 or new != extent
        ]
        return masked_load(x, position, all_of(conditions), value)

    return ctx.pointwise(size, x.dtype, x.device, body)


def _front(pad: Sequence[int | Expr], ndim: int) -> list[Expr]:
    """Returns how much is put before each dimension. `pad` has (front, back) pairs from the last dimension on."""
    front: list[Expr] = [ZERO] * ndim
    for number in range(len(pad) // 2):
        front[ndim - 1 - number] = to_expr(pad[2 * number])
    return front


@lowering(moves=True)
def roll(ctx: LoweringContext, x: Tensor, shifts: Sequence[int | Expr], dims: Sequence[int] = ()) -> Tensor:
    """Lowers roll to a read at positions that wrap around; a roll that moves nothing is a copy. Errors:
    NotImplementedError for a call without dimensions."""
    if x.ndim == 0 or not dims:
        # Rolling a flattened tensor: the decomposition has that.
        raise NotImplementedError("roll without dimensions")
    index: list[Expr] = list(variables(x.ndim))
    ranges = ranges_of(x.size)
    for shift, dim in zip(shifts, dims, strict=True):
        dim = canonical_dim(dim, x.ndim)
        if x.size[dim] == 0:
            continue
        index[dim] = mod(index[dim] - shift, x.size[dim], ranges)
    result = x.reindex(x.size, index)
    # All the way around: an alias of x would not do, since the result is a tensor of its own.
    return ctx.copy(result, ctx.meta_strides(x.size)) if tuple(index) == variables(x.ndim) else result


@lowering(moves=True)
def view_copy(ctx: LoweringContext, *args: object, **kwargs: object) -> Tensor:
    """Lowers the copying twin of a view op: the view, then a copy of it."""
    name, overload = str(ctx.node.target).removeprefix("aten.").split(".")
    twin = getattr(getattr(aten, name.removesuffix("_copy")), overload)
    return ctx.copy(core_lowerings()[twin](ctx, *args, **kwargs), ctx.meta_strides(meta_size(ctx)))


LOWERINGS = {
    "aten.constant_pad_nd.default": constant_pad_nd,
    "aten.roll.default": roll,
    "aten.permute_copy.default": view_copy,
    "aten.select_copy.int": view_copy,
    "aten.slice_copy.Tensor": view_copy,
    "aten.view_copy.default": view_copy,
    "aten.detach_copy.default": view_copy,
    "aten.as_strided_copy.default": view_copy,
    "aten.select_scatter.default": select_scatter,
    "aten.slice_scatter.default": slice_scatter,
    "aten.diagonal_scatter.default": diagonal_scatter,
    "aten.as_strided_scatter.default": as_strided_scatter,
}
