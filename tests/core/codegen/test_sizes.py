"""The text of a size expression has the expression's value."""

from __future__ import annotations

import pytest
import sympy

from litz.codegen.sizes import python_text
from litz.codegen.triton.text import IndexText, size_text
from litz.ir.index import FloorDiv, Mod

s0, s1 = sympy.symbols("s0 s1", integer=True, positive=True)
VALUES = {s0: 37, s1: 3}

EXPRESSIONS = [
    FloorDiv(s0, 2 * s1),
    FloorDiv(s0 + 7, s1 * FloorDiv(s0, 4)),
    FloorDiv(s0 * s1, s1**2),
    Mod(s0 + 1, 2 * s1),
    3 * FloorDiv(s0, 2 * s1) * s1 + s0 * s1,
    s1 * Mod(s0, s1**2),
    (s0 + s1) ** 2 - s0,
]


def value(expr: sympy.Expr) -> int:
    return int(expr.xreplace({symbol: sympy.Integer(number) for symbol, number in VALUES.items()}))


@pytest.mark.parametrize("expr", EXPRESSIONS, ids=str)
def test_the_text_computes_the_expression(expr: sympy.Expr) -> None:
    names = {symbol.name: number for symbol, number in VALUES.items()}
    texts = {symbol: symbol.name for symbol in VALUES}
    assert eval(python_text(expr), dict(names)) == value(expr)
    assert eval(size_text(expr, texts), dict(names)) == value(expr)
    helpers = {"_floordiv_int": lambda a, b: a // b, "_remainder_int": lambda a, b: a % b}
    assert eval(IndexText(texts, {})(expr), {**names, **helpers}) == value(expr)


def test_functions_take_products_as_one_operand() -> None:
    from torch.utils._sympy.functions import CeilToInt, FloatTrueDiv, PowByNatural

    assert eval(python_text(CeilToInt(FloatTrueDiv(s0, 2 * s1))), {"s0": 37, "s1": 3, "math": __import__("math")}) == 7
    power = PowByNatural(2 * s1, s0, evaluate=False)
    assert eval(python_text(power), {"s0": 2, "s1": 3}) == 36
