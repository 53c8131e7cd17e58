"""Conditions on floats that the host computes, such as `x.item() > 1`, as expressions that are right for every float.

Sympy takes `not (a > 1)` for `a <= 1` and `a != a` for false, which no NaN agrees with. So these are written as what
sympy does not simplify.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import sympy
import torch

from litz.ir.index import ONE, ZERO, Where

from .promotion import is_whole


def is_of_floats(*exprs: Any) -> bool:
    """Returns whether expressions have a symbol of a float."""
    return any(not symbol.is_integer for expr in exprs if isinstance(expr, sympy.Basic) for symbol in expr.free_symbols)


def of_floats(target: Any, args: Sequence[Any], traced: Any) -> Any:
    """Returns what a function of scalars gives for expressions. traced: what torch says, right for whole numbers."""
    if not is_of_floats(*args):
        return traced
    if target is torch.sym_not:
        return sympy.Eq(Where(args[0], ZERO, ONE), ONE)
    if target in (operator.and_, operator.or_):
        return (sympy.And if target is operator.and_ else sympy.Or)(*args)
    if target is torch.sym_ite:
        return sympy.Piecewise((args[1], args[0]), (args[2], True))
    if target in (operator.eq, operator.ne) and args[0] == args[1] and not is_whole(args[0]):
        number, other = (ONE, ZERO) if target is operator.eq else (ZERO, ONE)
        return sympy.Eq(Where(args[0] <= 0, number, Where(args[0] > 0, number, other)), ONE)
    return traced
