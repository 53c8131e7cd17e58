"""The scalar ops, a row each: type rule, meaning in torch, Triton text, C++ text.

Adding an op is adding a row. In the texts `{0}`, `{1}`, ... are the arguments, already parenthesised, in compute types
(half types as float), and `{T}` is the result's compute type in that language; in C++ `{U}` is the unsigned type that
integers wrap around in. A text may be a mapping from the category of the first argument (`float`, `int`, `bool`) to
text. C++ names without a namespace are overloads of float and double in the prelude of the C++ code generator
(`codegen/cpp/prelude.py`); Triton's `libdevice` and helper names starting with `_` are imported or defined by the
prelude of the Triton code generator.

`flops` is the cost per element for the roofline: 1 for what one instruction does, more for a function call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from . import philox
from .dtypes import INTEGER

Text = str | Mapping[str, str]
Rule = Callable[[tuple[torch.dtype, ...]], torch.dtype]


@dataclass(frozen=True)
class Op:
    """A scalar op. `torch` takes and gives tensors in compute types."""

    name: str
    arity: int
    rule: Rule
    torch: Callable[..., torch.Tensor]
    triton: Text
    cpp: Text
    flops: int = 1

    def text(self, language: str, category: str) -> str:
        """The text in `language` ("triton" or "cpp") for arguments of `category`. KeyError if it has none."""
        found = self.triton if language == "triton" else self.cpp
        return found if isinstance(found, str) else found[category]


def _same(dtypes: tuple[torch.dtype, ...]) -> torch.dtype:
    if any(dtype != dtypes[0] for dtype in dtypes):
        raise TypeError(f"arguments differ in dtype: {', '.join(map(str, dtypes))}")
    return dtypes[0]


def _float(dtypes: tuple[torch.dtype, ...]) -> torch.dtype:
    if not _same(dtypes).is_floating_point:
        raise TypeError(f"needs floating point, got {dtypes[0]}")
    return dtypes[0]


def _integer(dtypes: tuple[torch.dtype, ...]) -> torch.dtype:
    if _same(dtypes) not in INTEGER and dtypes[0] != torch.bool:
        raise TypeError(f"needs integers or bool, got {dtypes[0]}")
    return dtypes[0]


def _compare(dtypes: tuple[torch.dtype, ...]) -> torch.dtype:
    _same(dtypes)
    return torch.bool


def _test(dtypes: tuple[torch.dtype, ...]) -> torch.dtype:
    return torch.bool


def _where(dtypes: tuple[torch.dtype, ...]) -> torch.dtype:
    if dtypes[0] != torch.bool:
        raise TypeError(f"the condition must be bool, got {dtypes[0]}")
    return _same(dtypes[1:])


def _random(result: torch.dtype) -> Rule:
    def rule(dtypes: tuple[torch.dtype, ...]) -> torch.dtype:
        if dtypes != (torch.int64, torch.int64):
            raise TypeError("the seed and the position must be int64")
        return result

    return rule


def _unary(name: str, triton: Text, cpp: Text, flops: int, function: Callable[..., torch.Tensor] | None = None) -> Op:
    """A function of one float."""
    return Op(name, 1, _float, function or getattr(torch, name), triton, cpp, flops)


def _libm(name: str, flops: int = 10) -> Op:
    """A function of one float that libdevice and libm know by the same name."""
    return _unary(name, f"libdevice.{name}({{0}})", f"{name}({{0}})", flops)


def _infix(name: str, symbol: str, rule: Rule, function: Callable[..., torch.Tensor]) -> Op:
    return Op(name, 2, rule, function, f"{{0}} {symbol} {{1}}", f"{{0}} {symbol} {{1}}")


_ROWS = [
    # Arithmetic. Sums and products of bool are its "or" and "and"; C++ promotes small integers, hence the casts.
    Op("neg", 1, _same, torch.neg, "_neg({0})", {"float": "-{0}", "int": "({T})(0 - ({U}){0})"}),
    Op("abs", 1, _same, torch.abs, "tl.abs({0})", {"float": "abs({0})", "int": "abs_int(({T}){0})"}),
    Op("add", 2, _same, torch.add, {"float": "{0} + {1}", "int": "{0} + {1}", "bool": "{0} | {1}"},
       {"float": "{0} + {1}", "int": "({T})(({U}){0} + ({U}){1})", "bool": "{0} | {1}"}),
    Op("sub", 2, _same, torch.sub, "{0} - {1}", {"float": "{0} - {1}", "int": "({T})(({U}){0} - ({U}){1})"}),
    Op("mul", 2, _same, torch.mul, {"float": "{0} * {1}", "int": "{0} * {1}", "bool": "{0} & {1}"},
       {"float": "{0} * {1}", "int": "({T})(({U}){0} * ({U}){1})", "bool": "{0} & {1}"}),
    # `div` rounds as IEEE 754 asks; Triton's `/` on float32 does not.
    Op("div", 2, _float, torch.div, "_div({0}, {1})", "{0} / {1}", 4),
    Op("truncdiv", 2, _same, lambda a, b: torch.div(a, b, rounding_mode="trunc"),
       {"int": "_truncdiv_int({0}, {1})", "float": "libdevice.trunc(_div({0}, {1}))"},
       {"int": "truncdiv_int(({T}){0}, ({T}){1})", "float": "trunc({0} / {1})"}, 8),
    Op("floordiv", 2, _same, lambda a, b: torch.div(a, b, rounding_mode="floor"),
       {"int": "_floordiv_int({0}, {1})", "float": "_floordiv_float({0}, {1})"},
       {"int": "floordiv_int(({T}){0}, ({T}){1})", "float": "floordiv_float({0}, {1})"}, 8),
    Op("remainder", 2, _same, torch.remainder,
       {"int": "_remainder_int({0}, {1})", "float": "_remainder_float({0}, {1})"},
       {"int": "remainder_int(({T}){0}, ({T}){1})", "float": "remainder_float({0}, {1})"}, 8),
    Op("fmod", 2, _same, torch.fmod, {"int": "_fmod_int({0}, {1})", "float": "libdevice.fmod({0}, {1})"},
       {"int": "fmod_int(({T}){0}, ({T}){1})", "float": "fmod({0}, {1})"}, 8),
    Op("pow", 2, _same, torch.pow, {"int": "_pow_int({0}, {1})", "float": "libdevice.pow({0}, {1})"},
       {"int": "pow_int(({T}){0}, ({T}){1})", "float": "pow({0}, {1})"}, 20),
    Op("fma", 3, _float, lambda a, b, c: a * b + c, "tl.fma({0}, {1}, {2})", "fma({0}, {1}, {2})", 2),
    # maximum and minimum give NaN if either argument is NaN; fmax and fmin give the other argument.
    Op("maximum", 2, _same, torch.maximum,
       {"float": "_maximum({0}, {1})", "int": "tl.maximum({0}, {1})", "bool": "{0} | {1}"},
       {"float": "maximum({0}, {1})", "int": "({0} > {1} ? {0} : {1})", "bool": "{0} | {1}"}),
    Op("minimum", 2, _same, torch.minimum,
       {"float": "_minimum({0}, {1})", "int": "tl.minimum({0}, {1})", "bool": "{0} & {1}"},
       {"float": "minimum({0}, {1})", "int": "({0} < {1} ? {0} : {1})", "bool": "{0} & {1}"}),
    Op("fmax", 2, _float, torch.fmax, "tl.maximum({0}, {1})", "fmax({0}, {1})"),
    Op("fmin", 2, _float, torch.fmin, "tl.minimum({0}, {1})", "fmin({0}, {1})"),
    # Comparison and selection.
    _infix("eq", "==", _compare, torch.eq),
    _infix("ne", "!=", _compare, torch.ne),
    _infix("lt", "<", _compare, torch.lt),
    _infix("le", "<=", _compare, torch.le),
    _infix("gt", ">", _compare, torch.gt),
    _infix("ge", ">=", _compare, torch.ge),
    Op("where", 3, _where, torch.where, "tl.where({0}, {1}, {2})", "({0} ? {1} : {2})"),
    Op("isnan", 1, _test, torch.isnan, {"float": "{0} != {0}"}, {"float": "{0} != {0}"}),
    Op("isinf", 1, _test, torch.isinf, {"float": 'tl.abs({0}) == float("inf")'}, {"float": "is_inf({0})"}),
    Op("signbit", 1, _test, torch.signbit, {"float": "libdevice.signbit({0}) != 0", "int": "{0} < 0"},
       {"float": "signbit({0})", "int": "{0} < 0"}),
    Op("sign", 1, _same, torch.sign, {"float": "_sign({0})", "int": "_sign({0})", "bool": "{0}"},
       {"float": "sign({0})", "int": "({T})(({0} > 0) - ({0} < 0))", "bool": "{0}"}),
    # Bits. On bool they are logic. A shift by a negative amount or by the width or more follows eager.
    Op("bitwise_not", 1, _integer, torch.bitwise_not, {"int": "~{0}", "bool": "{0} == 0"},
       {"int": "({T})~{0}", "bool": "!{0}"}),
    Op("bitwise_and", 2, _integer, torch.bitwise_and, "{0} & {1}", {"int": "({T})({0} & {1})", "bool": "{0} & {1}"}),
    Op("bitwise_or", 2, _integer, torch.bitwise_or, "{0} | {1}", {"int": "({T})({0} | {1})", "bool": "{0} | {1}"}),
    Op("bitwise_xor", 2, _integer, torch.bitwise_xor, "{0} ^ {1}", {"int": "({T})({0} ^ {1})", "bool": "{0} != {1}"}),
    Op("shift_left", 2, _integer, torch.bitwise_left_shift, "_shift_left({0}, {1})",
       "({T})shift_left(({T}){0}, ({T}){1})"),
    Op("shift_right", 2, _integer, torch.bitwise_right_shift, "_shift_right({0}, {1})",
       "({T})shift_right(({T}){0}, ({T}){1})"),
    # Rounding. `round` takes halves to the even neighbour.
    _unary("floor", "tl.floor({0})", "floor({0})", 1),
    _unary("ceil", "tl.ceil({0})", "ceil({0})", 1),
    _unary("trunc", "libdevice.trunc({0})", "trunc({0})", 1),
    _unary("round", "libdevice.nearbyint({0})", "nearbyint({0})", 1),
    # Functions. sqrt and reciprocal round as IEEE 754 asks.
    _unary("sqrt", "_sqrt({0})", "sqrt({0})", 4),
    _unary("rsqrt", "libdevice.rsqrt({0})", "(({T})1 / sqrt({0}))", 4),
    _unary("reciprocal", "_reciprocal({0})", "(({T})1 / {0})", 4),
    _unary("exp", "libdevice.exp({0})", "exp({0})", 8),
    _unary("log", "libdevice.log({0})", "log({0})", 8),
    _unary("sin", "libdevice.sin({0})", "sin({0})", 12),
    _unary("cos", "libdevice.cos({0})", "cos({0})", 12),
    _unary("erf", "tl.erf({0})", "erf({0})", 12),
    _unary("sigmoid", "_sigmoid({0})", "(({T})1 / (({T})1 + exp(-{0})))", 12),
    *(_libm(name) for name in (
        "exp2", "expm1", "log2", "log10", "log1p", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh",
        "acosh", "atanh")),
    Op("erfc", 1, _float, torch.erfc, "libdevice.erfc({0})", "erfc({0})", 16),
    Op("erfinv", 1, _float, torch.erfinv, "libdevice.erfinv({0})", "erfinv({0})", 20),
    Op("lgamma", 1, _float, torch.lgamma, "libdevice.lgamma({0})", "lgamma({0})", 30),
    Op("atan2", 2, _float, torch.atan2, "libdevice.atan2({0}, {1})", "atan2({0}, {1})", 16),
    Op("hypot", 2, _float, torch.hypot, "libdevice.hypot({0}, {1})", "hypot({0}, {1})", 8),
    Op("copysign", 2, _float, torch.copysign, "libdevice.copysign({0}, {1})", "copysign({0}, {1})"),
    Op("nextafter", 2, _float, torch.nextafter, "libdevice.nextafter({0}, {1})", "nextafter({0}, {1})", 4),
    # Random numbers: pure functions of (seed, position), the same bits on every device.
    *(Op(f"random_{name}", 2, _random(dtype), function, f"_random_{name}({{0}}, {{1}})",
         f"random_{name}({{0}}, {{1}})", flops)
      for name, dtype, function, flops in (
        ("uniform", torch.float32, philox.uniform, 40), ("normal", torch.float32, philox.normal, 60),
        ("bits", torch.int64, philox.bits, 40))),
]  # fmt: skip

OPS: Mapping[str, Op] = {row.name: row for row in _ROWS}
"""By name. `cast` and the ops of `ir/node.py` are not rows: they have attributes of their own."""
