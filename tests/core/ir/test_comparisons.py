"""Comparisons of positions: the simplest one has the same answer at every position."""

from __future__ import annotations

import operator
import random
from itertools import product

import pytest
import sympy
import torch

from litz.ir import Node, build
from litz.ir.comparisons import difference, simplest
from litz.ir.index import Expr, floordiv, loop_var, placeholder, to_expr

A, B, C = (loop_var(n) for n in range(3))
OPS = ("lt", "le", "gt", "ge", "eq", "ne")


def compared(op: str, left: Expr | int, right: Expr | int) -> Node:
    return build.call(op, build.index(to_expr(left)), build.index(to_expr(right)))


def answer(node: Node, at: dict[sympy.Symbol, int]) -> bool:
    left, right = (
        int(to_expr(arg.attrs[0]).xreplace({k: sympy.Integer(v) for k, v in at.items()})) for arg in node.args
    )
    return bool(getattr(operator, node.op)(left, right))


def random_position(rng: random.Random, sizes: dict[sympy.Symbol, int]) -> Expr:
    total: Expr = sympy.Integer(rng.randint(-9, 9))
    for var in rng.sample(list(sizes), rng.randint(1, 3)):
        term = var if rng.random() < 0.5 else floordiv(var, sympy.Integer(rng.randint(2, 5)))
        total = total + rng.choice((-24, -12, -3, -1, 1, 2, 4, 12, 24)) * term
    return total


@pytest.mark.parametrize("block", range(10))
def test_the_simplest_has_the_same_answers(block: int) -> None:
    for seed in range(40 * block, 40 * block + 40):
        rng = random.Random(seed)
        sizes = {var: rng.choice((1, 2, 3, 4, 12)) for var in (A, B, C)}
        node = compared(rng.choice(OPS), random_position(rng, sizes), rng.randint(-30, 60))
        found = simplest(node, {var: sympy.Integer(n) for var, n in sizes.items()})
        for values in product(*(range(n) for n in sizes.values())):
            at = dict(zip(sizes, values, strict=True))
            assert answer(node, at) == answer(found, at), (seed, node, found, at)


@pytest.mark.parametrize(
    "op, left, right, ranges, shown",
    [
        ("lt", 32 * A + B, 64, {A: 3, B: 32}, ("lt", A, 2)),
        ("ge", 32 * A + B, 64, {A: 3, B: 32}, ("ge", A, 2)),
        ("gt", 32 * A + B, 63, {A: 3, B: 32}, ("ge", A, 2)),
        ("le", 32 * A + B, 63, {A: 3, B: 32}, ("lt", A, 2)),
        ("lt", floordiv(A, sympy.Integer(48)), 2, {A: 144}, ("lt", A, 96)),
        ("lt", 32 * floordiv(A, sympy.Integer(48)) + B, 64, {A: 144, B: 32}, ("lt", A, 96)),
        ("lt", 63, 32 * A + B, {A: 3, B: 32}, ("gt", A, 1)),
        ("lt", 2 * A, 5, {A: 9}, ("lt", A, 3)),
    ],
)
def test_some_are_simpler(
    op: str, left: Expr, right: Expr, ranges: dict[Expr, int], shown: tuple[str, Expr, int]
) -> None:
    found = simplest(compared(op, left, right), {var: sympy.Integer(n) for var, n in ranges.items()})
    assert (found.op, *(arg.attrs[0] for arg in found.args)) == shown


@pytest.mark.parametrize(
    "node, ranges",
    [
        (compared("lt", 32 * A + B, 60), {A: 3, B: 32}),  # the answer changes within a row
        (compared("lt", 32 * A + B, 64), {A: 3, B: 33}),
        (compared("eq", 32 * A + B, 64), {A: 3, B: 32}),
        (compared("lt", 32 * A + placeholder(0), 64), {A: 3}),
        (compared("lt", sympy.Symbol("s0", integer=True) * A + B, 64), {A: 3, B: 32}),
        (build.call("lt", build.load("x", (A,), torch.int64), build.index(3)), {A: 3}),
        (build.call("add", build.index(A), build.index(3)), {A: 3}),
        (compared("lt", A, 2), {A: 3}),
    ],
)
def test_the_others_stay(node: Node, ranges: dict[Expr, int]) -> None:
    assert simplest(node, {var: sympy.Integer(n) for var, n in ranges.items()}) is node


def test_what_is_compared() -> None:
    assert difference(compared("lt", 3 * A, B + 2)) == 3 * A - B - 2
    assert difference(build.call("lt", build.load("x", (A,), torch.int64), build.index(3))) is None
