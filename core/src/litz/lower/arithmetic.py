"""Lowerings of elementwise ops with arguments of their own: alpha, exponents, bounds, conditions, weights."""

from __future__ import annotations

import math
from typing import Any

import torch

from litz.ir import Node
from litz.ir.build import call, cast, const
from litz.ir.dtypes import HALF, compute_dtype

from .context import LoweringContext
from .elementwise import NodeFunction, elementwise, scalar
from .pointwise import divided, floating, like, op, same
from .promotion import result_type
from .registry import lowering
from .view import Tensor, View

aten = torch.ops.aten


def _scaled_operand(name: str, alpha: Any) -> NodeFunction:
    """`name` with its second operand multiplied by alpha first."""
    if alpha == 1:
        return op(name)
    return lambda a, b: call(name, a, call("mul", b, scalar(alpha, b.dtype)))


@lowering("prims.add.default", "prims.sub.default", aten.add.Tensor, aten.sub.Tensor)
def add_or_sub(ctx: LoweringContext, x: Any, y: Any, scale: Any = None, *, alpha: Any = 1) -> View:
    """Lowers add and sub: x + alpha * y or x - alpha * y, in the promoted dtype."""
    scale = alpha if scale is None else scale
    return same(ctx, _scaled_operand(ctx.op_name, scale), x, y, also=scale)


@lowering(aten.div.Tensor, aten.true_divide.Tensor)
def div(ctx: LoweringContext, x: Any, y: Any) -> View:
    """Lowers true division; integers are divided as floats."""
    return floating(ctx, op("div"), x, y)


@lowering(aten.div.Tensor_mode)
def div_mode(ctx: LoweringContext, x: Any, y: Any, *, rounding_mode: str | None = None) -> View:
    """Lowers division with a rounding mode: None, "trunc" (towards zero) or "floor"."""
    if rounding_mode is None:
        return div(ctx, x, y)
    half = result_type(x, y)
    if rounding_mode == "trunc" and half in HALF:
        # Eager rounds the quotient to the half type before it truncates: 3.999 may become 4.
        truncated = lambda a, b: call("trunc", cast(call("div", a, b), half))  # noqa: E731
        return elementwise(ctx, truncated, (x, y), half, compute=torch.float32)
    return divided(ctx, op({"trunc": "truncdiv", "floor": "floordiv"}[rounding_mode]), x, y)


# --------------------------------------------------------------------------------------------------------------- powers


def power_node(base: Node, exponent: float, roots: bool = True) -> Node:
    """Returns base ** exponent for a constant exponent, as products, roots and quotients where these give the same.
    roots: are exponents of 0.5 and -0.5 roots, as torch mostly has them? These differ at -0.0 and -infinity."""
    floats = base.dtype.is_floating_point
    if exponent == 0.5 and floats and roots:
        return call("sqrt", base)
    if exponent == -0.5 and floats and roots:
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
    """Lowers x ** exponent. Errors: NotImplementedError for integers with a negative exponent, which eager refuses."""
    if not isinstance(exponent, (bool, int, float)):
        return same(ctx, op("pow"), x, exponent)
    dtype = result_type(x, exponent)
    if exponent < 0 and not dtype.is_floating_point:
        raise NotImplementedError("an integer to a negative power, which eager refuses")
    if dtype.is_floating_point:
        held = float(cast(const(float(exponent), torch.float64), compute_dtype(dtype)).attrs[0])
        if held != exponent and held.is_integer():
            raise NotImplementedError(f"powers of {exponent}, which {dtype} has as a whole number")
    roots = dtype != torch.float16 or x.device.type != "cpu"  # as eager
    return elementwise(ctx, lambda base: power_node(base, exponent, roots), (x,), dtype, compute=dtype)


# -------------------------------------------------------------------------------------------------- bounds, conditions


@lowering(aten.clamp.default, aten.clamp.Tensor)
def clamp(ctx: LoweringContext, x: Tensor, low: Any = None, high: Any = None) -> View:
    """Lowers clamp: NaN stays NaN, and where low > high the result is high, as in eager."""
    dtype = result_type(x, low, high)
    bounds = [("maximum", low), ("minimum", high)]
    used = [(name, bound) for name, bound in bounds if bound is not None]

    def function(value: Node, *limits: Node) -> Node:
        for (name, _), limit in zip(used, limits, strict=True):
            value = call(name, value, limit)
        return value

    return elementwise(ctx, function, (x, *(bound for _, bound in used)), dtype, compute=dtype)


@lowering(aten.where.self, "prims.where.default", moves=True)
def where(ctx: LoweringContext, condition: Tensor, x: Any, y: Any) -> View:
    """Lowers where: x where the condition holds, else y, in the promoted dtype of both."""
    dtype = result_type(x, y)
    return elementwise(ctx, op("where"), (condition, x, y), dtype, compute=(torch.bool, dtype, dtype))
