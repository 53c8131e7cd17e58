"""The dialect of Triton: the text of each scalar op, the types, the constants, the casts.

`libdevice` and the helpers whose names start with `_` come from `litz.targets.triton.helpers`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from itertools import product
from typing import Any

import torch

from litz.codegen.dialect import ANY, BOOL, COMPARISONS, NARROW, Casts, Dialect, Text, calls
from litz.ir.dtypes import FLOAT, FLOAT8, HALF, ROUNDED, SHORT, STORAGE, SUPPORTED, survives
from litz.ir.ops import AS_HALF
from litz.tiles.program import Const

ELEMENTS: Mapping[torch.dtype, str] = {
    **{dtype: f"tl.{str(dtype).removeprefix('torch.')}" for dtype in SUPPORTED},
    torch.bool: "tl.int1",
    # Not every device has a type for them.
    **dict.fromkeys(FLOAT8, "tl.uint8"),
}
VALUES: Mapping[torch.dtype, str] = {**ELEMENTS, **dict.fromkeys(ROUNDED, "tl.float32")}
"""The type that values of a dtype are held in while they are computed."""

POINTER_TYPES: Mapping[torch.dtype, str] = {
    **{dtype: f"*{name.replace('f', 'fp')}" for dtype, name in SHORT.items()},
    torch.bfloat16: "*bf16",
    torch.bool: "*i1",
    **dict.fromkeys(FLOAT8, "*u8"),
}

FLOAT8_TYPES: Mapping[torch.dtype, str] = {torch.float8_e4m3fn: "fp8e4nv", torch.float8_e5m2: "fp8e5"}
"""Triton's own types, for what tensor cores multiply. Kernels take float8 as bytes elsewhere."""

_libdevice, _tl, _own = (partial(calls, prefix=prefix) for prefix in ("libdevice.", "tl.", "_"))

_OPS: Mapping[str, Text] = {
    "add": {"float": "{0} + {1}", "int": "{0} + {1}", "bool": "{0} | {1}"},
    "sub": "{0} - {1}",
    "mul": {"float": "{0} * {1}", "int": "{0} * {1}", "bool": "{0} & {1}"},
    "truncdiv": {"int": "_truncdiv_int({0}, {1})", "float": "libdevice.trunc(_div({0}, {1}))"},
    "floordiv": {"int": "_floordiv_int({0}, {1})", "float": "_floordiv_float({0}, {1})"},
    "remainder": {"int": "_remainder_int({0}, {1})", "float": "_remainder_float({0}, {1})"},
    "fmod": {"int": "_fmod_int({0}, {1})", "float": "libdevice.fmod({0}, {1})"},
    "pow": {"int": "_pow_int({0}, {1})", "float": "libdevice.pow({0}, {1})"},
    **dict.fromkeys(AS_HALF.values(), "{0}.to(tl.float32)"),
    "maximum": {"float": "_maximum({0}, {1})", "int": "tl.maximum({0}, {1})", "bool": "{0} | {1}"},
    "minimum": {"float": "_minimum({0}, {1})", "int": "tl.minimum({0}, {1})", "bool": "{0} & {1}"},
    "fmax": "tl.maximum({0}, {1})",
    "fmin": "tl.minimum({0}, {1})",
    **COMPARISONS,
    "isnan": {"float": "{0} != {0}"},
    "isinf": {"float": 'tl.abs({0}) == float("inf")'},
    "signbit": {"float": "libdevice.signbit({0}) != 0", "int": "{0} < 0"},
    "sign": {"float": "_sign({0})", "int": "_sign({0})", "bool": "{0}"},
    "bitwise_not": {"int": "~{0}", "bool": "{0} == 0"},
    "bitwise_and": "{0} & {1}",
    "bitwise_or": "{0} | {1}",
    "bitwise_xor": "{0} ^ {1}",
    "round": "libdevice.nearbyint({0})",
    **_own(1, "neg", "sqrt", "reciprocal", "sigmoid"),
    # Triton's `/` on float32 does not round as IEEE 754 asks. tl.rand and tl.randn draw what `litz.ir.philox` does.
    **_own(2, "div", "shift_left", "shift_right", "random_uniform", "random_normal", "random_bits"),
    **_tl(1, "abs", "floor", "ceil", "erf"),
    **_tl(3, "fma", "where"),
    **_libdevice(1, "trunc", "rsqrt", "exp", "log", "sin", "cos", "exp2", "expm1", "log2", "log10", "log1p", "tan"),
    **_libdevice(1, "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erfc", "erfinv"),
    **_libdevice(1, "lgamma"),
    **_libdevice(2, "atan2", "hypot", "copysign", "nextafter"),
}


def read(dtype: torch.dtype, bits: str, wanted: torch.dtype = torch.float32) -> str:
    """Returns the text that reads a float8's value from its bits. wanted: float32 or a half type."""
    kind = f'"{STORAGE[dtype].name}"'
    return f"_half_float8({bits}, {ELEMENTS[wanted]}, {kind})" if wanted in HALF else f"_from_float8({bits}, {kind})"


