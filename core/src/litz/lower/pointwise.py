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

import sympy
import torch

from litz.errors import ZERO_DIVISION
from litz.ir import Node
from litz.ir.build import bounded, call, cast, const, rounded
from litz.ir.dtypes import HALF, INTEGER
from litz.ir.index import Ranges, known_nonnegative
from litz.ir.intervals import Intervals

from .access import extents_of
from .context import LoweringContext
from .elementwise import NodeFunction, broadcast_size, device_of, elementwise
from .promotion import result_type, to_float
from .registry import lowering
from .view import Tensor, View

bool_ = torch.bool


def op(name: str) -> NodeFunction:
    """Returns the op `name` of the table as a function of nodes."""
    return partial(call, name)


def like(node: Node, value: float) -> Node:
    """Returns a constant of a node's dtype."""
    return const(value, node.dtype)


def computed_in(dtype: torch.dtype, *args: Any) -> torch.dtype:
    """Returns what an op computes in whose operands meet in `dtype`: in float32, if a number is among them that a half
    type may not hold. Numbers keep their values in eager, be they arguments, sizes or tensors of the CPU without
    dimensions, and the result alone is rounded. A constant keeps its value as a node of a half type."""

    def is_number(arg: Any) -> bool:
        if isinstance(arg, Tensor):
            return not (arg.size or arg.device.type != "cpu" or arg.dtype in (dtype, bool_))
        return isinstance(arg, sympy.Expr)

    return torch.float32 if dtype in HALF and any(map(is_number, args)) else dtype


def same(ctx: LoweringContext, function: NodeFunction, *args: Any, also: Any = None) -> View:
    """Lowers an op whose operands meet in one dtype, which is the result's. also: a number of the function's own."""
    dtype = result_type(*args)
    return elementwise(ctx, function, args, dtype, compute=computed_in(dtype, *args, also))


def divided(ctx: LoweringContext, function: NodeFunction, *args: Any) -> View:
    """Lowers a division in the promoted dtype. On a CPU the division of an integer by zero is an error, as in eager."""
    if result_type(*args) not in INTEGER or device_of(*args).type != "cpu":
        return same(ctx, function, *args)
    extents = extents_of(ctx.indices(broadcast_size(*args)), broadcast_size(*args))

    def checked(a: Node, b: Node) -> Node:
        return function(a, nonzero(ctx, b, extents))

    return same(ctx, checked, *args)


def nonzero(ctx: LoweringContext, divisor: Node, extents: Ranges) -> Node:
    """Returns the divisor, with an error at run time if the divisor is 0; unchanged where the divisor provably is not
    0."""
    known = Intervals(extents, ctx.contents).of(divisor)
    if known.low is not None and known_nonnegative(known.low - 1):
        return divisor
    if known.high is not None and known_nonnegative(-known.high - 1):
        return divisor
    zero = cast(call("eq", divisor, like(divisor, 0)), torch.int64)
    return call("add", divisor, cast(bounded(zero, 1, f"{ZERO_DIVISION} in {ctx.op}"), divisor.dtype))


def floating(ctx: LoweringContext, function: NodeFunction, *args: Any) -> View:
    """Lowers an op whose operands meet in a floating-point dtype, which is the result's."""
    dtype = to_float(result_type(*args))
    return elementwise(ctx, function, args, dtype, compute=computed_in(dtype, *args))


def predicate(ctx: LoweringContext, function: NodeFunction, *args: Any) -> View:
    """Lowers an op whose operands meet in one dtype, and whose result is bool."""
    dtype = result_type(*args)
    if dtype in HALF and device_of(*args).type == "cpu":
        # Eager's CPU kernels round a Python number to the tensor's dtype before they compare; its CUDA kernels do not.
        args = tuple(torch.tensor(arg, dtype=dtype).item() if isinstance(arg, float) else arg for arg in args)
        return elementwise(ctx, function, args, bool_, compute=dtype)
    return elementwise(ctx, function, args, bool_, compute=computed_in(dtype, *args))


