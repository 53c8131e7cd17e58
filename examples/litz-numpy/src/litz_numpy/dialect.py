"""The dialect of NumPy: the text of each scalar op, type, cast and constant, and of reductions that NumPy has.

Texts are of whole arrays. A value is an array of the compute type or one number of it; NumPy has no bfloat16, so in
memory such an element is its 16 bits, and `widen` and `narrow` (support.py) convert.
"""

from __future__ import annotations

import torch

from litz.codegen.dialect import ANY, BOOL, COMPARISONS, NARROW, Dialect
from litz.ir.dtypes import FLOAT, HALF, SUPPORTED

F16, BF16 = frozenset({torch.float16}), frozenset({torch.bfloat16})
UNSIGNED_WORD = frozenset({torch.uint32})

VALUES = {dtype: f"np.{str(dtype).removeprefix('torch.')}" for dtype in SUPPORTED}
VALUES |= dict.fromkeys(HALF, "np.float32") | {torch.bool: "np.bool_"}
"""What a value is computed in."""

ELEMENTS = {**VALUES, torch.float16: "np.float16", torch.bfloat16: "np.uint16", torch.bool: "np.uint8"}
"""What an element in memory is."""


def _calls(arity: int, *names: str, **renamed: str) -> dict[str, str]:
    """Functions of NumPy's, by the name of the op or by one of their own."""
    arguments = ", ".join(f"{{{number}}}" for number in range(arity))
    return {op: f"np.{name}({arguments})" for op, name in {**dict(zip(names, names)), **renamed}.items()}


OPS = {
    # A function of two arguments is a ufunc: it has `reduce`, `accumulate` and `at` too. See `ufunc`.
    **_calls(2, "maximum", "minimum", "fmax", "fmin", "hypot", "copysign", "nextafter", "bitwise_and", "bitwise_or"),
    **_calls(2, "bitwise_xor", atan2="arctan2"),
    **_calls(1, as_float16="float32", as_bfloat16="float32"),
    "add": {"float": "np.add({0}, {1})", "int": "np.add({0}, {1})", "bool": "np.logical_or({0}, {1})"},
    "mul": {"float": "np.multiply({0}, {1})", "int": "np.multiply({0}, {1})", "bool": "np.logical_and({0}, {1})"},
    "neg": "-{0}",
    "abs": "np.abs({0})",
    "sub": "{0} - {1}",
    "div": "{0} / {1}",
    "truncdiv": {"int": "truncdiv({0}, {1})", "float": "np.trunc({0} / {1})"},
    "floordiv": "{0} // {1}",
    "remainder": "{0} % {1}",
    "fmod": "np.fmod({0}, {1})",
    "pow": {"int": "pow_int({0}, {1})", "float": "{0} ** {1}"},
    "fma": "{0} * {1} + {2}",
    **COMPARISONS,
    "where": "np.where({0}, {1}, {2})",
    "isnan": {"float": "np.isnan({0})"},
    "isinf": {"float": "np.isinf({0})"},
    "signbit": {"float": "np.signbit({0})", "int": "{0} < 0"},
    "sign": {
        "float": "({0} > 0).astype({T}) - ({0} < 0).astype({T})",  # 0 of NaN, as in torch
        "int": "np.sign({0})",
        "bool": "{0}",
    },
    "bitwise_not": "~{0}",
    "shift_left": "{0} << {1}",
    "shift_right": "{0} >> {1}",
    "rsqrt": "{T}(1) / np.sqrt({0})",
    "reciprocal": "{T}(1) / {0}",
    "sigmoid": "{T}(1) / ({T}(1) + np.exp(-{0}))",
    **_calls(1, "floor", "ceil", "trunc", "sqrt", "exp", "log", "sin", "cos", "exp2", "expm1", "log2", "log10"),
    **_calls(1, "log1p", "tan", "sinh", "cosh", "tanh", round="rint", asin="arcsin", acos="arccos", atan="arctan"),
    **_calls(1, asinh="arcsinh", acosh="arccosh", atanh="arctanh"),
    # NumPy lacks these; Python has most of them for one number.
    "erf": "by_element(erf, {0})",
    "erfc": "by_element(erfc, {0})",
    "erfinv": "by_element(erfinv, {0})",
    "lgamma": "by_element(lgamma, {0})",
    "random_uniform": "uniform(philox({0}, {1})[0])",
    "random_normal": "normal(*philox({0}, {1}))",
    "random_bits": "philox({0}, {1})[0]",
}

