"""Conditions on floats that a run finds out: NaN and infinities compare as in Python."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import sympy
import torch

from litz.codegen.sizes import python_text
from litz.ir.index import Where
from litz.ir.interpret import evaluate
from litz.lower.conditions import of_floats
from support.versions import OLD_TORCH

VALUES = (math.nan, math.inf, -math.inf, 2.5, 1.0, 0.0, -0.0)


def conditions(x: torch.Tensor, y: torch.Tensor):
    a = x.item()
    either = torch.sym_not((a > 1) | (a < 0))
    return (
        torch.sym_not(a > 1),
        a != a,
        torch.sym_not(a == a),
        torch.sym_not(torch.sym_not(a >= 1)),
        either,
        y.new_zeros(3).fill_(either),
        torch.masked_fill(y, y == 1, torch.sym_ite(torch.sym_not(a > 1), 2.0, 0.5)),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_nan_is_not_what_a_comparison_is_not(dtype: torch.dtype) -> None:
    """Sympy takes `not (a > 1)` for `a <= 1` and `a != a` for false. Of a float64 input torch knows the value that it
    traced with, and puts constants in the place of some conditions."""
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(conditions, backend="litz", fullgraph=True)
        for value in VALUES if dtype == torch.float32 else VALUES[:4]:
            inputs = torch.tensor(value, dtype=dtype), torch.ones(2)
            for found, expected in zip(compiled(*inputs), conditions(*inputs), strict=True):
                assert type(found) is type(expected)
                torch.testing.assert_close(found, expected, rtol=0, atol=0)


ASSERTED = {
    "not greater": lambda a, b: torch.sym_not(a > 1),
    "not less": lambda a, b: torch.sym_not(a < 1),
    "not at least": lambda a, b: torch.sym_not(a >= 1),
    "not greater than another": lambda a, b: torch.sym_not(a > b),
    "of a sum": lambda a, b: torch.sym_not(a + 1 > 2),
    "twice": lambda a, b: torch.sym_not(torch.sym_not(a > 1)),
    "greater": lambda a, b: a > 1,
    "unequal": lambda a, b: a != b,
    "both": lambda a, b: (a > 1) & (b < 3),
    "by a choice": lambda a, b: torch.sym_ite(a > 1, a, b) > 0,
}


@pytest.mark.skipif(OLD_TORCH, reason="an older torch writes `not a > b` as `a <= b` before a backend sees the graph")
@pytest.mark.parametrize("name", ASSERTED)
def test_an_assertion_takes_a_nan_as_eager_does(name: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        torch._check(ASSERTED[name](x[0].item(), x[1].item()))
        return x * 2

    def raises(function: Callable[..., torch.Tensor], x: torch.Tensor) -> bool:
        try:
            return not function(x).equal(x * 2) and not x.isnan().any()
        except RuntimeError:
            return True

    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(function, backend="litz", fullgraph=True)
        inputs = [torch.tensor([value, 1.0]) for value in VALUES]
        assert [raises(compiled, x) for x in inputs] == [raises(function, x) for x in inputs]


def test_expressions_compare_as_python_does() -> None:
    a = sympy.Symbol("zuf0", real=True)
    above = a > 1
    exact = of_floats(torch.sym_not, (above,), a <= 1)
    cases = [(above, lambda v: v > 1), (a <= 1, lambda v: v <= 1), (exact, lambda v: not (v > 1))]
    cases += [(Where(exact, 2, 3), lambda v: 2 if not (v > 1) else 3)]
    for expr, meaning in cases:
        for value in VALUES:
            found = evaluate(expr, {a: value})
            assert found == meaning(value) == eval(python_text(expr), {"zuf0": value})
            assert type(found) is type(meaning(value))
