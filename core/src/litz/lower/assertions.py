"""Assertions in the graph: of scalars, of ranges, of what a tensor is. Each becomes a Check, or nothing where the
compiler knows that it holds. Those of tensors (`_assert_async`) are calls, as all ops without a lowering."""

from __future__ import annotations

from typing import Any

import sympy
import torch

from litz.capture import torch_api

from .conditions import is_of_floats
from .context import LoweringContext
from .registry import lowering
from .view import Tensor

aten = torch.ops.aten


@lowering(aten._assert_scalar.default, any_dtype=True)
def assert_scalar(ctx: LoweringContext, holds: Any, message: str) -> None:
    """Lowers an assertion of a scalar to a Check; `message` is what the error says, unless the user's own is known."""
    said = torch_api.asserted(ctx.node)
    traced = torch_api.traced_expr(ctx.promises.shape_env, holds if said is None else said[0])
    ctx.promises.assert_true(traced, message if said is None else said[1], holds if is_of_floats(holds) else None)


@lowering(aten.sym_constrain_range.default, any_dtype=True)
@lowering(aten.sym_constrain_range_for_size.default, any_dtype=True)
def constrain_range(ctx: LoweringContext, size: Any, min: Any = None, max: Any = None) -> None:
    """Lowers a constraint of a range to nothing: tracing has recorded the range, and `Promises` has it checked where
    the value is found out."""


@lowering(aten._assert_tensor_metadata.default, any_dtype=True)
def assert_tensor_metadata(
    ctx: LoweringContext,
    x: Tensor,
    size: Any = None,
    stride: Any = None,
    dtype: torch.dtype | None = None,
    *,
    device: torch.device | None = None,
    layout: torch.layout | None = None,
) -> None:
    """Lowers an assertion about a tensor's size, strides, dtype or device, against what tracing recorded of the tensor,
    as eager does; litz may lay it out otherwise."""
    meta = ctx.node.args[0].meta["val"]  # type: ignore[union-attr]
    facts: list[tuple[str, Any, Any]] = [("dtype", meta.dtype, dtype), ("layout", meta.layout, layout)]
    facts += [("device", meta.device.type, None if device is None else torch.device(device).type)]
    for name, have, wanted in facts:
        if wanted is not None and have != wanted:
            ctx.promises.assert_true(sympy.false, f"Tensor {name} mismatch! Expected: {wanted}, Got: {have}")
    for name, sizes, expected in (("sizes", meta.shape, size), ("strides", meta.stride(), stride)):
        if expected is None:
            continue
        have = [torch_api.sympy_of(value) for value in sizes]
        same = len(have) == len(expected)
        condition = sympy.And(*(sympy.Eq(a, b) for a, b in zip(have, expected, strict=True))) if same else sympy.false
        ctx.promises.assert_true(condition, f"Tensor {name} mismatch! Expected: {list(expected)}, Got: {have}")
