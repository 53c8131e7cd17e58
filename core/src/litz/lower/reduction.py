"""Lowerings of reductions.

Dtypes as in eager: sums of integers and bool are int64, half types accumulate in float32 (the IR's reductions do), any
and all give bool. The reduction ranges are in the order of the dimensions. A result without keepdim is a view of the
same buffer as one with it, so both lie alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch

from litz.ir import Node, build
from litz.ir.build import call, cast, const
from litz.ir.dtypes import compute_dtype
from litz.ir.index import ONE, ZERO, Expr, product

from .context import Indices, LoweringContext
from .elementwise import scalar
from .pointwise import like
from .promotion import to_int64
from .registry import lowering
from .view import Tensor, View
from .views import canonical_dim

aten = torch.ops.aten
prims = torch.ops.prims

Dims = int | Sequence[int] | None


def reduced_dims(dims: Dims, ndim: int) -> tuple[int, ...]:
    """Returns the dimensions to reduce, ascending; None and an empty list mean all of them."""
    if dims is None or (not isinstance(dims, int) and not dims):
        return tuple(range(ndim))
    found = {canonical_dim(dim, ndim) for dim in ([dims] if isinstance(dims, int) else dims)}
    return tuple(sorted(found)) if ndim else ()


def reduce_over(
    ctx: LoweringContext,
    x: Tensor,
    dims: Dims,
    keepdim: bool,
    dtypes: Sequence[torch.dtype],
    body: Callable[[Node], Node | tuple[Node, ...]],
    *,
    empty_dims: bool = False,
) -> tuple[View, ...]:
    """New tensors, one per entry of `dtypes`: x reduced over `dims` in one loop.

    `body` is given the element of x at reduction level, and gives a node per result, made with `build.reduce`.
    empty_dims: an empty list reduces nothing instead of everything.
    """
    nothing = empty_dims and dims is not None and not isinstance(dims, int) and not dims
    gone = () if nothing else reduced_dims(dims, x.ndim)
    kept = [dim for dim in range(x.ndim) if dim not in gone]
    size = [ONE if dim in gone else x.size[dim] for dim in range(x.ndim)] if keepdim else [x.size[dim] for dim in kept]

    def reduced(indices: Indices, inner: Indices) -> Node | tuple[Node, ...]:
        position: list[Expr] = [ZERO] * x.ndim
        for number, dim in enumerate(gone):
            position[dim] = inner[number]
        for number, dim in enumerate(kept):
            position[dim] = indices[dim if keepdim else number]
        return body(x.load(position))

    inner_size = [x.size[dim] for dim in gone]
    return ctx.reduction(size, inner_size, dtypes, x.device, reduced)


def reduce_one(
    ctx: LoweringContext,
    kind: str,
    x: Tensor,
    dims: Dims,
    keepdim: bool,
    compute: torch.dtype,
    result: torch.dtype,
    *,
    then: Callable[[Node], Node] = lambda value: value,
    empty_dims: bool = False,
) -> View:
    """Returns x cast to `compute`, reduced by `kind` (of `build.reduce`), put through `then`, and cast to `result`.
    empty_dims: an empty list reduces nothing instead of everything."""

    def body(value: Node) -> Node:
        return then(build.reduce(kind, cast(value, compute)))

    return reduce_over(ctx, x, dims, keepdim, (result,), body, empty_dims=empty_dims)[0]


def reduced_numel(x: Tensor, dims: Dims) -> Expr:
    """Returns how many elements of x each result is made of."""
    return product(x.size[dim] for dim in reduced_dims(dims, x.ndim))


# ---- sums


@lowering(aten.sum.dim_IntList, aten.prod.default, aten.prod.dim_int)
def sum_or_product(
    ctx: LoweringContext, x: Tensor, dims: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> View:
    """Lowers sum and prod; integers and bool become int64, unless `dtype` says otherwise."""
    result = dtype or to_int64(x.dtype)
    return reduce_one(ctx, ctx.op_name, x, dims, keepdim, result, result)


@lowering("prims.sum.default", "prims.prod.default")
def prims_sum_or_product(
    ctx: LoweringContext, x: Tensor, dims: Dims, *, output_dtype: torch.dtype | None = None
) -> View:
    """Lowers prims.sum and prims.prod, which keep the dtype, and for which no dims mean none instead of all."""
    result = output_dtype or x.dtype
    return reduce_one(ctx, ctx.op_name, x, dims, False, result, result, empty_dims=True)


@lowering(aten.mean.default, aten.mean.dim)
def mean(
    ctx: LoweringContext, x: Tensor, dims: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> View:
    """Lowers mean: the sum divided by the number of values. Neither need be in the range of a half type."""
    result = dtype or x.dtype
    count = reduced_numel(x, dims)

    def average(total: Node) -> Node:
        return call("div", total, scalar(count, total.dtype))

    return reduce_one(ctx, "sum", x, dims, keepdim, compute_dtype(result), result, then=average)


@lowering(aten.any.default, aten.any.dim, aten.any.dims, aten.all.default, aten.all.dim, aten.all.dims)
def any_or_all(ctx: LoweringContext, x: Tensor, dims: Dims = None, keepdim: bool = False) -> View:
    """Lowers any and all: the result is bool, but uint8 for uint8, as in eager. An empty list of dimensions reduces
    nothing."""
    result = torch.uint8 if x.dtype == torch.uint8 else torch.bool
    return reduce_one(ctx, ctx.op_name, x, dims, keepdim, torch.bool, result, empty_dims=True)


# ---- extremes


def non_empty(ctx: LoweringContext, x: Tensor, dims: Dims) -> None:
    """Eager has errors of its own for the extreme of nothing: an IndexError along a dimension. Where only a run tells,
    the run checks."""
    count = reduced_numel(x, dims)
    if count == 0:
        raise NotImplementedError("an extreme of no elements")
    message = f"{ctx.op_name}(): expected a number of elements other than 0 to reduce, where there are {count}"
    whole = not isinstance(dims, int) and not dims
    ctx.promises.require(sympy.Ne(count, 0), message, RuntimeError if whole else IndexError)


@lowering(
    *(aten.amax.default, aten.amin.default, aten.max.default, aten.min.default),
    *("prims.amax.default", "prims.amin.default"),
)
def extreme(ctx: LoweringContext, x: Tensor, dims: Dims = (), keepdim: bool = False) -> View:
    """Lowers amax, amin and max and min without positions. Errors: NotImplementedError for no elements; a symbolic
    number of them is checked when the graph runs."""
    non_empty(ctx, x, dims)
    return reduce_one(ctx, ctx.op_name.removeprefix("a"), x, dims, keepdim, x.dtype, x.dtype)


@lowering(aten.max.dim, aten.min.dim)
def extreme_and_position(ctx: LoweringContext, x: Tensor, dim: int, keepdim: bool = False) -> tuple[View, ...]:
    """Lowers max.dim and min.dim to one loop: (value, index). Of equal elements the first one counts. Errors:
    NotImplementedError where there are known to be no elements."""
    kind = ctx.op_name
    non_empty(ctx, x, dim)
    ctx.want_short_rows(x, dim, rows=64)

    def body(value: Node) -> tuple[Node, Node]:
        return build.reduce(kind, value), _position(kind, value)

    return reduce_over(ctx, x, dim, keepdim, (x.dtype, torch.int64), body)


def _position(kind: str, value: Node) -> Node:
    # bool has no order of its own in kernels.
    return build.reduce(f"arg{kind}", cast(value, torch.int32) if value.dtype == torch.bool else value)


@lowering(aten.argmax.default, aten.argmin.default)
def position_of_extreme(ctx: LoweringContext, x: Tensor, dim: int | None = None, keepdim: bool = False) -> View:
    """Lowers argmax and argmin. Without `dim` the position is row-major in the whole tensor, as the reduction ranges
    are all its dimensions. Errors: NotImplementedError for bool, and for rows that a GPU's library finds sooner."""
    kind = ctx.op_name.removeprefix("arg")
    if x.dtype == torch.bool:
        raise NotImplementedError("the place of an extreme of bools, which eager refuses")
    non_empty(ctx, x, dim)
    ctx.want_short_rows(x, dim, rows=64)
    return reduce_over(ctx, x, dim, keepdim, (torch.int64,), lambda value: _position(kind, value))[0]


