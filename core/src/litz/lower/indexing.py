"""Lowerings of reads at computed positions: index, gather, embedding; and of slices laid over a tensor.

An index tensor is read in the loop that reads the indexed tensor, so that both fuse with what comes before and after.
Boolean masks pick a number of elements that depends on the data: those ops stay with the library.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import sympy
import torch

from litz.capture import torch_api
from litz.ir import Layout, Node, build
from litz.ir.dtypes import INTEGER
from litz.ir.index import Expr, Ranges, floordiv, mod, to_expr

from . import views
from .access import all_of, at_least, checked, compare, extents_of, less_than
from .context import Indices, LoweringContext
from .elementwise import broadcast_size
from .registry import lowering
from .shapes import meta_size, selected, slice_start
from .strides import layout_of, overlap
from .view import Position, Tensor, View

aten = torch.ops.aten


SLICE = "expected src to have a size equal to the slice of self"


@dataclass(frozen=True)
class Advanced:
    """The parts of `x[indices]`: which dimension each index tensor is for, and where their common shape goes.

    tensors: (dimension of x, index tensor) pairs. shape: what the index tensors broadcast to. place: the dimension of
    the result at which `shape` starts. rest: the dimensions of x without an index, in order. size: the result's.
    """

    x_size: tuple[Expr, ...]
    tensors: tuple[tuple[int, Tensor], ...]
    shape: tuple[Expr, ...]
    place: int
    rest: tuple[int, ...]

    @property
    def size(self) -> tuple[Expr, ...]:
        """Returns the size of the result: the dimensions without an index, and the indices' common shape at its
        place."""
        rest = [self.x_size[dim] for dim in self.rest]
        return (*rest[: self.place], *self.shape, *rest[self.place :])

    def positions(self, ctx: LoweringContext, indices: Indices) -> list[Position]:
        """Returns the position in x of the result's element at `indices`."""
        ranges = extents_of(indices, self.size)
        inner = indices[self.place : self.place + len(self.shape)]
        outer = (*indices[: self.place], *indices[self.place + len(self.shape) :])
        found: list[Position] = [to_expr(0)] * len(self.x_size)
        for dim, index in zip(self.rest, outer, strict=True):
            found[dim] = index
        for dim, tensor in self.tensors:
            value = views.expand(tensor, self.shape).load(inner)
            found[dim] = checked(ctx, value, self.x_size[dim], ranges, dim, wrap=True)
        return found


def advanced(ctx: LoweringContext, x: Tensor, indices: Sequence[Tensor | None]) -> Advanced:
    """Returns the parts of `x[indices]`. indices: one per dimension, None for a whole dimension. Errors:
    NotImplementedError for masks, whose result depends on data, and for a dimension of size 0, which eager refuses
    before it has a loop."""
    tensors = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    for _, index in tensors:
        if index.dtype not in INTEGER or index.dtype == torch.uint8:
            raise NotImplementedError(f"an index of {index.dtype}: how many elements it picks depends on the data")
    if not tensors or any(x.size[dim] == 0 for dim, _ in tensors):
        raise NotImplementedError("no index tensor, or an index of nothing")
    dims = [dim for dim, _ in tensors]
    adjacent = dims == list(range(dims[0], dims[-1] + 1))
    rest = tuple(dim for dim in range(x.ndim) if dim not in dims)
    place = dims[0] if adjacent else 0
    shape = broadcast_size(*(index for _, index in tensors))
    return Advanced(x.size, tuple(tensors), shape, place, rest)


