"""Simpler bodies of the same values."""

from __future__ import annotations

import math

import pytest
import torch

from litz.ir.build import call, const, load
from litz.ir.node import Node
from litz.schedule.bodies import simplify


def quotient(divisor: float, dtype: torch.dtype = torch.float32) -> Node:
    return simplify(call("div", load("x", (), dtype), const(divisor, dtype)))


@pytest.mark.parametrize("divisor", [2.0, -4.0, 0.125, 2.0**126, 2.0**-126, 2.0**-127])
def test_a_quotient_by_a_power_of_two_is_a_product(divisor: float) -> None:
    made = quotient(divisor)
    assert made.op == "mul"
    x = torch.cat([torch.randn(4096) * scale for scale in (1.0, 1e-38, 1e38)])
    x = torch.cat([x, torch.tensor([0.0, -0.0, math.inf, -math.inf, 1e-45, 3.4e38])])
    assert torch.equal((x * torch.tensor(made.args[1].attrs[0])).view(torch.int32), (x / divisor).view(torch.int32))


@pytest.mark.parametrize("divisor", [3.0, 0.0, math.inf, math.nan, 2.0**127, 2.0**-149])
def test_other_quotients_stay(divisor: float) -> None:
    assert quotient(divisor).op == "div"


@pytest.mark.parametrize(
    ("held", "limit", "test"), [("maximum", 0, "le"), ("maximum", 0, "gt"), ("minimum", 6, "ge"), ("minimum", 6, "lt")]
)
def test_a_float_is_tested_before_it_is_held_and_an_integer_after(held: str, limit: int, test: str) -> None:
    for dtype in (torch.float32, torch.int64):
        x, bound = load("x", (), dtype), const(limit, dtype)
        made = simplify(call(test, call(held, x, bound), bound))
        assert made.op == test and (made.args[0] is x) == dtype.is_floating_point


def test_the_limits_are_those_of_the_type() -> None:
    assert quotient(2.0**127, torch.float64).op == "mul"
    assert quotient(2.0**15, torch.float16).op == "div"
    assert simplify(call("truncdiv", load("x", (), torch.int32), const(2, torch.int32))).op == "truncdiv"