# ---- variances and norms


def _variance(
    ctx: LoweringContext, x: Tensor, dims: Dims, correction: Any, keepdim: bool, *, root: bool, with_mean: bool
) -> tuple[View, ...]:
    """The variance (or its root), and the mean if asked, in one pass by Welford's method.

    Neither the sum of squares nor the count need be in the range of x's type: on a CPU eager has them in double.
    """
    count, wide, kind = reduced_numel(x, dims), compute_dtype(x.dtype), "welford"
    if x.device.type == "cpu" and wide == torch.float32:
        wide, kind = torch.float64, "welford_double"
    # For a correction that is NaN eager divides by 0, too.
    correction = 1 if correction is None else float("inf") if correction != correction else correction

    def body(value: Node) -> tuple[Node, ...]:
        value = cast(value, compute_dtype(x.dtype))
        squares = build.reduce(f"{kind}_m2", value)
        divisor = call("sub", scalar(count, wide), const(correction, wide))
        # Fewer elements than degrees of freedom: 0 / 0 is NaN and x / 0 inf, as in eager, never x / -1.
        variance = call("div", squares, call("maximum", divisor, like(divisor, 0)))
        result = call("sqrt", variance) if root else variance
        return (result, build.reduce(f"{kind}_mean", value)) if with_mean else (result,)

    if count == 0:
        raise NotImplementedError("the variance of no elements")
    return reduce_over(ctx, x, dims, keepdim, (x.dtype,) * (1 + with_mean), body)


@lowering("prims.var.default")
def var(
    ctx: LoweringContext,
    x: Tensor,
    dims: Dims = None,
    correction: Any = None,
    *,
    keepdim: bool = False,
    output_dtype: torch.dtype | None = None,
) -> View:
    """Lowers prims.var. Errors: NotImplementedError for another dtype than x's."""
    if output_dtype not in (None, x.dtype):
        raise NotImplementedError("a variance of another dtype")
    return _variance(ctx, x, dims, correction, keepdim, root=False, with_mean=False)[0]


@lowering(aten.var_mean.correction, aten.std_mean.correction)
def var_mean(
    ctx: LoweringContext, x: Tensor, dims: Dims = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[View, ...]:
    """Lowers var_mean and std_mean: (variance or its root, mean), by one walk over x."""
    return _variance(ctx, x, dims, correction, keepdim, root=ctx.op_name == "std_mean", with_mean=True)
