"""Patterns find what a Program has, say why they find nothing, and print as text."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from litz.ir import Loop, Program, build
from litz.ir.index import loop_var
from litz.ir.pattern import STORED, Match, Pattern, Value, bind, find, fits, match, match_loop
from litz_testing.parse import parse_program

F32 = torch.float32
SUM = Value("add", (Value("load", name="left"), Value(words="plain", name="right")), words="real")


def program() -> Program:
    return parse_program("""
program p
  input x: f32 [4, 4] cpu
  input at: i64 [4] cpu
  loop pointwise [i0<4, i1<4] cpu
    v0: f32 = load x[i0, i1]
    v1: f32 = add v0, v0
    store twice[i0, i1] = v1  # f32 [4, 4]
  loop sums [i0<4 | r0<4] cpu
    v0: f32 = load twice[i0, r0]
    v1: f32 = reduce sum v0
    store total[i0] = v1  # f32 [4]
  loop gathers [i0<4] cpu
    v0: i64 = load at[i0]
    v1: f32 = load total[v0]
    store out[i0] = v1  # f32 [4]
  loop scatters [i0<4] cpu
    v0: i64 = load at[i0]
    v1: f32 = load total[i0]
    store out[v0] add= v1
  return out[4]
""")


def loop(name: str) -> Loop:
    return next(each for each in program().loops if each.name == name)


def test_a_pattern_finds_the_only_loop_that_makes_a_buffer_and_its_nodes() -> None:
    found = match(
        Pattern("temporary unshared unreturned read_once", "pointwise plain in_order", SUM), "twice", program()
    )
    assert isinstance(found, Match)
    assert found.loop.name == "pointwise"
    assert found.store.buffer == "twice"
    assert found["left"] is found["right"] is found.loop.loads[0]


@pytest.mark.parametrize(
    ("pattern", "subject", "why"),
    [
        (Pattern("temporary"), "x", "x: not of one loop with one store"),
        (Pattern(), "out", "out: not of one loop with one store"),  # two loops write it
        (Pattern("read_once unshared"), "total", "total: not read_once"),
        (Pattern("unreturned"), loop("scatters"), "out: not unreturned"),
        (Pattern(loop="pointwise direct"), "total", "sums: not pointwise"),
        (Pattern(loop="direct in_order"), loop("gathers"), "gathers: not direct"),
        (Pattern(loop="plain in_order"), loop("scatters"), "scatters: not plain, not in_order"),
        (Pattern(value=Value("reduce", attr="max")), "total", "sums: stores no reduce(max)"),
        (Pattern(value=SUM), "total", "sums: stores no real add(load left, plain any right)"),
    ],
    ids=str,
)
def test_a_pattern_that_finds_nothing_says_why(pattern: Pattern, subject: str | Loop, why: str) -> None:
    assert match(pattern, subject, program()) == why
    assert find(pattern, subject, program()) is None


def test_readers_are_the_only_ones_that_may_read() -> None:
    assert fits("temporary", "total", program(), {"gathers", "scatters"})
    assert not fits("temporary", "total", program(), {"gathers"})
    assert match(Pattern(), "total", program(), {"gathers"}) == "total: not read here alone"


def test_a_view_shares_its_buffer() -> None:
    assert fits("unshared", "total", program())
    shared = parse_program("""
program p
  input x: f32 [4] cpu
  loop op0 [i0<4] cpu
    v0: f32 = load x[i0]
    store a[i0] = v0  # f32 [4]
  extern op1 b = aten.view.default(a[4], [2, 2]) b aliases a  # f32 [2, 2]
  return b[2, 2]
""")
    assert not fits("unshared", "a", shared)
    assert not fits("unshared", "b", shared)


def test_arguments_of_sums_match_in_either_order_and_those_of_differences_do_not() -> None:
    x, one = build.load("x", (loop_var(0),), F32), build.const(1.0, F32)
    for op, either in (("add", True), ("mul", True), ("sub", False)):
        wanted = Value(op, (Value("const", attr=1), Value("load", name="x", attr="x")))
        assert bind(wanted, build.call(op, one, x)) == {"x": x}
        assert (bind(wanted, build.call(op, x, one)) is not None) is either
    assert bind(Value("load", attr="y"), x) is None
    assert bind(Value("add", (Value(), Value(), Value())), build.call("add", x, one)) is None


def test_uncast_looks_behind_roundings_only() -> None:
    x = build.load("x", (loop_var(0),), F32)
    rounded = build.cast(build.cast(x, torch.bfloat16), F32)
    assert bind(Value("load", name="x"), rounded) is None
    assert bind(Value("load", name="x", words="uncast"), rounded) == {"x": x}
    assert bind(Value("load", words="uncast"), build.cast(x, torch.int64)) is None
    assert bind(Value("cast", words="half"), build.cast(x, torch.bfloat16)) is not None
    assert bind(Value("cast", words="half"), rounded) is None
    least = build.cast(build.const(-math.inf, F32), torch.bfloat16)
    assert bind(Value("const", words="uncast", attr=-math.inf), least) is not None


def test_a_loop_of_two_stores_is_no_pattern() -> None:
    both = loop("pointwise")
    assert isinstance(match_loop(STORED, both), Match)
    both = replace(both, stores=both.stores * 2)
    assert match_loop(STORED, both) == "pointwise: not of one store"


def test_patterns_are_data_that_print_as_text() -> None:
    pattern = Pattern(
        "temporary read_once", "pointwise plain", Value("add", (Value("load", name="left"), Value("load")))
    )
    assert str(pattern) == "temporary read_once <- pointwise plain add(load left, load)"
    assert str(STORED) == "<- pointwise plain any"
    assert pattern == replace(pattern) and hash(pattern) == hash(replace(pattern))
