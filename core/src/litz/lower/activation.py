"""Lowerings of activation functions and their gradients, for graphs where they are not decomposed.

Each is written as in PyTorch's documentation. Half types compute in float32, as the IR does by itself.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from litz.ir import Node
from litz.ir.build import call

from .context import LoweringContext
from .elementwise import NodeFunction, elementwise
from .pointwise import like, same
from .registry import lowering
from .view import Tensor, View

aten = torch.ops.aten

GELU_CUBIC = 0.044715
"""The coefficient of gelu's tanh approximation (Hendrycks and Gimpel, 2016)."""


def _mul(a: Node, b: Node | float) -> Node:
    return call("mul", a, b if isinstance(b, Node) else like(a, b))


def _add(a: Node, b: Node | float) -> Node:
    return call("add", a, b if isinstance(b, Node) else like(a, b))


def _sub(a: Node, b: Node) -> Node:
    return call("sub", a, b)


def _where(condition: Node, a: Node | float, b: Node | float) -> Node:
    dtype_of = a if isinstance(a, Node) else b
    assert isinstance(dtype_of, Node)
    first = a if isinstance(a, Node) else like(dtype_of, a)
    return call("where", condition, first, b if isinstance(b, Node) else like(dtype_of, b))


def _compare(name: str, a: Node, value: float) -> Node:
    return call(name, a, like(a, value))


def _clip(x: Node, low: float, high: float) -> Node:
    return call("minimum", call("maximum", x, like(x, low)), like(x, high))


def unary(ctx: LoweringContext, function: NodeFunction, x: Tensor) -> View:
    return elementwise(ctx, function, (x,), result=x.dtype)


# ---- gelu


def _tanh_argument(x: Node) -> Node:
    cube = _mul(_mul(x, x), x)
    return _mul(_add(x, _mul(cube, GELU_CUBIC)), math.sqrt(2 / math.pi))


@lowering(aten.gelu.default)
def gelu(ctx: LoweringContext, x: Tensor, *, approximate: str = "none") -> View:
    def exact(v: Node) -> Node:
        return _mul(_mul(v, 0.5), _add(call("erf", _mul(v, math.sqrt(0.5))), 1.0))

    def tanh(v: Node) -> Node:
        return _mul(_mul(v, 0.5), _add(call("tanh", _tanh_argument(v)), 1.0))

    return unary(ctx, exact if approximate == "none" else tanh, x)


@lowering(aten.gelu_backward.default)
def gelu_backward(ctx: LoweringContext, grad: Tensor, x: Tensor, *, approximate: str = "none") -> View:
    def exact(g: Node, v: Node) -> Node:
        cdf = _mul(_add(call("erf", _mul(v, math.sqrt(0.5))), 1.0), 0.5)
        pdf = _mul(call("exp", _mul(_mul(v, v), -0.5)), 1 / math.sqrt(2 * math.pi))
        return _mul(g, _add(cdf, _mul(v, pdf)))

    def tanh(g: Node, v: Node) -> Node:
        curve = call("tanh", _tanh_argument(v))
        left = _mul(_add(curve, 1.0), 0.5)
        slope = _mul(_add(_mul(_mul(v, v), 3 * GELU_CUBIC), 1.0), math.sqrt(2 / math.pi))
        right = _mul(_mul(_mul(v, 0.5), _sub(like(v, 1), _mul(curve, curve))), slope)
        return _mul(g, _add(left, right))

    return same(ctx, exact if approximate == "none" else tanh, grad, x)


# ---- silu, mish, sigmoid


@lowering(aten.silu.default)
def silu(ctx: LoweringContext, x: Tensor) -> View:
    return unary(ctx, lambda v: call("div", v, _add(call("exp", call("neg", v)), 1.0)), x)


@lowering(aten.silu_backward.default)
def silu_backward(ctx: LoweringContext, grad: Tensor, x: Tensor) -> View:
    def function(g: Node, v: Node) -> Node:
        s = call("sigmoid", v)
        return _mul(g, _mul(s, _add(_mul(v, _sub(like(v, 1), s)), 1.0)))

    return same(ctx, function, grad, x)