def written(dtype: torch.dtype, value: str) -> str:
    """Returns the text that makes a float8's bits of a float32."""
    row = STORAGE[dtype]
    return f'_to_float8({value}, "{row.name}", {row.overflow})'


_SINGLE = frozenset({torch.float32})
_BYTES = frozenset({torch.int8, torch.uint8})
_CASTS: Casts = (
    (ANY, BOOL, "{0} != 0"),
    *((ANY, frozenset({dtype}), read(dtype, written(dtype, "{0}.to(tl.float32)"))) for dtype in FLOAT8),
    *((frozenset(f for f in FLOAT8 if survives(f, half)), frozenset({half}), "{0}") for half in HALF),
    (ROUNDED | _SINGLE, HALF, "{0}.to({M}).to(tl.float32)"),
    (_BYTES, HALF, "{0}.to(tl.float32)"),  # exact in either
    (ANY, HALF, "{0}.to(tl.float32).to({M}).to(tl.float32)"),
    (FLOAT | FLOAT8, NARROW, "{0}.to(tl.int32).to({T})"),
    (ROUNDED, _SINGLE, "{0}"),
    (ANY, ANY, "{0}.to({T})"),
)
_BITCASTS: Casts = (
    *((frozenset({dtype}), ANY - FLOAT8, f"{written(dtype, '{0}')}.to({{M}}, bitcast=True)") for dtype in FLOAT8),
    *((ANY - FLOAT8, frozenset({dtype}), read(dtype, "{0}.to(tl.uint8, bitcast=True)")) for dtype in FLOAT8),
    *((frozenset({a}), frozenset({b}), read(b, written(a, "{0}"))) for a, b in product(FLOAT8, FLOAT8)),
    (HALF, HALF, "{0}.to({S}).to({M}, bitcast=True).to(tl.float32)"),
    (HALF, ANY, "{0}.to({S}).to({M}, bitcast=True)"),
    (ANY, HALF, "{0}.to({M}, bitcast=True).to(tl.float32)"),
    (ANY, ANY, "{0}.to({M}, bitcast=True)"),
)


TRITON = Dialect("triton", _OPS, ELEMENTS, VALUES, _CASTS, _BITCASTS)


def literal(value: bool | int | float) -> str:
    """Returns a Python scalar as a literal of Triton's language, in parentheses if it has a sign."""
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, float):
        if value != value:
            return 'float("nan")'
        if value in (float("inf"), float("-inf")):
            return 'float("inf")' if value > 0 else '(-float("inf"))'
    return f"({value!r})" if value < 0 else repr(value)


def is_negative_zero(value: object) -> bool:
    """Returns whether the value is the float -0.0, which compares equal to 0.0."""
    return isinstance(value, float) and value == 0 and str(value).startswith("-")


def typed(value: bool | int | float, dtype: torch.dtype) -> str:
    """Returns Triton text for a constant with a type of its own."""
    if is_negative_zero(value):
        # Triton makes every constant equal to zero a positive one.
        return f"(tl.full([], 0.0, {ELEMENTS[dtype]}) * (-1.0))"
    return f"tl.full([], {literal(value)}, {ELEMENTS[dtype]})"


NEAR: Mapping[str, str] = {
    "same": "{0}",
    "exp": "_exp_near({0})",
    "times_reciprocal": "{0} * _reciprocal({1})",
    "times_reciprocal_near": "{0} * _reciprocal_near({1})",
    "div": "_div_near({0}, {1})",
    "sigmoid": "_sigmoid_near({0})",
    "erf_plus_one": "_erf_plus_one({0})",
    "tanh_plus_one": "_tanh_plus_one({0})",
    "tanh_slope": "_tanh_slope({1})",
}
"""The texts of an op's less exact forms, by name (`rounded.py`)."""

_INFIX = re.compile(r"\{\d\} (\+|-|\*|==|!=|<|<=|>|>=) \{\d\}")


def op_text(made: Any, texts: list[str]) -> str:
    """Returns Triton text for a scalar op, a node or a line, on arguments whose texts are given."""
    args, near = made.args, getattr(made, "near", "")
    dtype = made.value.dtype if hasattr(made, "value") else made.dtype
    template = NEAR.get(near, near) or TRITON.op(made.op, args[0].dtype)
    # Beside a tensor, a plain literal takes that tensor's type in arithmetic, comparisons and selections.
    constants = [] if near else [_number(arg) for arg in args]
    operands = constants[1:] if made.op == "where" else constants
    if (made.op == "where" or _INFIX.fullmatch(template)) and None in operands:
        for position, value in enumerate(constants):
            if value is not None and args[position].dtype != torch.bool and not is_negative_zero(value):
                texts[position] = literal(value)
    return template.format(*texts, T=VALUES[dtype])


def _number(arg: Any) -> Any:
    if isinstance(arg, Const):
        return arg.value
    return arg.attrs[0] if getattr(arg, "op", "") == "const" else None
