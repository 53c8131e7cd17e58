"""Lowerings of writes at computed positions: index_put, scatter, and their accumulating kin.

Each is a copy of the tensor that is written to, and a second loop over the source whose stores go where the index
says, combining atomically where values may meet. Half types are accumulated in float32 and rounded once. Combining
bools, and everything under `torch.use_deterministic_algorithms`, stays with the library.

One value for each row of zeros (the gradient of a `gather` of one column: cross entropy's) is not written: each element
says by its position whether it is the one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from litz.ir import Node, build
from litz.ir.dtypes import FLOAT8, compute_dtype, greatest, least
from litz.ir.index import ZERO, Expr
from litz.ir.operation import StoreMode
from litz.lower import (
    Computed,
    Indices,
    LoweringContext,
    Position,
    Tensor,
    View,
    advanced,
    along,
    canonical_dim,
    compare,
    expand,
    extents_of,
    lowering,
    reshape,
    unsqueeze,
)

Places = Callable[[Indices], list[Position]]
Values = Callable[[Indices], Node]


def writable(x: Tensor, mode: StoreMode) -> None:
    """Raises NotImplementedError unless stores into a copy of `x` can combine by `mode`: not under deterministic
    algorithms, and bools by "set" alone."""
    if torch.are_deterministic_algorithms_enabled():
        raise NotImplementedError("the order of atomic stores is not determined")
    if mode != "set" and x.dtype == torch.bool:
        raise NotImplementedError(f"{mode} of bools")


def accumulator(x: Tensor, mode: StoreMode) -> torch.dtype:
    """Returns the dtype in which stores into a copy of `x` combine."""
    return x.dtype if mode == "set" else compute_dtype(x.dtype)


def start(ctx: LoweringContext, x: Tensor, dtype: torch.dtype) -> View:
    """Returns a new buffer with the elements of `x`, cast to `dtype`."""
    return ctx.pointwise(x.size, dtype, x.device, x.load, stride=ctx.meta_strides(x.size))


def has_room(into: Sequence[Expr], size: Sequence[Expr]) -> None:
    """Raises NotImplementedError for values, as many as a loop of `size`, that go into a tensor without elements: no
    position is one of its own, which eager refuses for most ops."""
    if any(extent == 0 for extent in into) and not any(extent == 0 for extent in size):
        raise NotImplementedError("values that are written into a tensor without elements")


def put(
    ctx: LoweringContext, target: View, size: Sequence[Expr], places: Places, values: Values, mode: StoreMode
) -> None:
    """Stores `values(indices)`, cast, at `places(indices)` of `target`, for every point of `size`. mode: how a store
    combines with what is there. Errors: NotImplementedError where `target` has no place for a value."""
    has_room(target.size, size)
    if any(extent == 0 for extent in size):
        return
    indices = ctx.indices(size)
    ctx.add_loop(target.device, size, (), [ctx.store(target, places(indices), values(indices), mode)])


def as_dtype(ctx: LoweringContext, target: View, dtype: torch.dtype) -> View:
    """Returns `target`, rounded to `dtype` where it was accumulated in a wider one."""
    if target.dtype == dtype:
        return target
    return ctx.pointwise(target.size, dtype, target.device, target.load, stride=target.buffer.layout.stride)


def overwrite(
    ctx: LoweringContext, x: Tensor, size: Sequence[Expr], places: Places, values: Values, mode: StoreMode
) -> Tensor:
    """Returns a copy of `x` with `values` stored at `places`. size: of the loop over the values. mode: how a value is
    stored."""
    writable(x, mode)
    target = start(ctx, x, accumulator(x, mode))
    put(ctx, target, size, places, values, mode)
    return as_dtype(ctx, target, x.dtype)


# ----------------------------------------------------------------------------------------------------------- index_put


@lowering(moves=True)
def index_put(
    ctx: LoweringContext, x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    """Lowers index_put: x with `values` at the positions that `indices` give, added if `accumulate`. Errors:
    NotImplementedError for values on another device, and for sums of float8."""
    if values.device != x.device and values.ndim:
        raise NotImplementedError("values on another device")
    if accumulate and x.dtype in FLOAT8:
        raise NotImplementedError("sums of float8")
    if any(index is not None and index.dtype == torch.bool for index in indices):
        return _masked_put(ctx, x, indices, values, accumulate)
    parts = advanced(ctx, x, indices)
    if values.ndim > len(parts.size):
        raise NotImplementedError("values of more dimensions than they have places, which eager refuses")
    into = parts.size[len(parts.size) - values.ndim :]
    broadcast = [mine if mine == 1 else its for mine, its in zip(values.size, into, strict=True)]
    ctx.same_size(values.size, broadcast, "shape mismatch: values cannot be broadcast to indexing result")
    spread = expand(values, parts.size)
    mode: StoreMode = "add" if accumulate else "set"
    return overwrite(ctx, x, parts.size, lambda where: parts.positions(ctx, where), spread.load, mode)


def _masked_put(
    ctx: LoweringContext, x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool
) -> Tensor:
    """`x[mask] = number`: a choice at every element, without counting how many the mask picks."""
    given = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    dim, mask = given[0]
    if len(given) != 1 or values.numel != 1 or (mask.device != x.device and mask.ndim):
        raise NotImplementedError("a boolean mask with a tensor of values")
    message = "The shape of the mask does not match the shape of the indexed tensor"
    ctx.same_size(mask.size, x.size[dim : dim + mask.ndim], message, IndexError)
    number = reshape(values, (), ctx.hint)

    def body(where: Indices) -> Node:
        here = mask.load(where[dim : dim + mask.ndim])
        old, new = x.load(where), build.cast(number.load(()), x.dtype)
        return build.call("where", here, build.call("add", old, new) if accumulate else new, old)

    return ctx.pointwise(x.size, x.dtype, x.device, body)


# ------------------------------------------------------------------------------------------------------------- scatter


def _with_dims(x: Tensor) -> Tensor:
    """Returns x, with one dimension of size 1 if x has none."""
    return x if x.ndim else unsqueeze(x, 0)


def _along_dim(ctx: LoweringContext, x: Tensor, dim: int, index: Tensor) -> tuple[Tensor, tuple[Expr, ...], Places]:
    """Returns x and the size of index, each with at least one dimension, and where in x the points of index are."""
    dim, x, index = canonical_dim(dim, x.ndim), _with_dims(x), _with_dims(index)
    return x, index.size, lambda indices: along(ctx, x, dim, index, indices, extents_of(indices, index.size))


def _scatter(ctx: LoweringContext, x: Tensor, dim: int, index: Tensor, values: Values, mode: StoreMode) -> Tensor:
    """values: what is stored at each point of `index`."""
    has_room(x.size, index.size)
    if _is_one_of_each_row(x, dim, index) and mode in ("set", "add") and not (mode == "add" and x.dtype == torch.bool):
        return _chosen(ctx, x, dim, index, values, mode)
    with_dims, size, places = _along_dim(ctx, x, dim, index)
    return reshape(overwrite(ctx, with_dims, size, places, values, mode), x.size, ctx.hint)


def _is_one_of_each_row(x: Tensor, dim: int, index: Tensor) -> bool:
    """Returns whether one element of each row of `x` along `dim` is written, where `x` is computed, not in memory."""
    if not isinstance(x, Computed) or x.ndim == 0 or index.ndim != x.ndim:
        return False
    dim = canonical_dim(dim, x.ndim)
    return all(size == (1 if at == dim else x.size[at]) for at, size in enumerate(index.size))


def _chosen(ctx: LoweringContext, x: Tensor, dim: int, index: Tensor, values: Values, mode: StoreMode) -> View:
    """`x` with `values` where a position along `dim` is what `index` says."""
    dim, dtype = canonical_dim(dim, x.ndim), accumulator(x, mode)

    def body(where: Indices) -> Node:
        first = tuple(ZERO if at == dim else position for at, position in enumerate(where))
        place = along(ctx, x, dim, index, first, extents_of(first, index.size))[dim]
        old, new = build.cast(x.load(where), dtype), build.cast(values(first), dtype)
        new = build.call("add", old, new) if mode == "add" else new
        return build.call("where", compare("eq", where[dim], place), new, old)

    return ctx.pointwise(x.size, x.dtype, x.device, body, stride=ctx.meta_strides(x.size))


_MODES: dict[str | None, StoreMode] = {None: "set", "add": "add", "multiply": "prod"}


def scatter_source(
    ctx: LoweringContext, x: Tensor, dim: int, index: Tensor, source: Tensor, *, reduce: str | None = None
) -> Tensor:
    """Lowers scatter with a tensor as source. reduce: None (the value is set), "add" or "multiply"."""
    return _scatter(ctx, x, dim, index, _with_dims(source).load, _MODES[reduce])


def scatter_value(
    ctx: LoweringContext, x: Tensor, dim: int, index: Tensor, value: Any, *, reduce: str | None = None
) -> Tensor:
    """Lowers scatter of one number. Errors: NotImplementedError for a value that is no plain number."""
    if not isinstance(value, (bool, int, float)):
        raise NotImplementedError(f"scattering {value}")
    return _scatter(ctx, x, dim, index, lambda _: build.const(value, x.dtype), _MODES[reduce])


def scatter_add(ctx: LoweringContext, x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """Lowers scatter_add: the source's values are added to x at the positions that `index` gives along `dim`."""
    return _scatter(ctx, x, dim, index, _with_dims(source).load, "add")


