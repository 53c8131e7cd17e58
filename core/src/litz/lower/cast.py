"""Lowerings of casts, copies and fills: what changes dtype, layout or all of the values, but computes nothing."""

from __future__ import annotations

import torch

from litz.ir import Node
from litz.ir.build import bitcast, cast

from .context import Indices, LoweringContext
from .elementwise import elementwise, operand
from .registry import lowering
from .view import Computed, Tensor, View

aten = torch.ops.aten
prims = torch.ops.prims


def converted(ctx: LoweringContext, x: Tensor, dtype: torch.dtype) -> View:
    """A fresh tensor of another dtype (or the same), laid out as the node's result."""
    return elementwise(ctx, lambda value: cast(value, dtype), (x,), result=dtype)


@lowering(prims.convert_element_type.default)
def convert_element_type(ctx: LoweringContext, x: Tensor, dtype: torch.dtype) -> View:
    return converted(ctx, x, dtype)


@lowering(aten._to_copy.default)
def to_copy(
    ctx: LoweringContext,
    x: Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> Tensor:
    target = x.device if device is None else ctx.meta.device
    if pin_memory or (layout is not None and layout != torch.strided):
        raise NotImplementedError("pinned memory and other layouts")
    if target == x.device:
        return converted(ctx, x, dtype or x.dtype)
    if isinstance(x, Computed):
        # Nothing has to travel: it is computed where it is wanted.
        return moved(x, dtype or x.dtype, target)
    raise NotImplementedError("a copy between devices")


def moved(x: Computed, dtype: torch.dtype, device: torch.device) -> Computed:
    """A computed tensor on another device, of another dtype."""
    return Computed(dtype, device, x.size, cast(x.value, dtype))


@lowering(aten.clone.default)
def clone(ctx: LoweringContext, x: Tensor, *, memory_format: torch.memory_format | None = None) -> View:
    """A copy with the strides of the fake result, which say what the memory format means."""
    return ctx.copy(x, ctx.meta_strides(x.size))


@lowering("prims.clone.default", aten.lift_fresh_copy.default)
def plain_clone(ctx: LoweringContext, x: Tensor, *, memory_format: torch.memory_format | None = None) -> Tensor:
    return ctx.copy(x, ctx.meta_strides(x.size))


@lowering(aten.copy.default, "prims.copy_to.default")
def copy(ctx: LoweringContext, x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """The values of `source`, broadcast and cast to what x is; x itself stays as it was."""
    if source.device != x.device and (source.ndim or source.device.type != "cpu"):
        raise NotImplementedError("a copy between devices")
    return ctx.pointwise(x.size, x.dtype, x.device, lambda indices: operand(source, indices, x.dtype))


@lowering(aten.copy_.default)
def copy_(ctx: LoweringContext, x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """Write `source` into x's memory: the update of an input at the end of a graph."""
    if not isinstance(x, View) or (source.device != x.device and (source.ndim or source.device.type != "cpu")):
        raise NotImplementedError("a copy between devices")
    if isinstance(source, View) and source.buffer is x.buffer:
        if source.index == x.index and source.size == x.size:
            return x
        # It reads what it writes, at other places: every read comes first.
        source = ctx.copy(source)

    def body(indices: Indices) -> Node:
        return operand(source, indices, x.dtype)

    ctx.write(x, body)
    return x


@lowering(aten.view.dtype)
def view_dtype(ctx: LoweringContext, x: Tensor, dtype: torch.dtype) -> Tensor:
    """The same bits as a dtype of the same width."""
    if x.dtype.itemsize != dtype.itemsize or torch.bool in (x.dtype, dtype) or isinstance(x, Computed):
        raise NotImplementedError("a view of another width")
    return elementwise(ctx, lambda value: bitcast(value, dtype), (x,), result=dtype)


@lowering("prims.device_put.default")
def device_put(ctx: LoweringContext, x: Tensor, device: torch.device, non_blocking: bool = False) -> Tensor:
    if isinstance(x, Computed):
        return moved(x, x.dtype, ctx.meta.device)
    raise NotImplementedError("a copy between devices")
