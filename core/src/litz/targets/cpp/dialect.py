"""The dialect of C++: the text of each scalar op, the types, the constants, the casts.

In the texts `{U}` is the unsigned type that integers wrap around in. Names without a namespace are overloads of float
and double in the prelude (`prelude.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from litz.codegen.dialect import ANY, BOOL, COMPARISONS, NARROW, Dialect, Text, calls
from litz.ir.dtypes import FLOAT, FLOAT8, HALF, ROUNDED, SHORT
from litz.ir.ops import AS_HALF

_OWN = {torch.float32: "float", torch.float64: "double", torch.int32: "int", torch.bool: "u8"}
ELEMENTS: Mapping[torch.dtype, str] = {**SHORT, **_OWN}
"""The C++ type of an element in memory. Half types and float8 are integers to C++; a bool is a byte."""

_BYTE = frozenset({torch.int8, torch.uint8, torch.bool})
"""Whose values are exact in any half type."""

VALUES: Mapping[torch.dtype, str] = {**ELEMENTS, **dict.fromkeys(ROUNDED, "float"), torch.bool: "bool"}
"""The type that values of a dtype are held in while they are computed."""

_OPS: Mapping[str, Text] = {
    # Small integers are promoted to int, hence the casts.
    "neg": {"float": "-{0}", "int": "({T})(0 - ({U}){0})"},
    "abs": {"float": "abs({0})", "int": "abs_int(({T}){0})"},
    "add": {"float": "{0} + {1}", "int": "({T})(({U}){0} + ({U}){1})", "bool": "{0} | {1}"},
    "sub": {"float": "{0} - {1}", "int": "({T})(({U}){0} - ({U}){1})"},
    "mul": {"float": "{0} * {1}", "int": "({T})(({U}){0} * ({U}){1})", "bool": "{0} & {1}"},
    "div": "{0} / {1}",
    "truncdiv": {"int": "truncdiv_int(({T}){0}, ({T}){1})", "float": "trunc({0} / {1})"},
    "floordiv": {"int": "floordiv_int(({T}){0}, ({T}){1})", "float": "floordiv_float({0}, {1})"},
    "remainder": {"int": "remainder_int(({T}){0}, ({T}){1})", "float": "remainder_float({0}, {1})"},
    "fmod": {"int": "fmod_int(({T}){0}, ({T}){1})", "float": "fmod({0}, {1})"},
    "pow": {"int": "pow_int(({T}){0}, ({T}){1})", "float": "power({0}, {1})"},
    "maximum": {"float": "maximum({0}, {1})", "int": "({0} > {1} ? {0} : {1})", "bool": "{0} | {1}"},
    "minimum": {"float": "minimum({0}, {1})", "int": "({0} < {1} ? {0} : {1})", "bool": "{0} & {1}"},
    **COMPARISONS,
    "where": "({0} ? {1} : {2})",
    "isnan": {"float": "{0} != {0}"},
    "isinf": {"float": "is_inf({0})"},
    "signbit": {"float": "signbit({0})", "int": "{0} < 0"},
    "sign": {"float": "sign({0})", "int": "({T})(({0} > 0) - ({0} < 0))", "bool": "{0}"},
    "bitwise_not": {"int": "({T})~{0}", "bool": "!{0}"},
    "bitwise_and": {"int": "({T})({0} & {1})", "bool": "{0} & {1}"},
    "bitwise_or": {"int": "({T})({0} | {1})", "bool": "{0} | {1}"},
    "bitwise_xor": {"int": "({T})({0} ^ {1})", "bool": "{0} != {1}"},
    "shift_left": "({T})shift_left(({T}){0}, ({T}){1})",
    "shift_right": "({T})shift_right(({T}){0}, ({T}){1})",
    "round": "nearbyint({0})",
    "rsqrt": "(({T})1 / sqrt({0}))",
    "reciprocal": "(({T})1 / {0})",
    "sigmoid": "(({T})1 / (({T})1 + exp(-{0})))",
    **calls(1, "floor", "ceil", "trunc", "sqrt", "exp", "log", "sin", "cos", "erf", "exp2", "expm1", "log2", "log10"),
    **calls(1, "log1p", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erfc"),
    **calls(1, "erfinv", "lgamma"),
    **calls(2, "fmax", "fmin", "atan2", "hypot", "copysign", "nextafter"),
    **calls(2, "random_uniform", "random_normal", "random_bits"),
    **calls(3, "fma"),
    **dict.fromkeys(AS_HALF.values(), "(float){0}"),
}

CPP = Dialect(
    "cpp",
    _OPS,
    ELEMENTS,
    VALUES,
    casts=(
        (BOOL, FLOAT, "({0} ? ({T})1 : ({T})0)"),  # g++ 12 has no vectors for a bool's conversion
        (ROUNDED, HALF, "rounded_{M}({0})"),
        (ROUNDED, ROUNDED, "from_{M}(to_{M}({0}))"),
        (_BYTE, HALF, "(float){0}"),  # exact
        (ANY, HALF, "rounded_{M}((float){0})"),
        (ANY, ROUNDED, "from_{M}(to_{M}((float){0}))"),
        (ANY, BOOL, "{0} != 0"),
        (FLOAT | FLOAT8, NARROW, "({T})(int){0}"),  # out of range is undefined in C++
        (ANY, ANY, "({T}){0}"),
    ),
    bitcasts=(
        (ANY, BOOL, "(u8){0} != 0"),
        (BOOL, ANY, "(u8){0}"),
        (ROUNDED, ROUNDED, "from_{M}(bitcast<{M}>(to_{S}({0})))"),
        (ROUNDED, ANY, "bitcast<{T}>(to_{S}({0}))"),
        (ANY, ROUNDED, "from_{M}(bitcast<{M}>(({V}){0}))"),
        (ANY, ANY, "bitcast<{T}>(({V}){0})"),
    ),
)


def op_text(op: str, of: torch.dtype, dtype: torch.dtype, texts: Sequence[str], type_: str) -> str:
    """Returns the C++ text of a scalar op from a type to another. texts: of the arguments. type_: the C++ type of the
    result."""
    # Integer arithmetic wraps around in an unsigned type, as eager's does; signed overflow is undefined in C++.
    unsigned = "u64" if dtype.itemsize == 8 and type_ != "int" else "u32"
    return CPP.op(op, of).format(*texts, T=type_, U=unsigned)


def read(dtype: torch.dtype, element: str) -> str:
    """Returns C++ text for the value of a stored element: bool from a byte, float from a half type."""
    if dtype == torch.bool:
        return f"{element} != 0"
    return f"from_{ELEMENTS[dtype]}({element})" if dtype in ROUNDED else element


def written(dtype: torch.dtype, value: str) -> str:
    """Returns the text of a value as an element to store, which rounds to half types and float8."""
    return f"to_{ELEMENTS[dtype]}({value})" if dtype in ROUNDED else value


def literal(value: bool | int | float, dtype: torch.dtype) -> str:
    """Returns C++ text for a constant, of the type that `dtype` is computed in."""
    if dtype == torch.bool:
        return "true" if value else "false"
    if dtype.is_floating_point:
        return _float_literal(float(value), single=dtype != torch.float64)
    number, suffix = int(value), {torch.int64: "L", torch.uint64: "UL", torch.uint32: "U"}.get(dtype, "")
    if number == -(2 ** (8 * max(dtype.itemsize, 4) - 1)):
        # -2147483648 is minus a number that does not fit.
        return f"({number + 1}{suffix} - 1)"
    return f"{number}{suffix}"


def _float_literal(value: float, single: bool) -> str:
    suffix = "f" if single else ""
    if math.isnan(value):
        return f'__builtin_nan{suffix}("")'
    if single:
        rounded = torch.tensor(value, dtype=torch.float32)
        value = rounded.item()
        short = f"{value:.9g}"
        text = short if torch.tensor(float(short), dtype=torch.float32) == rounded else repr(value)
    else:
        text = repr(value)
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}__builtin_inf{suffix}()"
    return (text if any(c in text for c in ".en") else f"{text}.0") + suffix
