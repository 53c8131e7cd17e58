"""Lowerings of elementwise ops with arguments of their own: alpha, exponents, bounds, conditions, weights."""

from __future__ import annotations

import math
from typing import Any

import torch

from litz.ir import Node
from litz.ir.build import call, cast, const
from litz.ir.dtypes import HALF

from .context import Indices, LoweringContext
from .elementwise import NodeFunction, broadcast_size, device_of, elementwise, operand, scalar
from .pointwise import floating, like, op, same
from .promotion import result_type
from .registry import lowering
from .view import Tensor, View

aten = torch.ops.aten


def _scaled_operand(name: str, alpha: Any) -> NodeFunction:
    """`name` with its second operand multiplied by alpha first."""
    if alpha == 1:
        return op(name)
    return lambda a, b: call(name, a, call("mul", b, scalar(alpha, b.dtype)))


@lowering(aten.add.Tensor, aten.add.Scalar)
def add(ctx: LoweringContext, x: Any, y: Any, scale: Any = None, *, alpha: Any = 1) -> View:
    return same(ctx, _scaled_operand("add", alpha if scale is None else scale), x, y)


@lowering(aten.sub.Tensor, aten.sub.Scalar)
def sub(ctx: LoweringContext, x: Any, y: Any, scale: Any = None, *, alpha: Any = 1) -> View:
    return same(ctx, _scaled_operand("sub", alpha if scale is None else scale), x, y)


