"""Sums of rows of which all but one value are 0."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from core.schedule.harness import CPU, GPU, check, passed, plan_of
from core.schedule.programs import Writer, call
from litz.ir import Node, build
from litz.ir.index import Expr, reduction_var
from litz_testing.parse.programs import parse_program

F32 = torch.float32


def one_hot_sum(value: Callable[[Writer, Expr, Node], Node], rows: int = 12, columns: int = 40) -> Writer:
    """sum over r of value(w, i, chosen), where chosen is 1 where r is the class of the row and 0 elsewhere."""
    w = Writer()
    w.input("t", rows, dtype=torch.int64)
    w.input("g", rows)

    def body(i: Expr, r: Expr) -> Node:
        chosen = build.call("eq", build.index(r), w.load("t", i))
        return value(w, i, build.call("where", chosen, build.const(-1.0, F32), build.const(0.0, F32)))

    w.reduce("y", "sum", (rows,), (columns,), body)
    return w


def args() -> list[torch.Tensor]:
    return [torch.tensor([0, 39, 5, 7, -1, 40, -100, 3, 3, 12, 2**40, 38]), torch.randn(12)]


ONE_HOT = """\
program one_hot
  input t: i64 [12] cpu
  input g: f32 [12] cpu
  loop op0 [i0<12 | r0<40] cpu
    v0: i64 = index r0
    v1: i64 = load t[i0]
    v2: bool = eq v0, v1
    v3: f32 = where v2, -1.0:f32, 0.0:f32
    v4: f32 = load g[i0]
    v5: f32 = mul v3, v4
    v6: f32 = reduce sum v5
    store y[i0] = v6  # f32 [12]
  return y[12]
"""
PICKED = """\
program one_hot
  input t: i64 [12] cpu
  input g: f32 [12] cpu
  loop op0 [i0<12] cpu
    v0: i64 = load t[i0]
    v1: bool = ge v0, 0:i64
    v2: bool = lt v0, 40:i64
    v3: bool = bitwise_and v1, v2
    v4: f32 = load g[i0]
    v5: f32 = mul -1.0:f32, v4
    v6: f32 = mul 0.0:f32, v4
    v7: f32 = where v3, v5, v6
    v8: f32 = add v7, v6
    store y[i0] = v8  # f32 [12]
  return y[12]
"""


@pytest.mark.parametrize("target", [CPU, GPU], ids=["cpu", "gpu"])
def test_the_value_stands_for_the_sum(target) -> None:
    assert passed("pick_elements", ONE_HOT, target) == PICKED
    schedule = check(parse_program(ONE_HOT), args(), target)
    assert not any(kernel.loop.reduction_ranges for kernel in schedule.kernels)


@pytest.mark.parametrize("odd", [float("inf"), -float("inf"), float("nan")])
def test_zeros_times_what_is_not_finite(odd: float) -> None:
    """0 * inf is not a number, in the sum as well."""
    writer = one_hot_sum(lambda w, i, chosen: call("mul", w.load("g", i), chosen))
    given = args()
    given[1][::2] = odd
    schedule = check(writer.program("y"), given, CPU)
    assert not any(kernel.loop.reduction_ranges for kernel in schedule.kernels)


@pytest.mark.parametrize(
    "value",
    [
        lambda w, i, chosen: call("add", chosen, w.load("g", i)),
        lambda w, i, chosen: call("mul", chosen, build.cast(build.index(reduction_var(0)), F32)),
    ],
    ids=["not zero elsewhere", "a factor of each element"],
)
def test_other_sums_stay(value) -> None:
    writer = one_hot_sum(value)
    assert any(kernel.loop.reduction_ranges for kernel in plan_of(writer.program("y"), CPU).kernels)