_REDUCE: dict[str, StoreMode] = {"sum": "add", "mean": "add", "prod": "prod", "amax": "max", "amin": "min"}


def identity(mode: StoreMode, dtype: torch.dtype) -> bool | int | float:
    """Returns the value that changes nothing when it is combined."""
    if mode in ("add", "prod"):
        return int(mode == "prod")
    return least(dtype) if mode == "max" else greatest(dtype)


def scatter_reduce(
    ctx: LoweringContext,
    x: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> Tensor:
    """Lowers scatter_reduce. Without `include_self` the elements that are written to start from the identity, which a
    loop of its own sets."""
    mode, original = _REDUCE[reduce], x.size
    writable(x, mode)
    x, size, places = _along_dim(ctx, x, dim, index)
    dtype = accumulator(x, mode)
    target = start(ctx, x, dtype)
    if not include_self:
        put(ctx, target, size, places, lambda _: build.const(identity(mode, dtype), dtype), "set")
    put(ctx, target, size, places, _with_dims(source).load, mode)
    if reduce != "mean":
        return reshape(as_dtype(ctx, target, x.dtype), original, ctx.hint)
    count = ctx.pointwise(
        x.size, torch.int64, x.device, lambda _: build.const(int(include_self), torch.int64),
        stride=target.buffer.layout.stride,
    )  # fmt: skip
    put(ctx, count, size, places, lambda _: build.const(1, torch.int64), "add")

    def mean(indices: Indices) -> Node:
        one = build.const(1, torch.int64)
        total, number = target.load(indices), build.call("maximum", count.load(indices), one)
        kind = "div" if dtype.is_floating_point else "floordiv"
        return build.call(kind, total, build.cast(number, dtype))

    result = ctx.pointwise(x.size, x.dtype, x.device, mean, stride=target.buffer.layout.stride)
    return reshape(result, original, ctx.hint)


# ------------------------------------------------------------------------------------------- an index for one dimension


@lowering(moves=True)
def index_add_or_copy(
    ctx: LoweringContext, x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: bool | int | float = 1
) -> Tensor:
    """Returns x with slice number n of `source` along `dim`, times alpha, added or copied to slice index[n]. Errors:
    NotImplementedError for a 0-d tensor, which eager adds to no other, and for float8 that torch refuses."""
    if x.ndim == 0 or (ctx.op_name == "index_add" and source.ndim == 0):
        raise NotImplementedError("a slice of a number")
    if x.dtype in FLOAT8 and (ctx.op_name == "index_add" or x.device.type == "cpu"):
        raise NotImplementedError("what torch has not for float8")
    dim = canonical_dim(dim, x.ndim)
    index, source = _with_dims(index), _with_dims(source)
    slices = tuple(index.size[0] if at == dim else extent for at, extent in enumerate(x.size))
    ctx.same_size(source.size, slices, "source tensor shape must match self tensor shape, but for its dim")
    for other in [d for d in range(x.ndim) if d != dim]:
        index = unsqueeze(index, other)
    x, size, places = _along_dim(ctx, x, dim, expand(index, source.size))

    def value(indices: Indices) -> Node:
        given = source.load(indices)
        return given if alpha == 1 else build.call("mul", given, build.const(alpha, given.dtype))

    return overwrite(ctx, x, size, places, value, "add" if ctx.op_name == "index_add" else "set")


def put_in_zeros(
    ctx: LoweringContext,
    values: Tensor,
    size: Sequence[Expr],
    places: Places,
    mode: StoreMode,
    seen: Callable[[View], Tensor] = lambda target: target,
) -> View:
    """A tensor of `size`, zeros but for `values`, each stored (or combined, by `mode`) at its place.

    seen: the view of the result in which the places are.
    """
    writable(values, mode)
    dtype = accumulator(values, mode)
    target = ctx.pointwise(size, dtype, values.device, lambda _: build.const(0, dtype))
    view = seen(target)
    assert isinstance(view, View)
    put(ctx, view, values.size, places, values.load, mode)
    return as_dtype(ctx, target, values.dtype)


LOWERINGS = {
    "aten.index_put.default": index_put,
    "aten._unsafe_index_put.default": index_put,
    "aten.scatter.src": scatter_source,
    "aten.scatter.reduce": scatter_source,
    "aten.scatter.value": scatter_value,
    "aten.scatter.value_reduce": scatter_value,
    "aten.scatter_add.default": scatter_add,
    "aten.scatter_reduce.two": scatter_reduce,
    "aten.index_add.default": index_add_or_copy,
    "aten.index_copy.default": index_add_or_copy,
}
