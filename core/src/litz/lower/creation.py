"""Lowerings of ops that make tensors from nothing: they become Computed values, which take memory only if they must."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from litz.ir import Node, build
from litz.ir.build import call, cast, const
from litz.ir.dtypes import compute_dtype
from litz.ir.index import Expr, to_expr

from .context import LoweringContext
from .elementwise import scalar
from .promotion import is_whole
from .registry import lowering
from .shapes import meta_size
from .view import Computed, Tensor, View, variables

aten = torch.ops.aten
prims = torch.ops.prims


def like_meta(ctx: LoweringContext, value: Any) -> Computed:
    """A tensor of the node's fake result, every element `value` (a number, a size expression, or a node)."""
    meta = ctx.meta
    if meta.layout != torch.strided or meta.is_pinned():
        raise NotImplementedError("pinned memory and other layouts")
    node = value if isinstance(value, Node) else scalar(value, meta.dtype)
    return Computed(meta.dtype, meta.device, meta_size(ctx), _stored(node, meta.dtype))


def _stored(node: Node, dtype: torch.dtype) -> Node:
    """A value as memory of `dtype` would hold it: a number in a half type is rounded when it is stored, so here too."""
    if node.op == "const" and dtype.itemsize == 2 and dtype.is_floating_point:
        return const(torch.tensor(node.attrs[0], dtype=dtype).item(), dtype)
    return cast(node, dtype)


@lowering(aten.full.default)
def full(ctx: LoweringContext, size: Sequence[Any], value: Any, **options: Any) -> Tensor:
    return like_meta(ctx, value)


@lowering(aten.full_like.default, aten.new_full.default)
def full_like(ctx: LoweringContext, x: Tensor, *args: Any, **options: Any) -> Tensor:
    return like_meta(ctx, args[-1])


@lowering(
    aten.zeros.default,
    aten.zeros_like.default,
    aten.new_zeros.default,
    # What an empty tensor holds is for nobody to rely on, so it holds what costs nothing.
    aten.empty.memory_format,
    aten.empty_like.default,
    aten.empty_strided.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
    "aten.empty_permuted.default",
    "prims.empty_strided.default",
    "prims.empty_permuted.default",
)
def zeros(ctx: LoweringContext, *args: Any, **options: Any) -> Tensor:
    return like_meta(ctx, 0)


@lowering(aten._efficientzerotensor.default)
def zero_gradient(ctx: LoweringContext, size: Sequence[Any], **options: Any) -> Tensor:
    """Autograd's zeros, of sgn's gradient, say. torch's own has no memory that a kernel could read."""
    meta = ctx.meta  # a zero tensor too: it does not answer whether it is pinned
    return Computed.full(meta_size(ctx), 0, meta.dtype, meta.device)


@lowering(aten.ones.default, aten.ones_like.default, aten.new_ones.default)
def ones(ctx: LoweringContext, *args: Any, **options: Any) -> Tensor:
    return like_meta(ctx, 1)


@lowering(aten.scalar_tensor.default)
def scalar_tensor(ctx: LoweringContext, value: Any, **options: Any) -> Tensor:
    return like_meta(ctx, value)


@lowering("prims.iota.default")
def iota(
    ctx: LoweringContext, length: Any, *, start: Any, step: Any, dtype: torch.dtype, device: Any, requires_grad: bool
) -> Tensor:
    return like_meta(ctx, build.index(to_expr(start) + variables(1)[0] * to_expr(step)))


@lowering(aten.arange.default, aten.arange.start, aten.arange.start_step)
def arange(ctx: LoweringContext, *args: Any, **options: Any) -> Tensor:
    start, step = (0, 1) if len(args) == 1 else (args[0], args[2] if len(args) > 2 else 1)
    dtype = ctx.meta.dtype
    if all(not isinstance(item, float) and is_whole(to_expr(item)) for item in (start, step)):
        return like_meta(ctx, build.index(to_expr(start) + variables(1)[0] * to_expr(step)))
    # As eager: start + i * step, in double precision on the CPU and in the type that accumulates on CUDA.
    wide = torch.float64 if ctx.meta.device.type == "cpu" else compute_dtype(dtype)
    moved = call("mul", cast(build.index(variables(1)[0]), wide), scalar(step, wide))
    return like_meta(ctx, call("add", scalar(start, wide), moved))


@lowering(aten.linspace.default)
def linspace(ctx: LoweringContext, start: Any, end: Any, steps: Any, **options: Any) -> Tensor:
    """From both ends towards the middle, as in eager, so that the last element is `end` exactly."""
    dtype = ctx.meta.dtype
    if not dtype.is_floating_point or not isinstance(steps, int):
        raise NotImplementedError("linspace of integers or of a symbolic length")
    wide = compute_dtype(dtype)
    position = build.index(variables(1)[0])
    step = torch.tensor((float(end) - float(start)) / max(steps - 1, 1), dtype=wide).item()
    if steps == 1:
        return like_meta(ctx, start)
    count = cast(position, wide)
    forward = call("add", scalar(start, wide), call("mul", const(step, wide), count))
    back = call("sub", const(steps - 1, wide), count)
    backward = call("sub", scalar(end, wide), call("mul", const(step, wide), back))
    first_half = call("lt", position, const(steps // 2, torch.int64))
    return like_meta(ctx, call("where", first_half, forward, backward))


@lowering(aten.eye.default, aten.eye.m)
def eye(ctx: LoweringContext, *args: Any, **options: Any) -> Tensor:
    row, column = variables(2)
    return like_meta(ctx, cast(call("eq", build.index(row), build.index(column)), ctx.meta.dtype))


@lowering(aten.triu.default)
def triu(ctx: LoweringContext, x: Tensor, diagonal: int = 0) -> View:
    return _triangle(ctx, x, "ge", diagonal)


@lowering(aten.tril.default)
def tril(ctx: LoweringContext, x: Tensor, diagonal: int = 0) -> View:
    return _triangle(ctx, x, "le", diagonal)


def _triangle(ctx: LoweringContext, x: Tensor, side: str, diagonal: int) -> View:
    """x where column - row is on `side` of the diagonal, else 0."""

    def body(indices: tuple[Expr, ...]) -> Node:
        row, column = indices[-2:]
        inside = call(side, build.index(column - row), const(diagonal, torch.int64))
        return call("where", inside, x.load(indices), const(0, x.dtype))

    return ctx.pointwise(x.size, x.dtype, x.device, body)