@lowering(aten.mish.default)
def mish(ctx: LoweringContext, x: Tensor) -> View:
    return unary(ctx, lambda v: _mul(v, call("tanh", _softplus(v, 1.0, 20.0))), x)


@lowering(aten.mish_backward.default)
def mish_backward(ctx: LoweringContext, grad: Tensor, x: Tensor) -> View:
    def function(g: Node, v: Node) -> Node:
        s, t = call("sigmoid", v), call("tanh", _softplus(v, 1.0, 20.0))
        return _mul(g, _add(t, _mul(_mul(v, s), _sub(like(v, 1), _mul(t, t)))))

    return same(ctx, function, grad, x)


@lowering(aten.sigmoid_backward.default)
def sigmoid_backward(ctx: LoweringContext, grad: Tensor, y: Tensor) -> View:
    return same(ctx, lambda g, v: _mul(_mul(g, _sub(like(v, 1), v)), v), grad, y)


@lowering(aten.tanh_backward.default)
def tanh_backward(ctx: LoweringContext, grad: Tensor, y: Tensor) -> View:
    return same(ctx, lambda g, v: _mul(g, _sub(like(v, 1), _mul(v, v))), grad, y)


@lowering(aten.logit_backward.default)
def logit_backward(ctx: LoweringContext, grad: Tensor, x: Tensor, eps: float | None = None) -> View:
    def function(g: Node, v: Node) -> Node:
        low, high = (0.0, 1.0) if eps is None else (eps, 1 - eps)
        outside = call("bitwise_or", _compare("lt", v, low), _compare("gt", v, high))
        slope = call("div", g, _mul(v, _sub(like(v, 1), v)))
        return _where(outside, math.nan if eps is None else 0.0, slope)

    return same(ctx, function, grad, x)


# ---- piecewise linear


@lowering(aten.relu6.default)
def relu6(ctx: LoweringContext, x: Tensor) -> View:
    return unary(ctx, lambda v: _clip(v, 0, 6), x)


@lowering(aten.threshold.default)
def threshold(ctx: LoweringContext, x: Tensor, limit: float, value: float) -> View:
    return unary(ctx, lambda v: _where(_compare("le", v, limit), value, v), x)


@lowering(aten.threshold_backward.default)
def threshold_backward(ctx: LoweringContext, grad: Tensor, x: Tensor, limit: float) -> View:
    return same(ctx, lambda g, v: _where(_compare("le", v, limit), 0, g), grad, x)


@lowering(aten.leaky_relu.default)
def leaky_relu(ctx: LoweringContext, x: Tensor, slope: float = 0.01) -> View:
    return unary(ctx, lambda v: _where(_compare("gt", v, 0), v, _mul(v, slope)), x)


@lowering(aten.leaky_relu_backward.default)
def leaky_relu_backward(ctx: LoweringContext, grad: Tensor, x: Tensor, slope: float, is_result: bool) -> View:
    return same(ctx, lambda g, v: _where(_compare("gt", v, 0), g, _mul(g, slope)), grad, x)


@lowering("aten._prelu_kernel.default")
def prelu(ctx: LoweringContext, x: Tensor, weight: Tensor) -> View:
    return same(ctx, lambda v, w: _where(_compare("gt", v, 0), v, _mul(w, v)), x, weight)


@lowering(aten.hardtanh.default)
def hardtanh(ctx: LoweringContext, x: Tensor, low: float = -1, high: float = 1) -> View:
    return unary(ctx, lambda v: _clip(v, low, high), x)


@lowering(aten.hardtanh_backward.default)
def hardtanh_backward(ctx: LoweringContext, grad: Tensor, x: Tensor, low: float, high: float) -> View:
    def function(g: Node, v: Node) -> Node:
        return _where(call("bitwise_or", _compare("le", v, low), _compare("ge", v, high)), 0, g)

    return same(ctx, function, grad, x)


@lowering(aten.hardsigmoid.default)
def hardsigmoid(ctx: LoweringContext, x: Tensor) -> View:
    return unary(ctx, lambda v: call("div", _clip(_add(v, 3.0), 0, 6), like(v, 6)), x)


