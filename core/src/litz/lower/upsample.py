"""Lowerings of the gradient of nearest-neighbour resampling, for static sizes.

Where the output is an exact multiple of the input, the gradient adds up a block; elsewhere source positions are
computed in float32, as eager does, and the gradient is scattered. Resampling itself is left to torch's rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from litz.ir import Node, build
from litz.ir.dtypes import compute_dtype
from litz.ir.index import Expr, Ranges, floordiv, to_expr

from .access import as_node, extents_of, static, sum_taps
from .context import Indices, LoweringContext
from .registry import lowering_by_rank
from .scatter import put_in_zeros
from .view import Position, Tensor

aten = torch.ops.aten


def _scale(n: int, out: int, scale: float | None) -> float:
    """How far the source position moves from one output to the next, rounded to float32."""
    return float(torch.tensor(1.0 / scale if scale is not None and scale > 0 else n / out, dtype=torch.float32))


def _sources(n: int, out: int, scale: float | None, exact: bool) -> torch.Tensor:
    """The source position of each output along one dimension, by eager's own float32 arithmetic."""
    steps = torch.arange(out, dtype=torch.float32) + (0.5 if exact else 0.0)
    return (steps * _scale(n, out, scale)).floor().to(torch.int64).clamp(max=n - 1)


def _factor(n: int, out: int, scale: float | None, exact: bool) -> int | None:
    """Returns f if the source of each output o is o // f, else None."""
    if out % n != 0:
        return None
    blocks = torch.arange(out) // (out // n)
    return out // n if torch.equal(_sources(n, out, scale, exact), blocks) else None


def _source(o: Expr, n: int, out: int, scale: float | None, exact: bool, ranges: Any) -> Position:
    """Returns the source position of output `o`."""
    factor = _factor(n, out, scale, exact)
    if factor is not None:
        return floordiv(o, to_expr(factor), ranges)
    step = build.cast(as_node(o), torch.float32)
    if exact:
        step = build.call("add", step, build.const(0.5, torch.float32))
    scaled = build.call("mul", step, build.const(_scale(n, out, scale), torch.float32))
    position = build.cast(build.call("floor", scaled), torch.int64)
    return build.call("minimum", position, build.const(n - 1, torch.int64))


@lowering_by_rank((1, 2, 3), "aten.upsample_nearest{}d_backward.default", exact=False)
@lowering_by_rank((1, 2, 3), "aten._upsample_nearest_exact{}d_backward.default", exact=True)
def nearest_backward(
    ndim: int,
    ctx: LoweringContext,
    grad: Tensor,
    output_size: Sequence[int],
    input_size: Sequence[int | Expr],
    *scales: float | None,
    exact: bool,
) -> Tensor:
    """Lowers the gradient of nearest-neighbour upsampling over the last `ndim` dimensions. exact: positions are those
    of the "exact" variant of the op."""
    size = tuple(map(to_expr, input_size))
    extents, outs = static(size[-ndim:]), static(grad.size[-ndim:])
    factors = scales or (None,) * ndim
    blocks = [_factor(n, out, s, exact) for n, out, s in zip(extents, outs, factors, strict=True)]
    if all(blocks):
        # The result takes its dtype from grad, its size from the arguments.
        steps = [block for block in blocks if block is not None]

        def tap(indices: Indices, step: Indices, ranges: Ranges) -> Node:
            parts = zip(indices[-ndim:], steps, step, strict=True)
            position = [h * block + inner for h, block, inner in parts]
            return build.cast(grad.load([*indices[:-ndim], *position]), compute_dtype(grad.dtype))

        return sum_taps(ctx, size, steps, grad, tap)

    def places(indices: Indices) -> list[Position]:
        ranges = extents_of(indices, grad.size)
        parts = zip(indices[-ndim:], extents, outs, factors, strict=True)
        return [*indices[:-ndim], *(_source(o, n, out, s, exact, ranges) for o, n, out, s in parts)]

    return put_in_zeros(ctx, grad, size, places, "add")
