"""Lowerings of ATen's elementwise ops, from tables: op, how dtypes promote, what it computes.

The rows name ops of `ir/ops.py` or functions of nodes. Three kinds of promotion cover nearly all: `same` (the operands
meet in one dtype, which is the result's), `floating` (likewise, but integers become float) and `predicate` (they meet,
and the result is bool).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from litz.ir import Node
from litz.ir.build import call, cast, const, rounded
from litz.ir.dtypes import HALF

from .context import LoweringContext
from .elementwise import NodeFunction, device_of, elementwise
from .promotion import result_type, to_float
from .registry import lowering
from .view import View

bool_ = torch.bool


def op(name: str) -> NodeFunction:
    """The op of the table `name` as a function of nodes."""
    return partial(call, name)


def like(node: Node, value: float) -> Node:
    """A constant of a node's dtype."""
    return const(value, node.dtype)


def same(ctx: LoweringContext, function: NodeFunction, *args: Any) -> View:
    """Operands meet in one dtype, the result's."""
    dtype = result_type(*args)
    return elementwise(ctx, function, args, compute=dtype, result=dtype)


def floating(ctx: LoweringContext, function: NodeFunction, *args: Any) -> View:
    """Operands meet in a floating-point dtype, the result's."""
    dtype = to_float(result_type(*args))
    return elementwise(ctx, function, args, compute=dtype, result=dtype)


def predicate(ctx: LoweringContext, function: NodeFunction, *args: Any) -> View:
    """Operands meet in one dtype; the result is bool."""
    dtype = result_type(*args)
    if dtype in HALF and device_of(*args).type == "cpu":
        # Eager's CPU kernels round a Python number to the tensor's dtype before they compare; its CUDA kernels do not.
        args = tuple(torch.tensor(arg, dtype=dtype).item() if isinstance(arg, float) else arg for arg in args)
    return elementwise(ctx, function, args, compute=dtype, result=bool_)


def logical(ctx: LoweringContext, function: NodeFunction, *args: Any) -> View:
    """Each operand becomes bool, and so is the result."""
    return elementwise(ctx, function, args, compute=bool_, result=bool_)


Kind = Callable[..., View]


def _register(kind: Kind, function: NodeFunction, arity: int, names: tuple[str, ...]) -> None:
    @lowering(*names)
    def lowered(ctx: LoweringContext, *args: Any) -> View:
        if len(args) != arity:
            raise NotImplementedError(f"{len(args)} arguments")
        return kind(ctx, function, *args)


def _names(name: str, *overloads: str) -> tuple[str, ...]:
    return tuple(f"aten.{name}.{overload}" for overload in overloads) + (f"prims.{name}.default",)


# ------------------------------------------------------------------------------------------------------------- tables


def integral(function: NodeFunction) -> NodeFunction:
    """A rounding function, which leaves integers alone."""
    return lambda x: function(x) if x.dtype.is_floating_point else x


def never_for_integers(function: NodeFunction) -> NodeFunction:
    """A test that only floating-point values can pass."""
    return lambda x: function(x) if x.dtype.is_floating_point else const(False, bool_)


def _pair(float_op: str, other_op: str) -> NodeFunction:
    return lambda a, b: call(float_op if a.dtype.is_floating_point else other_op, a, b)


def _sinc(x: Node) -> Node:
    angle = call("mul", x, like(x, math.pi))
    return call("where", call("eq", x, like(x, 0)), like(x, 1), call("div", call("sin", angle), angle))


def _entr(x: Node) -> Node:
    positive = call("neg", call("mul", x, call("log", x)))
    rest = call("where", call("eq", x, like(x, 0)), like(x, 0), like(x, -math.inf))
    inside = call("where", call("gt", x, like(x, 0)), positive, rest)
    return call("where", call("isnan", x), x, inside)


def _xlogy(log: str) -> NodeFunction:
    def function(x: Node, y: Node) -> Node:
        product = call("mul", x, call(log, y))
        at_zero = call("where", call("eq", x, like(x, 0)), like(x, 0), product)
        return call("where", call("isnan", y), y, at_zero)

    return function


def _logaddexp(base: float) -> NodeFunction:
    def function(a: Node, b: Node) -> Node:
        # Equal infinities: their difference would be NaN.
        alike = call("bitwise_and", call("isinf", a), call("eq", a, b))
        gap = call("neg", call("abs", call("sub", a, b)))
        small = call("log1p", call("exp" if base == math.e else "exp2", gap))
        if base != math.e:
            small = call("mul", small, like(small, 1 / math.log(base)))
        return call("where", alike, a, call("add", call("maximum", a, b), small))

    return function


def _heaviside(x: Node, at_zero: Node) -> Node:
    step = cast(call("gt", x, like(x, 0)), x.dtype)
    return call("where", call("eq", x, like(x, 0)), at_zero, step)


