"""`CallPattern`: what calls a pattern finds in an FX graph, and what it leaves."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch.fx import Graph

from litz_plugins.patterns import CallPattern, Capture

aten = torch.ops.aten
ADD, MM, MUL, PUT = aten.add.Tensor, aten.mm.default, aten.mul.Tensor, aten.index_put.default


@pytest.fixture
def graph() -> Graph:
    return Graph()


def inputs(graph: Graph, names: str) -> list[Any]:
    return [graph.placeholder(name) for name in names]


def test_captures_and_inner_calls_are_found_by_their_names(graph: Graph) -> None:
    a, b, c = inputs(graph, "abc")
    inner = graph.call_function(MM, (a, b))
    outer = graph.call_function(MM, (inner, c))
    pattern = CallPattern(MM, CallPattern(MM, Capture("a"), Capture("b"), name="inner"), Capture("c"))
    found = pattern.match(outer)
    assert found is not None and (found.node, found.nodes) == (outer, (outer, inner))
    assert found.named == {"inner": inner, "a": a, "b": b, "c": c} and found["c"] is c
    assert pattern.match(inner) is None and pattern.match(a) is None


@pytest.mark.parametrize("passed", [{"accumulate": True}, None])
def test_an_argument_counts_alike_however_it_is_passed(graph: Graph, passed: Any) -> None:
    x, at, y = inputs(graph, "xiy")
    more = (True,) if passed is None else ()
    node = graph.call_function(PUT, (x, [at], y, *more), passed or {})
    assert CallPattern(PUT, Capture("x"), [Capture("at")], Capture("y"), True).match(node)
    found = CallPattern(PUT, Capture("x"), ..., kwargs={"accumulate": True}).match(node)
    assert found is not None and found["x"] is x
    assert CallPattern(PUT, Capture(), Capture(), Capture()).match(node) is None  # accumulate is not its default


def test_what_the_pattern_does_not_name_has_its_default(graph: Graph) -> None:
    x, y = inputs(graph, "xy")
    nodes = [graph.call_function(ADD, (x, y), kwargs) for kwargs in ({}, {"alpha": 1}, {"alpha": 2})]
    pattern = CallPattern(ADD, Capture("x"), Capture("y"))
    assert [pattern.match(node) is not None for node in nodes] == [True, True, False]
    named = CallPattern(ADD, Capture("x"), Capture("y"), kwargs={"alpha": Capture("alpha")})
    assert [named.match(node)["alpha"] for node in nodes] == [1, 1, 2]  # type: ignore[index]


def test_a_name_that_is_there_twice_is_one_argument_in_either_order(graph: Graph) -> None:
    x, y = inputs(graph, "xy")
    gate_x, gate_y = (graph.call_function(aten.sigmoid.default, (each,)) for each in (x, y))
    pattern = CallPattern(MUL, Capture("x"), CallPattern(aten.sigmoid.default, Capture("x")), swaps=True)
    both = [graph.call_function(MUL, pair) for pair in ((x, gate_x), (gate_x, x))]
    others = [graph.call_function(MUL, pair) for pair in ((x, gate_y), (gate_x, gate_x), (x, x))]
    assert all(pattern.match(node) for node in both) and not any(pattern.match(node) for node in others)
    plain = CallPattern(MUL, Capture("x"), CallPattern(aten.sigmoid.default, Capture("x")))
    assert [plain.match(node) is not None for node in both] == [True, False]


def test_alone_asks_for_readers_outside_of_the_match(graph: Graph) -> None:
    a, b, c = inputs(graph, "abc")
    inner = graph.call_function(MM, (a, b))
    outer = graph.call_function(MM, (inner, c))
    square = graph.call_function(MM, (inner, inner))
    pattern = CallPattern(MM, CallPattern(MM, Capture(), Capture(), alone=True), Capture("c"))
    assert pattern.match(outer) is None  # `square` reads `inner` too
    graph.erase_node(square)
    assert pattern.match(outer)
    graph.erase_node(outer)
    square = graph.call_function(MM, (inner, inner))
    assert pattern.match(square)  # the match itself reads it twice


def test_conditions_and_several_targets(graph: Graph) -> None:
    x, y = inputs(graph, "xy")
    power = graph.call_function(aten.pow.Tensor_Scalar, (x, 2))
    pattern = CallPattern((aten.pow.Tensor_Scalar, ADD), Capture("x"), Capture("n", when=lambda n: n == 2))
    assert pattern.match(power) and not pattern.match(graph.call_function(ADD, (x, y)))
    assert CallPattern(aten.pow.Tensor_Scalar, Capture(), 2, when=lambda node: node is not power).match(power) is None


def test_true_is_no_one(graph: Graph) -> None:
    (x,) = inputs(graph, "x")
    node = graph.call_function(MUL, (x, 1))
    assert CallPattern(MUL, Capture(), 1).match(node) and not CallPattern(MUL, Capture(), True).match(node)


def test_functions_and_methods_without_a_schema(graph: Graph) -> None:
    (x,) = inputs(graph, "x")
    part = graph.call_function(operator.getitem, (x, 0))
    method = graph.call_method("transpose", (x, 0, 1))
    assert CallPattern(operator.getitem, Capture("x"), 0).match(part)
    assert CallPattern("transpose", Capture("x"), ...).match(method)
    assert not CallPattern("transpose", Capture("x")).match(method)
    keyword = graph.call_function(torch.softmax, (x,), {"dim": -1})
    assert CallPattern(torch.softmax, Capture(), kwargs={"dim": -1}).match(keyword)
    assert not CallPattern(torch.softmax, Capture()).match(keyword)


def test_it_prints_as_it_is_written() -> None:
    pattern = CallPattern((MM, aten.bmm.default), CallPattern("t", Capture("x")), 1, ..., kwargs={"k": 2})
    assert repr(pattern) == "aten.mm.default or aten.bmm.default(t(Capture(name='x', when=None)), 1, k=2, ...)"


def test_swaps_of_one_argument_is_an_error() -> None:
    with pytest.raises(ValueError, match="two arguments"):
        CallPattern(MM, Capture("x"), swaps=True)
