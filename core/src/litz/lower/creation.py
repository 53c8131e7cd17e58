"""Lowerings of ops that make tensors from nothing: they become Computed values, which take memory only if they must."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from litz.capture.joint.size_readers import is_read_for_sizes
from litz.ir import Node, build
from litz.ir.build import cast, const
from litz.ir.dtypes import ROUNDED
from litz.ir.index import to_expr

from .context import LoweringContext
from .elementwise import scalar
from .registry import lowering
from .shapes import meta_size
from .view import Computed, Tensor, variables

aten = torch.ops.aten
prims = torch.ops.prims


def like_meta(ctx: LoweringContext, value: Any) -> Computed:
    """Returns a tensor like the node's fake result, with `value` (a number, a size expression or a node) as every
    element. Errors: NotImplementedError for pinned memory and layouts that are not strided."""
    meta = ctx.meta
    if meta.layout != torch.strided or meta.is_pinned():
        raise NotImplementedError("pinned memory and other layouts")
    node = value if isinstance(value, Node) else scalar(value, meta.dtype)
    return Computed(meta.dtype, meta.device, meta_size(ctx), _stored(node, meta.dtype))


def _stored(node: Node, dtype: torch.dtype) -> Node:
    """A value as memory of `dtype` would hold it: a number in a half type is rounded when it is stored, so here too."""
    if node.op == "const" and dtype in ROUNDED:
        return const(torch.tensor(node.attrs[0], dtype=dtype).item(), dtype)
    return cast(node, dtype)


@lowering(aten.full.default, aten.full_like.default, aten.scalar_tensor.default, moves=True)
def full(ctx: LoweringContext, *args: Any, **options: Any) -> Tensor:
    """Lowers ops that fill a tensor with their last argument."""
    return like_meta(ctx, args[-1])


@lowering(
    # What an empty tensor holds is for nobody to rely on, so it holds what costs nothing.
    aten.empty.memory_format,
    aten.empty_strided.default,
    aten.new_empty_strided.default,
    "aten.empty_permuted.default",
    "prims.empty_strided.default",
    "prims.empty_permuted.default",
    moves=True,
)
def zeros(ctx: LoweringContext, *args: Any, **options: Any) -> Tensor:
    """Lowers ops for uninitialised tensors to zeros, which take no memory until something must be in memory. Errors:
    NotImplementedError for what is read for its sizes alone, and in torch's deterministic mode, which fills it."""
    if torch.are_deterministic_algorithms_enabled() or is_read_for_sizes(ctx.node):
        raise NotImplementedError("torch's values, or none")
    return like_meta(ctx, 0)


@lowering(aten._efficientzerotensor.default)
def zero_gradient(ctx: LoweringContext, size: Sequence[Any], **options: Any) -> Tensor:
    """Lowers autograd's zeros (of sgn's gradient, say) to computed zeros: torch's own tensor has no memory that a
    kernel could read."""
    meta = ctx.meta  # a zero tensor too: it does not answer whether it is pinned
    return Computed.full(meta_size(ctx), 0, meta.dtype, meta.device)


@lowering("prims.iota.default")
def iota(
    ctx: LoweringContext, length: Any, *, start: Any, step: Any, dtype: torch.dtype, device: Any, requires_grad: bool
) -> Tensor:
    """Lowers iota: start + i * step for i below `length`."""
    return like_meta(ctx, build.index(to_expr(start) + variables(1)[0] * to_expr(step)))
