"""Scatters that add many values at few positions, into several copies of the positions."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from core.schedule.harness import CPU, GPU, check, plan_of
from core.schedule.programs import Writer, call
from litz.execution import ExecutionPlan
from litz.ir import Store, build
from litz.ir.index import loop_var, placeholder

i0, i1, i2 = (loop_var(n) for n in range(3))


def table_gradient(rows: int, filled: float = 0.0, size: int = 256) -> Writer:
    """The gradient of `rows` biases of 4 heads, of which each pair of positions takes one: MPNet's, T5's."""
    w = Writer()
    w.input("ids", size, size, dtype=torch.int64)
    w.input("x", 4, size, size)
    w.pointwise("t", (rows, 4), lambda i, j: build.const(filled, torch.float32))
    row = build.bounded(w.load("ids", i0, i1), rows)
    w.loop((size, size, 4), (), Store("t", (placeholder(0), i2), w.load("x", i2, i0, i1), (row,), "add"))
    w.pointwise("y", (rows, 4), lambda i, j: call("mul", w.load("t", i, j), 2.0))
    return w


def token_types(tokens: int, width: int) -> Writer:
    """The gradient of two rows, neighbours along which lie beside each other."""
    w = Writer()
    w.input("ids", tokens, dtype=torch.int64)
    w.input("x", tokens, width)
    w.pointwise("t", (3, width), lambda i, j: build.const(0.0, torch.float32))
    row = build.bounded(w.load("ids", i0), 3)
    w.loop((tokens, width), (), Store("t", (placeholder(0), i1), w.load("x", i0, i1), (row,), "add"))
    return w


def counts(values: int, classes: int) -> Writer:
    w = Writer()
    w.input("ids", values, dtype=torch.int64)
    w.pointwise("t", (classes,), lambda i: build.const(0, torch.int64))
    row = build.bounded(w.load("ids", i0), classes)
    w.loop((values,), (), Store("t", (placeholder(0),), build.const(1, torch.int64), (row,), "add"))
    return w


def copies_in(plan: ExecutionPlan) -> list[tuple[int, ...]]:
    found = (buffer for name, buffer in plan.program.buffers.items() if name.endswith("_copies"))
    return [tuple(int(size) for size in buffer.layout.size) for buffer in found]


@pytest.mark.parametrize(
    ("writer", "output", "copies"),
    [
        (table_gradient(8), "y", (8, 4, 32)),
        (token_types(2**15, 8), "t", (32, 3, 8)),
        (counts(2**18, 8), "t", (8, 32)),
    ],
    ids=["one place for neighbours", "neighbours beside each other", "integers"],
)
def test_many_values_at_few_positions_are_spread(writer: Writer, output: str, copies: tuple[int, ...]) -> None:
    """The gradient of MPNet's biases took 1134 us on an H200, as additions at one address wait for each other."""
    args = [arg if arg.dtype == torch.int64 else (16 * arg).round() for arg in writer.args()]  # sums are exact
    assert copies_in(check(writer.program(output), args, GPU)) == [copies]


def lanes_apart(loop_index: Any, each: int) -> int:
    """How many of 32 lanes with so many elements each have a copy of their own at a time."""
    return len({int(loop_index.subs({i0: 5, i1: each * lane + 1})) for lane in range(32)})


def test_lanes_of_a_warp_get_different_copies() -> None:
    plan = plan_of(table_gradient(8).program("y"), GPU)
    (index,) = {s.index[-1] for k in plan.kernels for s in k.loop.stores if s.mode == "add"}
    assert lanes_apart(index, 8) == 32
    assert min(lanes_apart(index, each) for each in (1, 2, 4, 16)) >= 8


def read_in_between() -> Writer:
    w = table_gradient(8)
    w.call("seen", torch.ops.aten.sin.default, "t", effect=True)
    w.operations.insert(1, w.operations.pop())
    return w


@pytest.mark.parametrize(
    "writer",
    [table_gradient(256), table_gradient(8, size=32), table_gradient(8, filled=1.0), read_in_between()],
    ids=["many positions", "few values", "no zeros", "read before"],
)
def test_others_are_not(writer: Writer) -> None:
    assert not copies_in(plan_of(writer.program("y"), GPU))


def test_a_cpu_adds_in_order() -> None:
    assert not copies_in(plan_of(table_gradient(8).program("y"), CPU))
