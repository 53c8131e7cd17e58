"""Graphs of one element, such as flex_attention's score_mod, as nodes of the loop variables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch.fx.experimental.proxy_tensor import make_fx

from core.lowering.harness import capture
from litz.capture.decompositions import decompositions
from litz.capture.layout_needs import LayoutNeeds
from litz.ir import Loop, Program, Range, Store, TensorRef, build
from litz.ir.index import loop_var, to_expr
from litz.ir.interpret import interpret
from litz.ir.verify import verify
from litz.lower.context import LoweringContext
from litz.lower.view import Computed, View
from litz.target import target_of
from litz_contractions.lowerings.scalar_graph import scalar_graph

SIZES = (2, 3, 5, 7)
CPU = torch.device("cpu")


def lowered(function: Callable[..., Any], *captured: torch.Tensor) -> tuple[Program, list[torch.Tensor]]:
    """A program whose output is the function at every (b, h, q, k), of scores that are its first input."""
    graph = capture(lambda x: x + 1, torch.ones(1))
    ctx = LoweringContext(graph, None, LayoutNeeds().of, target_of)
    ctx.node = graph.nodes[-1]
    inputs = [torch.randn(SIZES), *captured]
    views = []
    for number, tensor in enumerate(inputs):
        buffer = ctx.new_buffer(tensor.shape, tensor.dtype, CPU, tensor.stride(), name=f"x{number}", kind="input")
        views.append(View.whole(buffer))
    with TransformGetItemToIndex():
        examples = [torch.zeros(()), *(torch.zeros((), dtype=torch.int32) for _ in SIZES), *captured]
        module = make_fx(function, decompositions({}), "fake")(*examples)
    variables = tuple(loop_var(n) for n in range(4))
    extents = {var: to_expr(n) for var, n in zip(variables, SIZES)}
    score = Computed(torch.float32, CPU, (), build.load("x0", variables, torch.float32))
    positions = [Computed(torch.int64, CPU, (), build.index(var)) for var in variables]
    (node,) = scalar_graph(ctx, module, [score, *positions, *views[1:]], extents)
    assert node is not None and not ctx.operations
    out = ctx.new_buffer(SIZES, node.dtype, CPU, None, name="out")
    ranges = tuple(Range(var, extents[var]) for var in variables)
    ctx.add(Loop("loop", CPU, ranges, (), (Store("out", variables, node),)))
    names = tuple(f"x{n}" for n in range(len(inputs)))
    program = Program(
        "p", names, ctx.buffers, tuple(ctx.operations), (TensorRef("out", out.layout),), constants=ctx.constants
    )
    verify(program)
    return program, inputs


def check(function: Callable[..., Any], *captured: torch.Tensor) -> Program:
    program, inputs = lowered(function, *captured)
    (ours,) = interpret(program, inputs)
    want = torch.empty(SIZES, dtype=ours.dtype)
    for at in torch.cartesian_prod(*map(torch.arange, SIZES)):
        want[tuple(at)] = function(inputs[0][tuple(at)], *at, *inputs[1:])
    torch.testing.assert_close(ours, want)
    return program


CASES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "nothing": (lambda s, b, h, q, k: s, ()),
    "causal": (lambda s, b, h, q, k: q >= k, ()),
    "soft cap": (lambda s, b, h, q, k: torch.tanh(s / 20) * 20, ()),
    "distance": (lambda s, b, h, q, k: s + (q - k), ()),
    "window": (lambda s, b, h, q, k: (q - k).abs() <= 2, ()),
    "slope of the head": (lambda s, b, h, q, k, x: s + x[h] * (k - q), (torch.randn(3),)),
    "table of distances": (lambda s, b, h, q, k, x: s + x[h, q - k + 6], (torch.randn(3, 11),)),
    "row, then element": (lambda s, b, h, q, k, x: s + x[b][k], (torch.randn(2, 7),)),
    "same document": (lambda s, b, h, q, k, x: x[b, q] == x[b, k], (torch.tensor([[0, 0, 1, 1, 2, 2, 2]] * 2),)),
    "position from data": (lambda s, b, h, q, k, x, y: s * y[x[q]], (torch.tensor([3, 0, -1, 2, 1]), torch.randn(4))),
    "transposed": (lambda s, b, h, q, k, x: s + x[q, h], (torch.randn(3, 5).t(),)),
    "a number": (lambda s, b, h, q, k, x: s * x, (torch.tensor(3.0),)),
    "where": (lambda s, b, h, q, k: torch.where(q >= k, s, float("-inf")), ()),
    "a half": (lambda s, b, h, q, k: s + s.to(torch.bfloat16), ()),
    "true everywhere": (lambda s, b, h, q, k: b.new_ones((), dtype=torch.bool), ()),
    "integer division": (lambda s, b, h, q, k: (q // 3 == k // 3) & (h % 2 == 0), ()),
}


@pytest.mark.parametrize("name", CASES)
def test_scalar_graph(name: str) -> None:
    torch.manual_seed(0)
    function, captured = CASES[name]
    check(function, *captured)


def test_positions_that_the_extents_prove_are_not_checked() -> None:
    program = check(lambda s, b, h, q, k, x, y: s + x[h] + y[q - k + 6], torch.randn(3), torch.randn(11))
    (loop,) = program.operations
    assert isinstance(loop, Loop)
    assert not any(node.op in ("bounded", "where") for node in loop.nodes)
    assert [load.indirect for load in loop.loads if load.buffer == "x1"] == [()]


def test_positions_that_nothing_proves_are_checked() -> None:
    program, inputs = lowered(lambda s, b, h, q, k, x: s + x[q], torch.randn(4))
    with pytest.raises(IndexError):
        interpret(program, inputs)


REFUSED: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "a sum": (lambda s, b, h, q, k, x: s + x.sum(), (torch.randn(3),)),
    "a product": (lambda s, b, h, q, k, x: s + (x @ x)[h, h], (torch.randn(3, 3),)),
    "random": (lambda s, b, h, q, k: s + torch.rand(()), ()),
    "an output of many": (lambda s, b, h, q, k, x: s + x, (torch.randn(3),)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_stay_scalar_is_refused(name: str) -> None:
    function, captured = REFUSED[name]
    with pytest.raises(NotImplementedError):
        lowered(function, *captured)