@lowering(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(ctx: LoweringContext, x: Any, y: Any, scale: Any = None, *, alpha: Any = 1) -> View:
    function = _scaled_operand("sub", alpha if scale is None else scale)
    return same(ctx, lambda a, b: function(b, a), x, y)


@lowering("prims.add.default", "prims.sub.default", "prims.mul.default", aten.mul.Tensor, aten.mul.Scalar)
def arithmetic(ctx: LoweringContext, x: Any, y: Any) -> View:
    assert ctx.node is not None
    return same(ctx, op(ctx.node.target._opname), x, y)  # type: ignore[union-attr]


@lowering(aten.div.Tensor, aten.div.Scalar)
def div(ctx: LoweringContext, x: Any, y: Any) -> View:
    return floating(ctx, op("div"), x, y)


@lowering("prims.div.default")
def prims_div(ctx: LoweringContext, x: Any, y: Any) -> View:
    """Integers divide as in C."""
    return same(ctx, lambda a, b: call("div" if a.dtype.is_floating_point else "truncdiv", a, b), x, y)


@lowering(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(ctx: LoweringContext, x: Any, y: Any, *, rounding_mode: str | None = None) -> View:
    if rounding_mode is None:
        return div(ctx, x, y)
    if rounding_mode == "trunc" and result_type(x, y) in HALF:
        return same(ctx, _truncated_half, x, y)
    return same(ctx, op({"trunc": "truncdiv", "floor": "floordiv"}[rounding_mode]), x, y)


def _truncated_half(a: Node, b: Node) -> Node:
    """Eager rounds the quotient to the half type before it truncates: 3.999 may become 4."""
    quotient = call("div", cast(a, torch.float32), cast(b, torch.float32))
    return call("trunc", cast(quotient, a.dtype))


# --------------------------------------------------------------------------------------------------------------- powers


def power_node(base: Node, exponent: float) -> Node:
    """base ** exponent for a constant exponent: products, roots and quotients where these say the same."""
    floats = base.dtype.is_floating_point
    if exponent == 0.5 and floats:
        return call("sqrt", base)
    if exponent == -0.5 and floats:
        return call("rsqrt", base)
    whole = int(exponent) if math.isfinite(exponent) and exponent == int(exponent) else None
    if whole is None or abs(whole) > 8 or (whole < 0 and not floats):
        return call("pow", base, like(base, exponent))
    if whole == 0:
        return like(base, 1)
    result: Node | None = None
    square, left = base, abs(whole)
    while left:
        if left & 1:
            result = square if result is None else call("mul", result, square)
        left >>= 1
        if left:
            square = call("mul", square, square)
    assert result is not None
    return call("reciprocal", result) if whole < 0 else result


@lowering(aten.pow.Tensor_Scalar)
def pow_scalar(ctx: LoweringContext, x: Tensor, exponent: Any) -> View:
    if not isinstance(exponent, (bool, int, float)):
        return same(ctx, op("pow"), x, exponent)
    dtype = result_type(x, exponent)
    return elementwise(ctx, lambda base: power_node(base, exponent), (x,), compute=dtype, result=dtype)


@lowering(aten.pow.Tensor_Tensor, aten.pow.Scalar, "prims.pow.default")
def pow_tensor(ctx: LoweringContext, x: Any, exponent: Any) -> View:
    return same(ctx, op("pow"), x, exponent)


@lowering(aten.float_power.Tensor_Scalar, aten.float_power.Tensor_Tensor, aten.float_power.Scalar)
def float_power(ctx: LoweringContext, x: Any, exponent: Any) -> View:
    return elementwise(ctx, op("pow"), (x, exponent), compute=torch.float64, result=torch.float64)


# -------------------------------------------------------------------------------------------------- bounds, conditions


@lowering(aten.clamp.default, aten.clamp.Tensor)
def clamp(ctx: LoweringContext, x: Tensor, low: Any = None, high: Any = None) -> View:
    """NaN stays NaN, and where low > high the result is high, as in eager."""
    dtype = result_type(x, low, high)
    bounds = [("maximum", low), ("minimum", high)]
    used = [(name, bound) for name, bound in bounds if bound is not None]

    def function(value: Node, *limits: Node) -> Node:
        for (name, _), limit in zip(used, limits, strict=True):
            value = call(name, value, limit)
        return value

    return elementwise(ctx, function, (x, *(bound for _, bound in used)), compute=dtype, result=dtype)


@lowering(aten.clamp_min.default, aten.clamp_min.Tensor)
def clamp_min(ctx: LoweringContext, x: Tensor, low: Any) -> View:
    return clamp(ctx, x, low, None)


@lowering(aten.clamp_max.default, aten.clamp_max.Tensor)
def clamp_max(ctx: LoweringContext, x: Tensor, high: Any) -> View:
    return clamp(ctx, x, None, high)


@lowering(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar, "prims.where.default")
def where(ctx: LoweringContext, condition: Tensor, x: Any, y: Any) -> View:
    dtype = result_type(x, y)
    return elementwise(ctx, op("where"), (condition, x, y), compute=(torch.bool, dtype, dtype), result=dtype)


@lowering(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(ctx: LoweringContext, x: Tensor, mask: Tensor, value: Any) -> View:
    """The result has the dtype of x whatever the value's."""
    size, dtype = broadcast_size(x, mask), x.dtype

    def body(indices: Indices) -> Node:
        filled = operand(value, indices, dtype)
        return call("where", operand(mask, indices, torch.bool), filled, operand(x, indices, dtype))

    return ctx.pointwise(size, dtype, device_of(x, mask), body)


@lowering(aten.nan_to_num.default)
def nan_to_num(
    ctx: LoweringContext, x: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> View:
    dtype = x.dtype

    def function(value: Node) -> Node:
        if not dtype.is_floating_point:
            return value
        limits = torch.finfo(dtype)
        high = const(limits.max if posinf is None else posinf, dtype)
        low = const(limits.min if neginf is None else neginf, dtype)
        value = call("where", call("eq", value, const(math.inf, dtype)), high, value)
        value = call("where", call("eq", value, const(-math.inf, dtype)), low, value)
        return call("where", call("isnan", value), const(nan or 0.0, dtype), value)

    return elementwise(ctx, function, (x,), result=dtype)


@lowering(aten.round.decimals)
def round_decimals(ctx: LoweringContext, x: Tensor, *, decimals: int = 0) -> View:
    def function(value: Node) -> Node:
        if not value.dtype.is_floating_point or decimals == 0:
            return call("round", value) if value.dtype.is_floating_point else value
        factor = like(value, 10.0 ** abs(decimals))
        first, then = ("mul", "div") if decimals > 0 else ("div", "mul")
        return call(then, call("round", call(first, value, factor)), factor)

    return elementwise(ctx, function, (x,), result=x.dtype)


@lowering(aten.logit.default, aten.special_logit.default)
def logit(ctx: LoweringContext, x: Tensor, eps: float | None = None) -> View:
    def function(value: Node) -> Node:
        if eps is not None:
            value = call("maximum", call("minimum", value, like(value, 1 - eps)), like(value, eps))
        return call("log", call("div", value, call("sub", like(value, 1), value)))

    return floating(ctx, function, x)


# ------------------------------------------------------------------------------------------------------------- mixtures


@lowering(aten.lerp.Scalar, aten.lerp.Tensor)
def lerp(ctx: LoweringContext, start: Tensor, end: Tensor, weight: Any) -> View:
    """From the nearer end, as in eager, so that weight 1 gives `end` exactly."""

    def function(a: Node, b: Node, w: Node) -> Node:
        gap = call("sub", b, a)
        near = call("add", a, call("mul", w, gap))
        far = call("sub", b, call("mul", gap, call("sub", like(w, 1), w)))
        return call("where", call("lt", call("abs", w), like(w, 0.5)), near, far)

    return elementwise(ctx, function, (start, end, weight), compute=start.dtype, result=start.dtype)


@lowering(aten.addcmul.default)
def addcmul(ctx: LoweringContext, x: Tensor, a: Tensor, b: Tensor, *, value: Any = 1) -> View:
    def function(base: Node, left: Node, right: Node) -> Node:
        scaled = left if value == 1 else call("mul", left, scalar(value, left.dtype))
        return call("add", base, call("mul", scaled, right))

    return same(ctx, function, x, a, b)


@lowering(aten.addcdiv.default)
def addcdiv(ctx: LoweringContext, x: Tensor, a: Tensor, b: Tensor, *, value: Any = 1) -> View:
    def function(base: Node, left: Node, right: Node) -> Node:
        scaled = left if value == 1 else call("mul", left, scalar(value, left.dtype))
        return call("add", base, call("div", scaled, right))

    return floating(ctx, function, x, a, b)


@lowering("prims.fma.default")
def fma(ctx: LoweringContext, a: Any, b: Any, c: Any) -> View:
    return same(ctx, op("fma"), a, b, c)


@lowering(aten.native_dropout_backward.default)
def native_dropout_backward(ctx: LoweringContext, grad: Tensor, mask: Tensor, scale: float) -> View:
    def function(value: Node, kept: Node) -> Node:
        return call("mul", call("mul", value, kept), like(value, scale))

    return elementwise(ctx, function, (grad, mask), compute=grad.dtype, result=grad.dtype)


@lowering(aten.logical_not.default)
def logical_not(ctx: LoweringContext, x: Tensor) -> View:
    return elementwise(ctx, lambda v: call("bitwise_not", cast(v, torch.bool)), (x,), result=torch.bool)
