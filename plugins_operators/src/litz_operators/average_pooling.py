"""Lowerings of average pooling with a fixed window in 2 and 3 dimensions, and of its gradient.

As with max pooling, a small window is written out tap by tap and a large one is a reduction; gradients are gathered.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from litz.ir import Node, build
from litz.ir.dtypes import compute_dtype
from litz.ir.index import ZERO, Expr, Ranges, known_less
from litz.lower import (
    Indices,
    LoweringContext,
    Tensor,
    as_node,
    at_least,
    combined,
    extents_of,
    less_than,
    masked_load,
    meta_size,
)

from .table import of_ranks
from .taps import sum_taps
from .window import Window, window


def avg_pool(
    ndim: int,
    ctx: LoweringContext,
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    include_pad: bool = True,
    override: int | None = None,
) -> Tensor:
    """Lowers average pooling over the last `ndim` dimensions. override: the divisor in place of the count. Errors:
    NotImplementedError for integers."""
    size = meta_size(ctx)
    w = window(ndim, kernel, stride, padding, (1,), x.size, size)
    wide = compute_dtype(x.dtype)
    if not wide.is_floating_point:
        raise NotImplementedError(f"an average of {x.dtype}")

    def tap(indices: Indices, step: Indices, ranges: Ranges) -> Node:
        position, mask = w.tap(indices[-w.ndim :], step, ranges)
        return build.cast(masked_load(x, [*indices[: -w.ndim], *position], mask), wide)

    def average(indices: Indices, total: Node) -> Node:
        ranges = extents_of(indices, size)
        return build.call("div", total, _divisor(w, indices[-w.ndim :], ranges, include_pad, override, wide))

    return sum_taps(ctx, size, w.taps, x, tap, average)


def _divisor(
    w: Window, outer: Sequence[Expr], ranges: Ranges, include_pad: bool, override: int | None, dtype: torch.dtype
) -> Node:
    """Returns the divisor of the sum over the window at `outer`.

    A window that ceil_mode lets reach beyond the padding counts what lies within it; without `include_pad` only what
    lies within the input counts.
    """
    if (common := _common_divisor(w, include_pad, override)) is not None:
        return build.const(common, dtype)
    constant = 1
    varying: list[Node] = []
    for start, k, p, extent in zip(w.starts(outer), w.kernel, w.padding, w.size, strict=True):
        limit = extent + p if include_pad else extent
        beyond = less_than(start + k, limit + 1, ranges)
        before = None if include_pad else at_least(start, ZERO, ranges)
        if beyond is None and before is None:
            constant *= k
            continue
        first, end = as_node(start), as_node(start + k)
        if beyond is not None:
            end = build.call("minimum", end, as_node(limit))
        if before is not None:
            first = build.call("maximum", first, build.const(0, torch.int64))
        varying.append(build.call("sub", end, first))
    if not varying:
        return build.const(constant, dtype)
    return build.cast(combined("mul", [*varying, as_node(constant)]), dtype)


def _common_divisor(w: Window, include_pad: bool, override: int | None) -> int | None:
    """The number that every window's sum is divided by; None if windows differ."""
    if override is not None:
        return override
    ends = [start + k for start, k in zip(w.starts([n - 1 for n in w.out]), w.kernel, strict=True)]
    limits = [n + p if include_pad else n for n, p in zip(w.size, w.padding, strict=True)]
    alike = (include_pad or not any(w.padding)) and all(map(known_less, ends, [limit + 1 for limit in limits]))
    return prod(w.kernel) if alike else None


def avg_pool_backward(
    ndim: int,
    ctx: LoweringContext,
    grad: Tensor,
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    include_pad: bool,
    override: int | None,
) -> Tensor:
    """Lowers the gradient of average pooling: each input element adds up its share of the gradients of the windows that
    cover it."""
    w = window(ndim, kernel, stride, padding, (1,), x.size, grad.size)
    wide = compute_dtype(grad.dtype)

    common = _common_divisor(w, include_pad, override)

    def shares(indices: Indices) -> Node:
        divisor = _divisor(w, indices[-w.ndim :], extents_of(indices, grad.size), include_pad, override, wide)
        return build.call("div", build.cast(grad.load(indices), wide), divisor)

    # A value of its own: whether each element divides the gradients of all windows that cover it, or reads the shares,
    # is decided by what either costs.
    source = grad if common is not None else ctx.pointwise(grad.size, wide, grad.device, shares)

    def tap(indices: Indices, step: Indices, ranges: Ranges) -> Node:
        outer, _, mask = w.cover(indices[-w.ndim :], step, ranges)
        return build.cast(masked_load(source, [*indices[: -w.ndim], *outer], mask), wide)

    def share(indices: Indices, total: Node) -> Node:
        return total if common is None else build.call("div", total, build.const(common, wide))

    return sum_taps(ctx, x.size, w.covering, x, tap, share)


LOWERINGS = of_ranks((2, 3), "aten.avg_pool{}d.default", avg_pool) | of_ranks(
    (2, 3), "aten.avg_pool{}d_backward.default", avg_pool_backward
)
