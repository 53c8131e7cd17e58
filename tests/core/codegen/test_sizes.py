"""The text of a size expression has the expression's value."""

from __future__ import annotations

import math

import pytest
import sympy
import torch
from torch.utils._sympy import functions

from litz.codegen.named_sizes import name_sizes
from litz.codegen.sizes import python_text
from litz.ir import Buffer, Layout, Loop, Range, Store, build
from litz.ir.index import FloorDiv, Mod, loop_var
from litz.ir.interpret import evaluate
from litz.lower.promotion import is_whole, scalar_dtype
from litz.runtime.wrapper_support import is_dense
from litz.targets.cpp import text as cpp_text
from litz.targets.triton.text import IndexText, size_text

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


A, B, X = 37, 5, 2.75
"""What s0, s1 and the float are."""
ARGUMENTS = {
    "ModularIndexing": (A, B, 3),
    "Where": (sympy.Gt(s0, 3), A, B),
    "CleanDiv": (35, B),
    "LShift": (A, 2),
    "RShift": (A, 2),
    "PowByNatural": (A, 3),
    "IsNonOverlappingAndDenseIndicator": (A, B, B, 1),
    "RoundDecimal": (X, 1),
    **dict.fromkeys(("IntTrueDiv", "FloorDiv", "Mod", "CeilDiv", "Max", "Min", "PythonMod"), (A, B)),
    **dict.fromkeys(("FloatPow", "FloatTrueDiv"), (X, 1.5)),
    **dict.fromkeys(("ToFloat", "Identity"), (A,)),
    **dict.fromkeys(("BitwiseFn_bitwise_and", "BitwiseFn_bitwise_or", "BitwiseFn_bitwise_xor"), (A, B)),
    **dict.fromkeys(("CeilToInt", "FloorToInt", "TruncToInt", "TruncToFloat", "RoundToInt"), (X,)),
}
KNOWN = {
    name: kind
    for name, kind in vars(functions).items()
    if isinstance(kind, type) and issubclass(kind, sympy.Function) and kind.__module__ == functions.__name__
} | {"Max": functions.Max, "Min": functions.Min}


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_every_function_that_torch_has_for_sizes(name: str) -> None:
    """In Python and by the interpreter; and kernels that use one are told its value."""
    values = ARGUMENTS.get(name, (0.5,))
    numbers = [value for value in values if isinstance(value, (int, float))]
    symbols = [sympy.Symbol(f"n{k}", integer=isinstance(v, int), positive=True) for k, v in enumerate(numbers)]
    given = iter(symbols)
    expr = KNOWN[name](*(next(given) if value in numbers else value for value in values))
    known = {symbol.name: number for symbol, number in zip(symbols, numbers, strict=True)} | {"s0": A}
    expected = expr.xreplace({symbol: sympy.sympify(known[symbol.name]) for symbol in expr.free_symbols})
    found = eval(python_text(expr), {"math": math, "_is_dense": is_dense, **known})
    assert found == pytest.approx(float(expected), rel=1e-15)
    assert isinstance(found, float) == (not is_whole(expr))
    evaluated = evaluate(expr, {symbol: known[symbol.name] for symbol in expr.free_symbols})
    assert type(evaluated) is type(found) and evaluated == pytest.approx(found, rel=1e-15)
    if not isinstance(found, float):
        texts = kernel_texts(expr)
        assert len(texts) == 2


def kernel_texts(expr: sympy.Expr) -> list[str]:
    """A loop over as many elements as `expr` says, which stores the value: its texts in C++ and in Triton."""
    i, cpu = loop_var(0), torch.device("cpu")
    y = Buffer("y", torch.int64, cpu, Layout.contiguous((expr,)))
    loop = Loop("op0", cpu, (Range(i, expr),), (), (Store("y", (i,), build.index(expr + i)),))
    (loop,), buffers, sizes = name_sizes((loop,), {"y": y})
    names = {symbol: str(symbol) for symbol in (i, *expr.free_symbols, *sizes)}
    (value,) = (node.attrs[0] for node in loop.nodes if node.op == "index")
    assert buffers["y"].layout.size == (loop.ranges[0].size,)
    return [cpp_text.IndexText(names, loop.extents).text(value), IndexText(names, loop.extents)(value)]


@pytest.mark.parametrize("digits", [2, 1, 0, -1, -2])
def test_rounding_to_digits(digits: int) -> None:
    expr = functions.RoundDecimal(functions.IntTrueDiv(s0, s1), sympy.Integer(digits))
    for a, b in [(37, 3), (5, 2), (250, 1), (7, 2), (1, 1000)]:
        for found in (eval(python_text(expr), {"s0": a, "s1": b}), evaluate(expr, {s0: a, s1: b})):
            assert found == round(a / b, digits) and isinstance(found, float)


def test_the_float_zero_is_no_integer() -> None:
    zero = functions.ToFloat(sympy.Integer(0))
    assert isinstance(evaluate(zero, {}), float) and isinstance(eval(python_text(zero)), float)
    assert not is_whole(zero) and is_whole(sympy.Integer(0))
    assert scalar_dtype(zero) == torch.float32


@pytest.mark.parametrize("read", [5.0, 3.0])
def test_a_condition_as_a_number(read: float) -> None:
    """Of a float that is read off a tensor (`x.item() > 4` as an operand): sympy does not work ToFloat(True) out."""
    number = sympy.Symbol("zuf0", real=True)
    one = functions.ToFloat(sympy.Gt(number, 4.0))
    either = functions.ToFloat(sympy.Or(sympy.Gt(number, 4.0), sympy.Eq(s0, 2)))
    for expr in (
        one,
        2.5 * one + s0,
        functions.FloatTrueDiv(one, 2.0),
        functions.CeilToInt(one),
        either,
        sympy.Not(one > 0.5),
    ):
        names = {"zuf0": read, "s0": 37, "math": math}
        found, expected = evaluate(expr, {number: read, s0: 37}), eval(python_text(expr), names)
        assert found == expected and type(found) is type(expected)


@pytest.mark.parametrize("divisor", [-3, 3])
def test_a_kernel_is_told_what_is_divided_by_a_negative_number(divisor: int) -> None:
    for expr in (FloorDiv(s0, divisor), functions.PythonMod(s0, divisor)):
        (told,) = [text for text in kernel_texts(expr)[:1]]
        assert ("size0" in told) == (divisor < 0)
        assert eval(python_text(expr), {"s0": 7}) == (7 // divisor if isinstance(expr, FloorDiv) else 7 % divisor)


def test_infinity_has_a_text() -> None:
    assert eval(python_text(sympy.Max(sympy.oo, s0, evaluate=False)), {"s0": 1}) == math.inf
