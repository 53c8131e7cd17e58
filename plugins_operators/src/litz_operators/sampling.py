"""Lowerings of what the library computes at sampled positions without a look at them: they are made finite first."""

from __future__ import annotations

from typing import Any

from litz.ir import Node, build
from litz.lower import Indices, LoweringContext, Tensor, fallback

BICUBIC, ZEROS, REFLECTION = 2, 0, 2
"""A mode, and two paddings, of grid_sample. With the first two NaN and infinity are harmless."""


def grid_sampler_2d_backward(
    ctx: LoweringContext, grad: Tensor, x: Tensor, grid: Tensor, mode: int, padding: int, *rest: Any
) -> Any:
    """Lowers the gradient of 2-d grid sampling. Where it pads by the border or by reflection, torch's CPU kernel uses
    NaN as an address; here NaN is taken as -1, as in the forward (and in grid_sample's documentation)."""
    if mode == BICUBIC or padding == ZEROS:
        raise NotImplementedError("the library computes it as it is")

    def body(indices: Indices) -> Node:
        value = grid.load(indices)
        unknown = build.call("isnan", value)
        if padding == REFLECTION:  # infinity has a nearest border, but no reflection
            unknown = build.call("bitwise_or", unknown, build.call("isinf", value))
        return build.call("where", unknown, build.const(-1.0, grid.dtype), value)

    finite = ctx.pointwise(grid.size, grid.dtype, grid.device, body, stride=ctx.meta_strides(grid.size))
    return fallback(ctx, (grad, x, finite, mode, padding, *rest), {})


LOWERINGS = {"aten.grid_sampler_2d_backward.default": grid_sampler_2d_backward}
