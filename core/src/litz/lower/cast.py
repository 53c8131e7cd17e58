"""Lowerings of casts, copies and fills: what changes dtype, layout or all of the values, but computes nothing."""

from __future__ import annotations

import torch

from litz.ir.build import cast

from .context import LoweringContext
from .elementwise import elementwise, operand
from .registry import lowering
from .view import Computed, Tensor, View

aten = torch.ops.aten
prims = torch.ops.prims


@lowering(prims.convert_element_type.default, moves=True)
def converted(ctx: LoweringContext, x: Tensor, dtype: torch.dtype) -> View:
    """Returns a new tensor with the elements of x converted to `dtype` (which may be that of x), laid out as the node's
    result."""
    return elementwise(ctx, lambda value: cast(value, dtype), (x,), dtype)


@lowering(aten._to_copy.default, moves=True)
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
    """Lowers a copy to another dtype or device. Errors: NotImplementedError for pinned memory and for layouts that are
    not strided."""
    if pin_memory or (layout is not None and layout != torch.strided):
        raise NotImplementedError("pinned memory and other layouts")
    if device is None or ctx.meta.device == x.device:
        return converted(ctx, x, dtype or x.dtype)
    return moved(ctx, x, dtype or x.dtype)


@lowering("prims.device_put.default", moves=True)
def device_put(ctx: LoweringContext, x: Tensor, device: torch.device, non_blocking: bool = False) -> Tensor:
    """Lowers a copy to another device."""
    return moved(ctx, x, x.dtype)


def moved(ctx: LoweringContext, x: Tensor, dtype: torch.dtype) -> Tensor:
    """A tensor on the device of the node's result. What is computed has not to travel: it is computed there. A number
    of the CPU's is an argument of the kernel that reads it."""
    if not isinstance(x, Computed):
        return ctx.pointwise(x.size, dtype, ctx.meta.device, lambda indices: cast(x.load(indices), dtype))
    return Computed(dtype, ctx.meta.device, x.size, cast(x.value, dtype))


@lowering(aten.clone.default, "prims.clone.default", aten.lift_fresh_copy.default, moves=True)
def clone(ctx: LoweringContext, x: Tensor, *, memory_format: torch.memory_format | None = None) -> View:
    """Lowers clone: a copy with the strides of the fake result, which follow from the memory format."""
    return ctx.copy(x, ctx.meta_strides(x.size))


@lowering(aten.copy.default, "prims.copy_to.default", moves=True)
def copy(ctx: LoweringContext, x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """Lowers copy: the values of `source`, broadcast to the size of x and cast to its dtype; x itself stays."""
    return ctx.pointwise(x.size, x.dtype, x.device, lambda indices: operand(source, indices, x.dtype))


@lowering(aten.copy_.default, moves=True)
def copy_(ctx: LoweringContext, x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """Lowers copy_, the update of an input at the end of a graph: writes `source` into the memory of x."""
    if not isinstance(x, View):
        raise NotImplementedError("x has no memory")
    if isinstance(source, View) and source.buffer is x.buffer:
        if source.index == x.index and source.size == x.size:
            return x
        # It reads what it writes, at other places: every read comes first.
        source = ctx.copy(source)

    ctx.write(x, lambda indices: operand(source, indices, x.dtype))
    return x