@lowering(aten.hardsigmoid_backward.default)
def hardsigmoid_backward(ctx: LoweringContext, grad: Tensor, x: Tensor) -> View:
    def function(g: Node, v: Node) -> Node:
        inside = call("bitwise_and", _compare("gt", v, -3), _compare("lt", v, 3))
        return _where(inside, _mul(g, 1 / 6), 0)

    return same(ctx, function, grad, x)


@lowering(aten.hardswish.default)
def hardswish(ctx: LoweringContext, x: Tensor) -> View:
    return unary(ctx, lambda v: call("div", _mul(v, _clip(_add(v, 3.0), 0, 6)), like(v, 6)), x)


@lowering(aten.hardswish_backward.default)
def hardswish_backward(ctx: LoweringContext, grad: Tensor, x: Tensor) -> View:
    def function(g: Node, v: Node) -> Node:
        middle = _mul(g, _add(call("div", v, like(v, 3)), 0.5))
        return _where(_compare("le", v, -3), 0, _where(_compare("lt", v, 3), middle, g))

    return same(ctx, function, grad, x)


@lowering(aten.hardshrink.default, aten.softshrink.default)
def shrink(ctx: LoweringContext, x: Tensor, limit: float = 0.5) -> View:
    assert ctx.node is not None
    soft = "softshrink" in str(ctx.node.target)

    def function(v: Node) -> Node:
        inside = call("bitwise_and", _compare("ge", v, -limit), _compare("le", v, limit))
        kept = v
        if soft:
            kept = _where(_compare("gt", v, 0), _add(v, -limit), _add(v, limit))
        return _where(inside, 0, kept)

    return unary(ctx, function, x)


@lowering(aten.hardshrink_backward.default, aten.softshrink_backward.default)
def shrink_backward(ctx: LoweringContext, grad: Tensor, x: Tensor, limit: float) -> View:
    def function(g: Node, v: Node) -> Node:
        return _where(call("bitwise_and", _compare("ge", v, -limit), _compare("le", v, limit)), 0, g)

    return same(ctx, function, grad, x)


# ---- exponentials


def _softplus(v: Node, beta: float, limit: float) -> Node:
    scaled = _mul(v, beta)
    curve = call("div", call("log1p", call("exp", scaled)), like(v, beta))
    return _where(_compare("gt", scaled, limit), v, curve)


@lowering(aten.softplus.default)
def softplus(ctx: LoweringContext, x: Tensor, beta: float = 1, threshold: float = 20) -> View:
    return unary(ctx, lambda v: _softplus(v, beta, threshold), x)


@lowering(aten.softplus_backward.default)
def softplus_backward(ctx: LoweringContext, grad: Tensor, x: Tensor, beta: float, limit: float) -> View:
    def function(g: Node, v: Node) -> Node:
        scaled = _mul(v, beta)
        return _where(_compare("gt", scaled, limit), g, _mul(g, call("sigmoid", scaled)))

    return same(ctx, function, grad, x)


@lowering(aten.elu.default)
def elu(ctx: LoweringContext, x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> View:
    def function(v: Node) -> Node:
        negative = _mul(call("expm1", _mul(v, input_scale)), alpha * scale)
        return _where(_compare("le", v, 0), negative, _mul(v, scale))

    return unary(ctx, function, x)


@lowering(aten.celu.default)
def celu(ctx: LoweringContext, x: Tensor, alpha: float = 1) -> View:
    return elu(ctx, x, alpha, 1, 1 / alpha)


@lowering(aten.elu_backward.default)
def elu_backward(
    ctx: LoweringContext, grad: Tensor, alpha: float, scale: float, input_scale: float, is_result: bool, x: Tensor
) -> View:
    def function(g: Node, v: Node) -> Node:
        if is_result:
            negative = _mul(_mul(g, input_scale), _add(v, alpha * scale))
        else:
            negative = _mul(_mul(g, alpha * scale * input_scale), call("exp", _mul(v, input_scale)))
        return _where(_compare("le", v, 0), negative, _mul(g, scale))

    return same(ctx, function, grad, x)


@lowering(aten.log_sigmoid_backward.default)
def log_sigmoid_backward(ctx: LoweringContext, grad: Tensor, x: Tensor, buffer: Any) -> View:
    return same(ctx, lambda g, v: _mul(g, call("sigmoid", call("neg", v))), grad, x)