def logical(ctx: LoweringContext, function: NodeFunction, *args: Any) -> View:
    """Lowers an op whose operands become bool, as its result is."""
    return elementwise(ctx, function, args, bool_, compute=bool_)


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
    """Returns a rounding function that leaves integers alone."""
    return lambda x: function(x) if x.dtype.is_floating_point else x


def never_for_integers(function: NodeFunction) -> NodeFunction:
    """Returns a test that only floating-point values can pass: False for others."""
    return lambda x: function(x) if x.dtype.is_floating_point else const(False, bool_)


def _pair(float_op: str, other_op: str) -> NodeFunction:
    return lambda a, b: call(float_op if a.dtype.is_floating_point else other_op, a, b)


def _angle(x: Node) -> Node:
    """The angle of a real number: pi below 0, NaN of NaN, else 0."""
    return call("where", call("isnan", x), x, call("where", call("lt", x, like(x, 0)), like(x, math.pi), like(x, 0)))


_FLOATING_UNARY: dict[str, NodeFunction] = {
    name: op(name) for name in (
        "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh",
        "cosh", "tanh", "asinh", "acosh", "atanh", "sqrt", "rsqrt", "reciprocal", "erf", "erfc", "erfinv", "lgamma",
        "sigmoid")
} | {"angle": _angle}  # fmt: skip

_SAME_UNARY: dict[str, NodeFunction] = {
    **{name: op(name) for name in ("neg", "sign", "bitwise_not")},
    **{name: integral(op(name)) for name in ("floor", "ceil", "trunc", "round")},
    "abs": lambda x: x if x.dtype in (bool_, torch.uint8) else call("abs", x),
    "square": lambda x: call("mul", x, x),
    "relu": lambda x: call("maximum", x, like(x, 0)),
}

_TESTS: dict[str, NodeFunction] = {
    "isnan": never_for_integers(op("isnan")),
    "isfinite": lambda x: (
        call("lt", call("abs", x), like(x, math.inf)) if x.dtype.is_floating_point else const(True, bool_)
    ),
    "signbit": lambda x: const(False, bool_) if x.dtype == bool_ else call("signbit", x),
}

_SAME_BINARY: dict[str, NodeFunction] = {
    **{name: op(name) for name in ("maximum", "minimum", "nextafter", "hypot")},
    **{name: op(name) for name in ("bitwise_and", "bitwise_or", "bitwise_xor")},
    **dict.fromkeys(("bitwise_left_shift", "__lshift__", "shift_left"), op("shift_left")),
    **dict.fromkeys(("bitwise_right_shift", "__rshift__", "shift_right_arithmetic"), op("shift_right")),
    "fmax": _pair("fmax", "maximum"),
    "fmin": _pair("fmin", "minimum"),
}

for _name, _function in _FLOATING_UNARY.items():
    _register(floating, _function, 1, _names(_name, "default"))
for _name, _function in _SAME_UNARY.items():
    _register(same, _function, 1, _names(_name, "default"))
for _name, _function in _TESTS.items():
    _register(predicate, _function, 1, _names(_name, "default"))
for _name, _function in _SAME_BINARY.items():
    _register(same, _function, 2, _names(_name, "Tensor", "Scalar", "Scalar_Tensor", "Tensor_Scalar", "default"))
_register(floating, op("atan2"), 2, _names("atan2", "default"))
_register(floating, op("copysign"), 2, _names("copysign", "Tensor"))
_register(same, op("mul"), 2, _names("mul", "Tensor"))
_register(same, op("pow"), 2, _names("pow", "Tensor_Tensor", "Scalar"))
_register(divided, _pair("div", "truncdiv"), 2, ("prims.div.default",))  # integers divide as in C
_register(same, op("fma"), 3, ("prims.fma.default",))
for _name in ("remainder", "fmod"):
    _register(divided, op(_name), 2, _names(_name, "Tensor", "Scalar", "Scalar_Tensor", "Tensor_Scalar", "default"))
for _name, _arity in {"not": 1, "and": 2, "or": 2, "xor": 2}.items():
    _register(logical, op(f"bitwise_{_name}"), _arity, (f"aten.logical_{_name}.default",))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _register(predicate, lambda x, y, op=_name: call(op, rounded(x), rounded(y)), 2, _names(_name, "Tensor", "Scalar"))
