"""Index arithmetic: every simplification keeps the value, and reshapes come out affine."""

from __future__ import annotations

import itertools
import random

import pytest
import sympy

from litz.ir.index import (
    FloorDiv,
    bounds,
    flat_index,
    floordiv,
    loop_var,
    mod,
    recombine,
    stride_of,
    substitute,
)
from litz.ir.interpret import evaluate

I0, I1, I2 = loop_var(0), loop_var(1), loop_var(2)
S0 = sympy.Symbol("s0", integer=True, positive=True)


def n(value: int) -> sympy.Integer:
    return sympy.Integer(value)


def test_joined_dimensions_split_again() -> None:
    ranges = {I0: n(4), I1: n(64)}
    assert floordiv(I0 * 64 + I1, n(64), ranges) == I0
    assert mod(I0 * 64 + I1, n(64), ranges) == I1


def test_symbolic_sizes_split_again() -> None:
    ranges = {I0: n(4), I1: S0}
    assert floordiv(I0 * S0 + I1, S0, ranges) == I0
    assert mod(I0 * S0 + I1, S0, ranges) == I1


def test_the_last_of_a_symbolic_number_of_elements() -> None:
    assert floordiv(2 * S0 - 1, S0) == 1 and mod(2 * S0 - 1, S0) == S0 - 1
    for number, divisor in ((2 * S0 + 3, S0), (2 * S0 - 3, S0), (2 * S0 - 3, S0 + 2)):
        for value in range(1, 6):
            exact, by = (int(expr.subs(S0, value)) for expr in (number, divisor))
            assert floordiv(number, divisor).subs(S0, value) == exact // by
            assert mod(number, divisor).subs(S0, value) == exact % by


T0 = sympy.Symbol("t0", integer=True, positive=True)


def test_a_loop_without_iterations_has_positions_too():
    ranges = {I0: n(0), I1: n(0)}
    for expr in (I0, I0 * 64 + I1, I0 * S0, n(7), floordiv(I0, n(2))):
        assert floordiv(expr, n(0), ranges) == 0 and mod(expr, n(0), ranges) == 0


@pytest.mark.parametrize(
    "divisor", [S0 - 1, 5 - S0, 2 * S0 + 1, S0 + T0, S0 * T0 - T0, FloorDiv(S0, 2) + 1, S0 + 2], ids=str
)
def test_a_sum_of_sizes_splits_again(divisor: sympy.Expr) -> None:
    """The windows of an image of s0 elements: there are s0 - 1 of two each."""
    ranges = {I0: n(3), I1: divisor}
    joined = sympy.expand(I0 * divisor + I1)
    assert floordiv(joined, divisor, ranges) == I0 and mod(joined, divisor, ranges) == I1
    assert floordiv(joined - I1, divisor, ranges) == I0 and mod(joined - I1, divisor, ranges) == 0


@pytest.mark.parametrize("number", [I0 * S0 + I1, I0 * S0 - I0 + I1 + 1, I0 * S0 - I1, 2 * S0 - 2 - I1, S0 * S0 + I1])
def test_a_division_by_a_sum_of_sizes_keeps_its_value(number: sympy.Expr) -> None:
    for divisor in (S0 - 1, 2 * S0 - 3):
        ranges = {I0: n(3), I1: divisor}
        quotient, rest = floordiv(number, divisor, ranges), mod(number, divisor, ranges)
        for size in (2, 3, 5):
            by = int(divisor.subs(S0, size))
            for first, second in itertools.product(range(3), range(by)):
                env = {S0: size, I0: first, I1: second}
                exact = evaluate(number, env)
                assert (evaluate(quotient, env), evaluate(rest, env)) == (exact // by, exact % by)


def test_a_common_factor_is_taken_out() -> None:
    ranges = {I0: n(4), I1: n(64)}
    assert floordiv(I0 * 64 + I1, n(128), ranges) == floordiv(I0, n(2), ranges)
    assert mod(I0 * 64 + I1, n(128), ranges) == 64 * mod(I0, n(2), ranges) + I1


def test_flat_index_of_a_split_index_is_the_index() -> None:
    ranges = {I0: n(24)}
    split = (floordiv(I0, n(6), ranges), mod(floordiv(I0, n(2), ranges), n(3), ranges), mod(I0, n(2), ranges))
    assert flat_index(split, (n(6), n(2), n(1)), n(0)) == I0


def test_recombine_leaves_other_sums_alone() -> None:
    expr = 3 * mod(I0, n(4)) + 8 * floordiv(I0, n(4))
    assert recombine(expr) == expr


def test_stride_of() -> None:
    assert stride_of(3 * I0 + I1, I0) == 3
    assert stride_of(S0 * I0 + I1, I0) == S0
    assert stride_of(S0 * (S0 + 1) * I0 + I1, I0) == S0 * (S0 + 1)
    assert stride_of(I0 * I1 + 2 * I0, I0) == I1 + 2
    assert stride_of(floordiv(I0, n(2)), I0) is None
    assert stride_of(I0 * floordiv(I0, n(2)), I0) is None
    assert stride_of(I0**2, I0) is None
    assert stride_of(S0 * (I0 + I1), I0) is None, "by S0, but not by the look of it: indices are expanded"
    assert stride_of(I1, I0) == 0


def test_substitute_simplifies_divisions_by_the_new_ranges() -> None:
    expr = floordiv(I2, n(8), {I2: n(64)})
    assert substitute(expr, {I2: I0 * 8 + I1}, {I0: n(8), I1: n(8)}) == I0


@pytest.mark.parametrize("seed", range(30))
def test_random_expressions_keep_their_value(seed: int) -> None:
    """Build random nests of +, *, // and % with and without ranges: both forms agree everywhere."""
    rng = random.Random(seed)
    extents = {I0: n(rng.choice([1, 2, 3, 6])), I1: n(rng.choice([2, 4, 5])), I2: n(rng.choice([1, 8]))}

    def build(depth: int) -> tuple[sympy.Expr, object]:
        if depth == 0:
            var = rng.choice([I0, I1, I2])
            return var, lambda env, var=var: env[var]
        left, left_value = build(depth - 1)
        kind = rng.choice(["add", "mul", "div", "mod"])
        if kind == "add":
            right, right_value = build(depth - 1)
            return left + right, lambda env: left_value(env) + right_value(env)
        factor = rng.choice([2, 3, 4, 6])
        if kind == "mul":
            return left * factor, lambda env: left_value(env) * factor
        if kind == "div":
            return floordiv(left, n(factor), extents), lambda env: left_value(env) // factor
        return mod(left, n(factor), extents), lambda env: left_value(env) % factor

    expr, value = build(4)
    low, high = bounds(expr, extents)
    recombined = recombine(sympy.expand(expr))
    for point in itertools.product(*(range(int(extent)) for extent in extents.values())):
        env = dict(zip(extents, point, strict=True))
        expected = value(env)
        assert evaluate(expr, env) == expected
        assert evaluate(recombined, env) == expected
        assert low is None or int(low) <= expected
        assert high is None or expected <= int(high)


def test_the_size_of_a_float_is_a_float() -> None:
    """For sympy abs(0.0) is the integer 0, and a clamp of integers to that has another type than one to 0.0."""
    x = sympy.Symbol("x", real=True)
    assert [type(evaluate(sympy.Abs(x - 3), {x: value})) for value in (3.0, 4.5)] == [float, float]
