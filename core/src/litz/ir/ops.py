"""The scalar ops, a row each: arity, type rule, meaning in torch.

Adding an op is adding a row here, and an entry in the dialect of each target (`litz.codegen.dialect`), which says how
the op is written there.

`flops` is the cost per element for the roofline: 1 for what one instruction does, more for a function call.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from . import philox
from .dtypes import INTEGER
from .node import Node

Rule = Callable[[tuple[torch.dtype, ...]], torch.dtype]


@dataclass(frozen=True)
class Op:
    """A scalar op. `torch` takes and returns tensors of compute dtypes."""

    name: str
    arity: int
    rule: Rule
    torch: Callable[..., torch.Tensor]
    flops: int = 1


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


def _function(name: str, flops: int) -> Op:
    """Returns the row of a function of one float that torch has by the same name."""
    return Op(name, 1, _float, getattr(torch, name), flops)


def _fmod(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The remainder with the sign of a, exact for each quotient: torch's kernel in vectors gives NaN where the quotient
    leaves the type. A remainder by b and by its multiples, the greatest first, is the remainder by b."""
    if a.is_floating_point():
        step = 2.0 ** int(0.9 * math.log2(torch.finfo(a.dtype).max))
        for multiple in (b * step * step, b * step):
            a = torch.fmod(a, multiple)
        return torch.fmod(a, b)
    return torch.where(b == 0, a, torch.fmod(a, torch.where(b == 0, torch.ones_like(b), b)))


def _quotient(mode: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A rounded quotient. That of an integer by 0 is 0, without an error: masked values may divide by anything, and
    eager raises for none on a GPU."""
    if a.is_floating_point():
        return torch.div(a, b, rounding_mode=mode)
    return torch.where(b == 0, 0, torch.div(a, torch.where(b == 0, torch.ones_like(b), b), rounding_mode=mode))


def _remainder(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    rest = _fmod(a, b)
    return torch.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


AS_HALF: Mapping[torch.dtype, str] = {torch.float16: "as_float16", torch.bfloat16: "as_bfloat16"}
"""The ops by which type promotion brings a number to a half type. Kernels hold half values in float32: no rounding."""

_ROWS = [
    # Arithmetic. Sums and products of bool are its "or" and "and".
    Op("neg", 1, _same, torch.neg),
    Op("abs", 1, _same, torch.abs),
    Op("add", 2, _same, torch.add),
    Op("sub", 2, _same, torch.sub),
    Op("mul", 2, _same, torch.mul),
    # `div` rounds as IEEE 754 asks.
    Op("div", 2, _float, torch.div, 4),
    Op("truncdiv", 2, _same, functools.partial(_quotient, "trunc"), 8),
    Op("floordiv", 2, _same, functools.partial(_quotient, "floor"), 8),
    Op("remainder", 2, _same, _remainder, 8),
    Op("fmod", 2, _same, _fmod, 8),
    Op("pow", 2, _same, torch.pow, 20),
    Op("fma", 3, _float, lambda a, b, c: a * b + c, 2),
    # maximum and minimum give NaN if either argument is NaN; fmax and fmin give the other argument.
    Op("maximum", 2, _same, torch.maximum),
    Op("minimum", 2, _same, torch.minimum),
    Op("fmax", 2, _float, torch.fmax),
    Op("fmin", 2, _float, torch.fmin),
    # Comparison and selection.
    *(Op(name, 2, _compare, getattr(torch, name)) for name in ("eq", "ne", "lt", "le", "gt", "ge")),
    Op("where", 3, _where, torch.where),
    Op("isnan", 1, _test, torch.isnan),
    Op("isinf", 1, _test, torch.isinf),
    Op("signbit", 1, _test, torch.signbit),
    Op("sign", 1, _same, torch.sign),
    # Bits. On bool they are logic. A shift by a negative amount or by the width or more follows eager.
    Op("bitwise_not", 1, _integer, torch.bitwise_not),
    Op("bitwise_and", 2, _integer, torch.bitwise_and),
    Op("bitwise_or", 2, _integer, torch.bitwise_or),
    Op("bitwise_xor", 2, _integer, torch.bitwise_xor),
    Op("shift_left", 2, _integer, torch.bitwise_left_shift),
    Op("shift_right", 2, _integer, torch.bitwise_right_shift),
    # Rounding. `round` takes halves to the even neighbour.
    *(_function(name, 1) for name in ("floor", "ceil", "trunc", "round")),
    # Functions. sqrt and reciprocal round as IEEE 754 asks.
    *(_function(name, 4) for name in ("sqrt", "rsqrt", "reciprocal")),
    *(_function(name, 8) for name in ("exp", "log")),
    *(_function(name, 12) for name in ("sin", "cos", "erf", "sigmoid")),
    *(_function(name, 10) for name in (
        "exp2", "expm1", "log2", "log10", "log1p", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh",
        "acosh", "atanh")),
    _function("erfc", 16),
    _function("erfinv", 20),
    _function("lgamma", 30),
    Op("atan2", 2, _float, torch.atan2, 16),
    Op("hypot", 2, _float, torch.hypot, 8),
    Op("copysign", 2, _float, torch.copysign),
    Op("nextafter", 2, _float, torch.nextafter, 4),
    # A number among the values of a half type. The number keeps its float32 value (`build.promoted`).
    Op("as_float16", 1, lambda _: torch.float16, torch.Tensor.float),
    Op("as_bfloat16", 1, lambda _: torch.bfloat16, torch.Tensor.float),
    # Random numbers: pure functions of (seed, position), the same bits on every device.
    Op("random_uniform", 2, _random(torch.float32), philox.uniform, 40),
    Op("random_normal", 2, _random(torch.float32), philox.normal, 60),
    Op("random_bits", 2, _random(torch.int64), philox.bits, 40),
]  # fmt: skip

OPS: Mapping[str, Op] = {row.name: row for row in _ROWS}
"""The rows by name. `cast` and the ops of `ir/node.py` are not rows: they have attributes of their own."""


def flops_of(node: Node, otherwise: int = 0) -> int:
    """Returns the FLOPs of one value of a node. otherwise: of a node that is no row."""
    return OPS[node.op].flops if node.op in OPS else otherwise
