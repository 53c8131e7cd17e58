"""Lowerings of cumulative sums, products and extremes.

A scan runs along the one reduction range of its loop, and its stores are made once per step. The positions that cummax
and cummin also give are left to the library; where nobody uses them the values are a scan like the others. A GPU's
library has the scans of few long rows, as it splits a row over the GPU, and logcumsumexp: half types go there in
float32.
"""

from __future__ import annotations

import torch

from litz.ir import build
from litz.ir.dtypes import compute_dtype
from litz.lower import LoweringContext, Tensor, View, canonical_dim, used


def sums_or_products(ctx: LoweringContext, x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """Lowers cumsum and cumprod along `dim`, in the dtype that eager gives. Errors: NotImplementedError for bool, and
    for rows of wider types that a GPU's library scans sooner."""
    try:
        return _scan(ctx, x, dim, ctx.meta.dtype)
    except NotImplementedError:
        if not _call_rounds_each_step(ctx, x):
            raise
        return _wide_call(ctx, x, dim)


def log_sums_of_exponentials(ctx: LoweringContext, x: Tensor, dim: int) -> Tensor:
    """Lowers logcumsumexp of a half type on a GPU to a call in float32. Errors: NotImplementedError elsewhere."""
    if not _call_rounds_each_step(ctx, x):
        raise NotImplementedError("the library's logcumsumexp, as it is")
    return _wide_call(ctx, x, dim)


def extremes(ctx: LoweringContext, x: Tensor, dim: int) -> tuple[Tensor, None]:
    """Lowers the values of cummax and cummin. Errors: NotImplementedError where the positions are used, and for
    bool."""
    if used(ctx, 1) or x.dtype == torch.bool:
        raise NotImplementedError("the positions of cumulative extremes")
    return _scan(ctx, x, dim, x.dtype), None


def _scan(ctx: LoweringContext, x: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """Returns x scanned along `dim` in `dtype`, half types in float32, as the node's op says."""
    kind = ctx.op_name.removeprefix("cum")
    wide = compute_dtype(dtype)
    if x.ndim == 0 or x.numel == 0:
        return ctx.pointwise(x.size, dtype, x.device, x.load)
    if dtype == torch.bool:
        raise NotImplementedError("a scan of bool")
    dim = canonical_dim(dim, x.ndim)
    ctx.want_short_rows(x, dim, rows=2)  # the library's scans of several rows are slower
    outer = (*x.size[:dim], *x.size[dim + 1 :])
    length = (x.size[dim],)
    indices = list(ctx.indices(outer))
    indices.insert(dim, ctx.reduction_indices(length)[0])
    result = View.whole(ctx.new_buffer(x.size, dtype, x.device, output=0))
    value = build.scan(kind, build.cast(x.load(indices), wide))
    ctx.add_loop(x.device, outer, length, [ctx.store(result, indices, value)])
    return result


def _call_rounds_each_step(ctx: LoweringContext, x: Tensor) -> bool:
    """Returns whether the library's scan, with the dtype of the node's result, rounds at each step. A GPU's does in
    half types: 100,000 factors near 1 in bfloat16 make a product that is off by 65 %. The CPU's rounds once."""
    return compute_dtype(ctx.meta.dtype) != ctx.meta.dtype and "blocks" in ctx.target_of(x.device).abilities


def _wide_call(ctx: LoweringContext, x: Tensor, dim: int) -> Tensor:
    """Returns the node's scan as a library call in float32, rounded once. The conversions are loops, which fuse with
    the loops before and after."""
    wide = compute_dtype(ctx.meta.dtype)
    given = x if x.dtype == wide else _converted(ctx, x, wide)
    made = ctx.extern(ctx.node.target, (given, dim), size=x.size, dtype=wide, device=x.device)  # type: ignore[arg-type]
    return _converted(ctx, made, ctx.meta.dtype)


def _converted(ctx: LoweringContext, x: Tensor, dtype: torch.dtype) -> View:
    return ctx.pointwise(x.size, dtype, x.device, lambda indices: build.cast(x.load(indices), dtype))


LOWERINGS = {
    "aten.cumsum.default": sums_or_products,
    "aten.cumprod.default": sums_or_products,
    "aten.logcumsumexp.default": log_sums_of_exponentials,
    "aten.cummax.default": extremes,
    "aten.cummin.default": extremes,
}
