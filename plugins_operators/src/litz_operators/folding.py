"""Lowerings of what adds windows up: the gradient of `unfold`, and fold (col2im), which is the gradient of im2col.

Torch's rules add each window's elements atomically to zeros. Here each element of the result gathers its parts from
the windows that cover it: one loop, and a sum in a fixed order.
"""

from __future__ import annotations

from collections.abc import Sequence

from litz.ir import Node, build
from litz.ir.dtypes import compute_dtype
from litz.ir.index import Expr, Ranges
from litz.lower import Indices, LoweringContext, Tensor, canonical_dim, masked_load, meta_size

from .taps import sum_taps
from .window import window


def unfold_backward(
    ctx: LoweringContext, grad: Tensor, input_size: Sequence[Expr], dim: int, size: int, step: int
) -> Tensor:
    """Lowers the gradient of `unfold(dim, size, step)`. grad: dimension `dim` counts the windows, the last dimension
    the elements of a window. Errors: NotImplementedError for the gradient of a number, and for windows of symbolic
    size."""
    result = meta_size(ctx)
    if not result:
        raise NotImplementedError("windows of a number")
    dim = canonical_dim(dim, len(result))
    w = window(1, size, step, 0, 1, result[dim : dim + 1], grad.size[dim : dim + 1])

    def tap(indices: Indices, number: Indices, ranges: Ranges) -> Node:
        found, taps, mask = w.cover(indices[dim : dim + 1], number, ranges)
        position = [*indices[:dim], *found, *indices[dim + 1 :], *taps]
        return build.cast(masked_load(grad, position, mask), compute_dtype(grad.dtype))

    return sum_taps(ctx, result, w.covering, grad, tap)


def col2im(
    ctx: LoweringContext,
    columns: Tensor,
    output_size: Sequence[Expr],
    kernel: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Tensor:
    """Lowers fold. columns: [batch, channels * kernel, windows], with or without the batch. Errors: NotImplementedError
    for windows of symbolic size or number."""
    result = meta_size(ctx)
    w = window(2, kernel, stride, padding, dilation, result)
    if not all(number.is_Integer for number in w.out):
        # A window's number is taken apart again by whoever computes the columns, which no bound survives.
        raise NotImplementedError("windows of a symbolic number")

    def tap(indices: Indices, number: Indices, ranges: Ranges) -> Node:
        *batch, channel, height, width = indices
        found, taps, mask = w.cover((height, width), number, ranges)
        row = (channel * w.kernel[0] + taps[0]) * w.kernel[1] + taps[1]
        position = [*batch, row, found[0] * w.out[1] + found[1]]
        return build.cast(masked_load(columns, position, mask), compute_dtype(columns.dtype))

    return sum_taps(ctx, result, w.covering, columns, tap)


LOWERINGS = {"aten.unfold_backward.default": unfold_backward, "aten.col2im.default": col2im}
