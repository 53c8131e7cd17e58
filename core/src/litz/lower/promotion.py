"""Type promotion, as eager does it.

In: the dtypes of tensors and Python scalars, and how many dimensions each has. Out: the dtype they meet in. The rules
are those of `torch.result_type`: tensors with dimensions count before zero-dimensional ones, and these before Python
numbers; what comes later changes the result only if its category (bool, int, float, complex) is higher.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import sympy
import torch

from litz.ir.index import Mod, PythonMod

from .view import Tensor


def _category(dtype: torch.dtype) -> int:
    if dtype.is_complex:
        return 3
    return 2 if dtype.is_floating_point else int(dtype != torch.bool)


def is_whole(expr: Any) -> bool:
    """Returns whether a size expression is an integer. `is_integer` does not tell: torch's remainders and sympy's float
    0.0 always say that they are, torch's bit operations and shifts never."""
    if isinstance(expr, sympy.Float):
        return False
    bits = type(expr).__name__.startswith(("BitwiseFn_", "LShift", "RShift"))
    if bits or isinstance(expr, (Mod, PythonMod)):
        return all(map(is_whole, expr.args))
    if expr.is_Add or expr.is_Mul:
        return bool(expr.is_integer) and all(map(is_whole, expr.args))
    return bool(getattr(expr, "is_integer", False))


def scalar_dtype(value: Any) -> torch.dtype:
    """Returns the dtype of a tensor made of a Python number or a size expression. Errors: NotImplementedError for other
    types."""
    if isinstance(value, bool) or value in (sympy.true, sympy.false):
        return torch.bool
    if isinstance(value, int) or (isinstance(value, sympy.Expr) and is_whole(value)):
        return torch.int64
    if isinstance(value, complex):
        return torch.complex64
    if isinstance(value, (float, sympy.Expr)):
        return torch.get_default_dtype()
    raise NotImplementedError(f"a scalar of type {type(value).__name__}")


def result_type(*args: Any) -> torch.dtype:
    """Returns the dtype in which tensors and scalars meet by torch's rules of promotion. Arguments that are None do not
    count."""
    groups: list[list[torch.dtype]] = [[], [], []]
    for arg in args:
        if isinstance(arg, Tensor):
            groups[0 if arg.size else 1].append(arg.dtype)
        elif arg is not None:
            groups[2].append(scalar_dtype(arg))
    met = [reduce(torch.promote_types, group) for group in groups if group]
    # float8 meets nothing but itself and numbers, for which torch has no rule either.
    return reduce(lambda one, more: one if _category(one) >= _category(more) else torch.promote_types(one, more), met)


def to_float(dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype in which sin and the like compute: the default float for integers and bool, else `dtype`."""
    return dtype if dtype.is_floating_point or dtype.is_complex else torch.get_default_dtype()


def to_int64(dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype of a sum of elements of `dtype`: int64 for integers and bool, else `dtype`."""
    return dtype if dtype.is_floating_point or dtype.is_complex else torch.int64