@lowering(aten.index.Tensor, aten._unsafe_index.Tensor, moves=True)
def index(ctx: LoweringContext, x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """Lowers index: elements of x at index tensors. The unsafe form promises positions within x; they are checked as
    well where they do not provably lie in x."""
    parts = advanced(ctx, x, indices)
    return ctx.pointwise(meta_size(ctx), x.dtype, x.device, lambda where: x.load(parts.positions(ctx, where)))


def along(ctx: LoweringContext, x: Tensor, dim: int, index: Tensor, indices: Indices, ranges: Ranges) -> list[Position]:
    """Returns `indices` with the one along `dim` replaced by the value of `index` there. A value that is negative or
    too large is an error at run time."""
    found: list[Position] = list(indices)
    if x.ndim:
        found[dim] = checked(ctx, index.load(indices), x.size[dim], ranges, dim)
    return found


@lowering(aten.gather.default)
def gather(ctx: LoweringContext, x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    """Lowers gather: result[i][j] = x[index[i][j]][j] for dim 0. Positions are checked against x's size."""
    dim = views.canonical_dim(dim, x.ndim)
    if x.ndim == 0:
        return ctx.copy(views.expand(x, index.size))
    number = index.ndim == 0
    index = views.with_dims(index)
    size = index.size

    def body(indices: Indices) -> Node:
        return x.load(along(ctx, x, dim, index, indices, extents_of(indices, size)))

    result = ctx.pointwise(size, x.dtype, x.device, body)
    return views.squeeze(result, [0]) if number else result


@lowering(aten.index_select.default, moves=True)
def index_select(ctx: LoweringContext, x: Tensor, dim: int, index: Tensor) -> Tensor:
    """Lowers index_select: the entries of x along `dim` at the positions in `index`, (n,)."""
    return entries(ctx, x, dim, views.with_dims(index))


@lowering(aten.embedding.default, moves=True)
def embedding(
    ctx: LoweringContext,
    weight: Tensor,
    index: Tensor,
    padding_idx: int | Expr = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Lowers embedding: the rows of `weight` that `index` names. The other arguments are about the gradient."""
    return entries(ctx, weight, 0, index)


def entries(ctx: LoweringContext, x: Tensor, dim: int, index: Tensor) -> Tensor:
    """Returns the entries of x along `dim` at the positions in `index`, whose dimensions stand in the place of `dim`.
    Errors: NotImplementedError for a number, and for an x without elements: no loop would look at a position, and
    eager does."""
    if x.ndim == 0 or 0 in x.size:
        raise NotImplementedError("entries of a number, or without elements")
    dim = views.canonical_dim(dim, x.ndim)
    size, behind = (*x.size[:dim], *index.size, *x.size[dim + 1 :]), dim + index.ndim

    def body(indices: Indices) -> Node:
        where = checked(ctx, index.load(indices[dim:behind]), x.size[dim], extents_of(indices, size), dim)
        return x.load([*indices[:dim], where, *indices[behind:]])

    return ctx.pointwise(size, x.dtype, x.device, body)


# ------------------------------------------------------------------------------------- a slice of x replaced by another


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


@lowering(aten.select_scatter.default, moves=True)
def select_scatter(ctx: LoweringContext, x: Tensor, source: Tensor, dim: int, index: int | Expr) -> Tensor:
    """Lowers select_scatter: x with entry `index` along `dim` replaced by `source`."""
    dim = views.canonical_dim(dim, x.ndim)
    where = selected(ctx, x, dim, index)
    ctx.same_size(source.size, (*x.size[:dim], *x.size[dim + 1 :]), SLICE)

    def at(indices: Indices) -> tuple[Node, list[Expr]]:
        return compare("eq", indices[dim], where), [*indices[:dim], *indices[dim + 1 :]]

    return replaced(ctx, x, source, at)


@lowering(aten.slice_scatter.default, moves=True)
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
    dim = views.canonical_dim(dim, x.ndim)
    first, stride = slice_start(ctx, start, x.size[dim]), to_expr(step)
    length = source.size[dim]
    last = x.size[dim] if end is None else views.from_front(end, x.size[dim])
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


@lowering(aten.diagonal_scatter.default, moves=True)
def diagonal_scatter(
    ctx: LoweringContext, x: Tensor, source: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    """Lowers diagonal_scatter: x with a diagonal of two of its dimensions replaced by `source`."""
    row, column = views.canonical_dim(dim1, x.ndim), views.canonical_dim(dim2, x.ndim)
    rows, columns = x.size[row] - max(-offset, 0), x.size[column] - max(offset, 0)
    ctx.same_size(source.size[-1:], (sympy.Max(0, sympy.Min(rows, columns)),), SLICE)

    def at(indices: Indices) -> tuple[Node, list[Expr]]:
        rest = [index for dim, index in enumerate(indices) if dim not in (row, column)]
        mask = compare("eq", indices[column] - indices[row], offset)
        return mask, [*rest, indices[row] - max(-offset, 0)]

    return replaced(ctx, x, source, at)


@lowering(aten.as_strided_scatter.default, moves=True)
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
    target = views.as_strided(result, strided.size, strided.stride, strided.offset, ctx.hint)
    if not isinstance(target, View):
        raise NotImplementedError("as_strided_scatter on a tensor with gaps")
    ctx.write(target, source.load)
    return result