def _scaled(factor: float) -> NodeFunction:
    return lambda x: call("mul", x, like(x, factor))


def _ndtr(x: Node) -> Node:
    """The normal distribution's cumulative function."""
    return call("mul", call("erfc", call("mul", x, like(x, -math.sqrt(0.5)))), like(x, 0.5))


_FLOATING_UNARY: dict[str, NodeFunction] = {
    **{name: op(name) for name in (
        "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh",
        "cosh", "tanh", "asinh", "acosh", "atanh", "sqrt", "rsqrt", "reciprocal", "erf", "erfc", "lgamma", "sigmoid")},
    "erfinv": op("erfinv"),
    "sinc": _sinc,
    "special_entr": _entr,
    "special_ndtr": _ndtr,
    "deg2rad": _scaled(math.pi / 180),
    "rad2deg": _scaled(180 / math.pi),
}  # fmt: skip

_SAME_UNARY: dict[str, NodeFunction] = {
    "neg": op("neg"),
    "abs": lambda x: x if x.dtype in (bool_, torch.uint8) else call("abs", x),
    "sign": op("sign"),
    "sgn": op("sign"),
    "positive": lambda x: x,
    "square": lambda x: call("mul", x, x),
    "floor": integral(op("floor")),
    "ceil": integral(op("ceil")),
    "trunc": integral(op("trunc")),
    "fix": integral(op("trunc")),
    "round": integral(op("round")),
    "frac": lambda x: call("sub", x, call("trunc", x)),
    "bitwise_not": op("bitwise_not"),
    "relu": lambda x: call("maximum", x, like(x, 0)),
    "real": lambda x: x,
    "conj_physical": lambda x: x,
}

_TESTS: dict[str, NodeFunction] = {
    "isnan": never_for_integers(op("isnan")),
    "isinf": never_for_integers(op("isinf")),
    "isposinf": never_for_integers(lambda x: call("eq", x, like(x, math.inf))),
    "isneginf": never_for_integers(lambda x: call("eq", x, like(x, -math.inf))),
    "isfinite": lambda x: (
        call("lt", call("abs", x), like(x, math.inf)) if x.dtype.is_floating_point else const(True, bool_)
    ),
    "signbit": lambda x: const(False, bool_) if x.dtype == bool_ else call("signbit", x),
}

_SAME_BINARY: dict[str, NodeFunction] = {
    "maximum": op("maximum"),
    "minimum": op("minimum"),
    "fmax": _pair("fmax", "maximum"),
    "fmin": _pair("fmin", "minimum"),
    "remainder": op("remainder"),
    "fmod": op("fmod"),
    "floor_divide": op("floordiv"),
    "nextafter": op("nextafter"),
    "hypot": op("hypot"),
    "heaviside": _heaviside,
    "bitwise_and": op("bitwise_and"),
    "bitwise_or": op("bitwise_or"),
    "bitwise_xor": op("bitwise_xor"),
    "bitwise_left_shift": op("shift_left"),
    "bitwise_right_shift": op("shift_right"),
    "__and__": op("bitwise_and"),
    "__or__": op("bitwise_or"),
    "__xor__": op("bitwise_xor"),
    "__lshift__": op("shift_left"),
    "__rshift__": op("shift_right"),
    "logaddexp": _logaddexp(math.e),
    "logaddexp2": _logaddexp(2.0),
    "shift_left": op("shift_left"),
    "shift_right_arithmetic": op("shift_right"),
}

_FLOATING_BINARY: dict[str, NodeFunction] = {
    "atan2": op("atan2"),
    "copysign": op("copysign"),
    "true_divide": op("div"),
    "xlogy": _xlogy("log"),
    "special_xlog1py": _xlogy("log1p"),
}

for _name, _function in _FLOATING_UNARY.items():
    _register(floating, _function, 1, _names(_name, "default"))
for _name, _function in _SAME_UNARY.items():
    _register(same, _function, 1, _names(_name, "default"))
for _name, _function in _TESTS.items():
    _register(predicate, _function, 1, _names(_name, "default"))
for _name, _function in _SAME_BINARY.items():
    _register(same, _function, 2, _names(_name, "Tensor", "Scalar", "Scalar_Tensor", "Tensor_Scalar", "default"))
for _name, _function in _FLOATING_BINARY.items():
    _overloads = ("Tensor", "Scalar", "Scalar_Other", "Scalar_Self", "self_scalar", "other_scalar", "default")
    _register(floating, _function, 2, _names(_name, *_overloads))
for _name in ("logical_and", "logical_or", "logical_xor"):
    _register(logical, op(_name.replace("logical", "bitwise")), 2, (f"aten.{_name}.default",))


def _comparison(name: str) -> NodeFunction:
    return lambda x, y: call(name, rounded(x), rounded(y))


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _register(predicate, _comparison(_name), 2, _names(_name, "Tensor", "Scalar"))
