"""Calls that a graph pass puts in are traced once for all equal ones, and apart where anything differs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from core.lowering.harness import capture
from litz.capture import torch_api
from litz.capture.graph import Graph
from litz.capture.passes.decompose import decompose

aten = torch.ops.aten


def taken_apart(graph: Graph, op: Any, rule: Callable[..., Any]) -> tuple[Graph, int]:
    """The graph with the calls of `op` in pieces, and how many calls the rule was asked for."""
    asked = []

    def counted(*args: Any, **kwargs: Any) -> Any:
        asked.append(args)
        return rule(*args, **kwargs)

    return decompose(graph, [node for node in graph.nodes if node.target is op], {op: counted}), len(asked)


ADD = aten.add.Tensor
X = torch.randn(6, 8).index_fill(0, torch.tensor(2), -0.0)


def subtracted(x: Any, number: Any) -> Any:
    return x - (-number)


def both(x: Any, y: Any, first: Any = 0.5, second: Any = 0.5) -> Any:
    return (x + first).neg(), (y + second).sin()


def test_equal_calls_are_traced_once_and_read_their_own_inputs() -> None:
    function, inputs = (
        lambda *xs: [both(x, y) for x, y in zip(xs[1:], xs, strict=False)],
        [X + number for number in range(4)],
    )
    found, asked = taken_apart(capture(function, *inputs), ADD, subtracted)
    assert asked == 1 and not found.module.graph.find_nodes(op="call_function", target=ADD)
    torch.testing.assert_close(found.module(*inputs), [item for pair in function(*inputs) for item in pair])
    names = [node.name for node in found.nodes]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    "y",
    [X.double(), X[:, :4], X.t().contiguous().t(), X[:1], X[:, :0]],
    ids=["dtype", "strides", "order", "one row", "nothing"],
)
def test_other_tensors_are_traced_apart(y: torch.Tensor) -> None:
    found, asked = taken_apart(capture(both, X, y), ADD, subtracted)
    assert asked == 2
    torch.testing.assert_close(found.module(X, y), list(both(X, y)))


@pytest.mark.parametrize("first, second, count", [(0.5, 0.5, 1), (0.5, 0.25, 2), (0.0, -0.0, 2), (1, 1.0, 2)])
def test_other_constants_are_traced_apart(first: float, second: float, count: int) -> None:
    y = -X
    found, asked = taken_apart(capture(lambda x, y: both(x, y, first, second), X, y), ADD, subtracted)
    assert asked == count
    for got, want in zip(found.module(X, y), both(X, y, first, second), strict=True):
        assert torch.equal(got, want) and torch.equal(got.signbit(), want.signbit())


def test_which_inputs_are_one_node_counts() -> None:
    x, y = X, X + 1
    found, asked = taken_apart(capture(lambda x, y: (x * x, x * y, y * x), x, y), aten.mul.Tensor, lambda a, b: a - b)
    assert asked == 2
    torch.testing.assert_close(found.module(x, y), [x - x, x - y, y - x])


def test_sizes_are_compared_as_expressions() -> None:
    x, y, z = torch.randn(6, 8), torch.randn(6, 4), torch.randn(6, 8)
    function = lambda x, y, z: (*both(x, y), *both(x * z, z))
    found, asked = taken_apart(capture(function, x, y, z, dynamic=True), ADD, subtracted)
    assert asked == 2
    torch.testing.assert_close(found.module(x, y, z), list(function(x, y, z)))


def test_a_call_that_stays_is_asked_about_once() -> None:
    graph = capture(both, X, X + 1)
    assert taken_apart(graph, ADD, lambda x, number: NotImplemented) == (graph, 1)


def test_each_call_draws_for_itself() -> None:
    ones = torch.ones(1000)
    graph = capture(both, ones, ones)
    found, asked = taken_apart(graph, ADD, lambda x, number: torch.rand_like(x))
    first, second = found.module(ones, ones)
    assert asked == 1 and not torch.equal(first.neg().sin(), second)


def test_each_call_finds_out_its_own_size() -> None:
    x, y = torch.tensor([1.0, 0.0, 2.0]), torch.tensor([0.0, 0.0, 5.0])
    found, asked = taken_apart(capture(both, x, y), ADD, lambda x, number: x * torch.nonzero(x).shape[0])
    assert asked == 2
    bound = [str(symbol) for node in found.nodes for symbol in node.meta.get("unbacked_bindings", ())]
    assert len(bound) == len(set(bound)) == 2
    torch.testing.assert_close(found.module(x, y), [-2 * x, y.sin()])


def test_nodes_that_share_a_fake_result_are_told_apart() -> None:
    """Pieces that are put in twice do, and so may what a plugin's pass makes: a later trace is of both nodes."""
    x, y = X, X + 1
    function = lambda x, y: (x + 0.5) * (y + 0.5)
    graph, _ = taken_apart(capture(function, x, y), ADD, subtracted)
    found, _ = taken_apart(graph, aten.mul.Tensor, lambda a, b: a / b.reciprocal())
    torch.testing.assert_close(found.module(x, y), [function(x, y)])
    (value,) = (node.meta["val"] for node in graph.nodes if node.target is aten.mul.Tensor)
    module = torch_api.trace(lambda a, b: a - b, [value, value], None, {})
    assert module is not None
    assert torch.equal(module(x, y), x - y)


def test_pieces_keep_where_their_own_call_comes_from() -> None:
    graph = capture(both, X, X + 1)
    for number, node in enumerate(node for node in graph.nodes if node.target is ADD):
        node.meta["stack_trace"] = f"line {number}"
    found, _ = taken_apart(graph, ADD, subtracted)
    lines = [node.meta["stack_trace"] for node in found.nodes if node.target is aten.sub.Tensor]
    assert lines == ["line 0", "line 1"]
