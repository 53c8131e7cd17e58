"""Lowerings of reads at computed positions: index, gather, embedding.

An index tensor is read in the loop that reads the indexed tensor, so that both fuse with what comes before and after.
Boolean masks pick a number of elements that depends on the data: those ops stay with the library.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from litz.ir import Node
from litz.ir.dtypes import INTEGER
from litz.ir.index import Expr, Ranges, to_expr

from . import views
from .access import checked, extents_of
from .context import Indices, LoweringContext
from .elementwise import broadcast_size
from .registry import lowering
from .shapes import meta_size
from .view import Position, Tensor

aten = torch.ops.aten


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
