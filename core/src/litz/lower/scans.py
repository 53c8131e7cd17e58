"""Lowerings of cumulative sums, products and extremes.

A scan runs along the one reduction range of its loop, and its stores are made once per step. The positions that cummax
and cummin also give are left to the library; where nobody uses them the values are a scan like the others.
"""

from __future__ import annotations

import torch

from litz.ir import build
from litz.ir.dtypes import compute_dtype

from .access import used
from .context import LoweringContext
from .registry import lowering
from .view import Tensor, View
from .views import canonical_dim

aten = torch.ops.aten


@lowering(aten.cumsum.default, aten.cumprod.default)
def sums_or_products(ctx: LoweringContext, x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """Lowers cumsum and cumprod along `dim`, in the dtype that eager gives."""
    return _scan(ctx, x, dim, ctx.meta.dtype)


@lowering(aten.cummax.default, aten.cummin.default)
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