NUMPY = Dialect(
    "numpy",
    OPS,
    ELEMENTS,
    VALUES,
    casts=(
        (ANY, F16, "{0}.astype(np.float32).astype(np.float16).astype(np.float32)"),
        (ANY, BF16, "widen(narrow({0}.astype(np.float32)))"),
        (ANY, BOOL, "{0} != 0"),
        (FLOAT, NARROW, "{0}.astype(np.int32).astype({T})"),  # out of range is undefined in C, and so in NumPy
        (FLOAT, UNSIGNED_WORD, "{0}.astype(np.int64).astype({T})"),
        (ANY, ANY, "{0}.astype({T})"),
    ),
    bitcasts=(
        (BF16, BF16, "{0}"),
        (F16, F16, "{0}"),
        (BF16, F16, "narrow({0}).view(np.float16).astype(np.float32)"),
        (F16, BF16, "widen({0}.astype(np.float16).view(np.uint16))"),
        (BF16, ANY, "narrow({0}).view({T})"),
        (F16, ANY, "{0}.astype(np.float16).view({T})"),
        (ANY, F16, "{0}.view(np.float16).astype(np.float32)"),
        (ANY, BF16, "widen({0}.view(np.uint16))"),
        (ANY, BOOL, "{0}.view(np.uint8) != 0"),
        (ANY, ANY, "{0}.view({T})"),
    ),
)

REDUCTIONS = {
    "argmax": "np.argmax({0}, axis=-1)",
    "argmin": "np.argmin({0}, axis=-1)",
    "welford_mean": "mean({0})[..., 0]",
    "welford_m2": "np.square({0} - mean({0})).sum(axis=-1)",
    "welford_double_mean": "{0}.mean(axis=-1, dtype=np.float64)",
    "welford_double_m2": "np.square({0} - {0}.mean(axis=-1, dtype=np.float64, keepdims=True)).sum(axis=-1)",
}
"""Reductions along the last axis that NumPy does better than their rows say."""

COMBINING = {"add": "add", "prod": "mul", "max": "maximum", "min": "minimum"}
"""The op by which a store of a mode combines with what is there."""


def ufunc(op: str, dtype: torch.dtype) -> str | None:
    """The ufunc that an op is; None where it is none."""
    name, found, arguments = NUMPY.op(op, dtype).partition("({0}, {1})")
    return name if found and name.startswith("np.") and not arguments else None


def read(dtype: torch.dtype, element: str) -> str:
    """Stored elements as values."""
    if dtype == torch.bool:
        return f"{element} != 0"
    if dtype == torch.bfloat16:
        return f"widen({element})"
    return f"{element}.astype(np.float32)" if dtype == torch.float16 else element


def written(dtype: torch.dtype, value: str) -> str:
    """Values as elements to store; this rounds to half types."""
    if dtype == torch.bfloat16:
        return f"narrow({value})"
    return f"{value}.astype(np.float16)" if dtype == torch.float16 else value


def literal(value: bool | int | float, dtype: torch.dtype) -> str:
    """A constant of the compute type."""
    if dtype == torch.bool:
        return f"np.bool_({bool(value)})"
    if not dtype.is_floating_point:
        return f"{VALUES[dtype]}({int(value)})"
    number = repr(float(value))
    return f"{VALUES[dtype]}({number if number[-1].isdigit() else f'np.{number}'.replace('np.-', '-np.')})"
