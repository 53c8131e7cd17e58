"""Lowerings of adaptive average pooling, and of its gradient, for static sizes.

Window o of O along an extent of N is [floor(o N / O), ceil((o + 1) N / O)), so neighbours may overlap and differ in
length. With static sizes the longest is known, and shorter ones mask what they lack.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from litz.ir import Node, build
from litz.ir.dtypes import compute_dtype
from litz.ir.index import Expr, Ranges, floordiv, to_expr
from litz.lower import (
    Indices,
    LoweringContext,
    Tensor,
    all_of,
    as_node,
    at_least,
    combined,
    extents_of,
    inside,
    less_than,
    masked_load,
    meta_size,
)

from .table import of_ranks
from .taps import static, sum_taps


def _start(o: Expr, n: int, out: int, ranges: Ranges) -> Expr:
    return floordiv(o * n, to_expr(out), ranges)


def _end(o: Expr, n: int, out: int, ranges: Ranges) -> Expr:
    return floordiv(o * n + n + out - 1, to_expr(out), ranges)


def _longest(n: int, out: int) -> int:
    """The length of the longest window. For (out, n): how many windows cover one element, at most."""
    return max(-(-(o + 1) * n // out) - o * n // out for o in range(out))


def adaptive_avg_pool(ndim: int, ctx: LoweringContext, x: Tensor, output_size: Sequence[int]) -> Tensor:
    """Lowers adaptive average pooling over the last `ndim` dimensions. Errors: NotImplementedError for integers, for
    dimensions without elements and for symbolic sizes."""
    size, wide = meta_size(ctx), compute_dtype(x.dtype)
    if not wide.is_floating_point:
        raise NotImplementedError(f"an average of {x.dtype}")
    if any(extent == 0 for extent in x.size[1:]):
        raise NotImplementedError("no elements, which the op may refuse")
    extents, outs = static(x.size[-ndim:]), static(size[-ndim:])
    taps = [_longest(n, out) for n, out in zip(extents, outs, strict=True)]

    def tap(indices: Indices, step: Indices, ranges: Ranges) -> Node:
        position: list[Expr] = []
        conditions: list[Node | None] = []
        for o, inner, n, out in zip(indices[-ndim:], step, extents, outs, strict=True):
            position.append(_start(o, n, out, ranges) + inner)
            if n % out != 0:
                conditions.append(less_than(position[-1], _end(o, n, out, ranges), ranges))
        return build.cast(masked_load(x, [*indices[:-ndim], *position], all_of(conditions)), wide)

    def average(indices: Indices, total: Node) -> Node:
        return build.call("div", total, _count(indices[-ndim:], extents, outs, extents_of(indices, size), wide))

    return sum_taps(ctx, size, taps, x, tap, average)


def _count(outer: Sequence[Expr], extents: list[int], outs: list[int], ranges: Ranges, dtype: torch.dtype) -> Node:
    """Returns how many elements the window at `outer` has."""
    lengths = [
        to_expr(n // out) if n % out == 0 else _end(o, n, out, ranges) - _start(o, n, out, ranges)
        for o, n, out in zip(outer, extents, outs, strict=True)
    ]
    return build.cast(combined("mul", [as_node(length) for length in lengths if length != 1] or [as_node(1)]), dtype)


def adaptive_avg_pool_backward(ndim: int, ctx: LoweringContext, grad: Tensor, x: Tensor) -> Tensor:
    """Lowers the gradient of adaptive average pooling: each input element adds up its share of the gradients of the
    windows that cover it. Along N elements with O windows, the first window that covers element h is number floor(h O /
    N). Errors: NotImplementedError for symbolic or empty sizes."""
    wide = compute_dtype(grad.dtype)
    extents, outs = static(x.size[-ndim:]), static(grad.size[-ndim:])
    taps = [_longest(out, n) for n, out in zip(extents, outs, strict=True)]

    def tap(indices: Indices, step: Indices, ranges: Ranges) -> Node:
        position: list[Expr] = []
        conditions: list[Node | None] = []
        for h, more, n, out in zip(indices[-ndim:], step, extents, outs, strict=True):
            o = floordiv(h * out, to_expr(n), ranges) + more
            position.append(o)
            if n % out != 0:
                conditions.append(inside(o, out, ranges))
                conditions.append(at_least(h - _start(o, n, out, ranges), 0, ranges))
                conditions.append(less_than(h, _end(o, n, out, ranges), ranges))
        value = build.cast(masked_load(grad, [*indices[:-ndim], *position], all_of(conditions)), wide)
        return build.call("div", value, _count(position, extents, outs, ranges, wide))

    return sum_taps(ctx, x.size, taps, x, tap)


LOWERINGS = of_ranks((3,), "aten._adaptive_avg_pool{}d.default", adaptive_avg_pool) | of_ranks(
    (2, 3), "aten._adaptive_avg_pool{}d_backward.default", adaptive_avg_pool_backward
)
