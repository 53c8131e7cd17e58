"""Layouts of temporaries that loops alone use: in the order in which the loops walk."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from core.schedule.harness import CPU, GPU, OPTIONS, check, plan_of
from core.schedule.programs import Writer, call
from litz.ir import Layout, Node, Program
from litz.ir.index import to_expr
from litz_plugins import Decision, Gate, PassContext, Target, Vetoes
from support.own_plugins import passes

BATCH, PLACES, WIDTH = 3, 600, 768


def stream(batch: int = BATCH, places: int = PLACES, width: int = WIDTH) -> Writer:
    """A residual that lies transposed, as eager left it, and is normalized twice along what is not its inner
    dimension."""
    w = Writer()
    w.input("x", batch, places, width)
    w.input("y", batch, places, width)
    size = (batch, places, width)
    w.pointwise("sum", size, lambda b, i, j: call("add", w.load("x", b, i, j), w.load("y", b, i, j)))
    w.reduce("top", "max", size[:2], (width,), lambda b, i, r: w.load("sum", b, i, r))
    w.reduce("low", "min", size[:2], (width,), lambda b, i, r: call("exp", w.load("sum", b, i, r)))
    w.pointwise("out", size, lambda b, i, j: call("div", w.load("sum", b, i, j), w.load("top", b, i)))
    lay(w, "sum", (0, 2, 1))
    return w


def lay(w: Writer, name: str, order: tuple[int, ...]) -> None:
    """Give a buffer the dense layout with these dimensions, the outermost first."""
    layout = Layout.in_order(w.buffers[name].layout.size, order)
    w.buffers[name] = replace(w.buffers[name], layout=layout)


def laid_out(program: Program, target: Target = GPU, gate: Gate | None = None) -> tuple[Program, list[Decision]]:
    """The program after the pass alone."""
    decisions: list[Decision] = []
    (own,) = (each for each in passes("program") if each.name == "lay_out_temporaries")
    context = PassContext(OPTIONS, "program", own.name, note=decisions.append, target_of=lambda device: target)
    return own.run(program, context if gate is None else replace(context, gate=gate)), decisions


@pytest.mark.parametrize("target", [CPU, GPU], ids=["cpu", "gpu"])
def test_a_transposed_stream_lies_as_its_loops_walk(target: Target) -> None:
    w = stream()
    result, (decision,) = laid_out(w.program("top", "low", "out"), target)
    assert result.buffers["sum"].layout.is_contiguous()
    considered = dict(decision.considered)
    assert considered[decision.chosen] < considered["as in eager"] and decision.subject == "layout of sum"
    assert str(result.buffers["out"]) == str(w.buffers["out"]), "what is returned stays"


@pytest.mark.parametrize("target", [CPU, GPU], ids=["cpu", "gpu"])
def test_the_values_are_the_same(target: Target) -> None:
    w = stream(2, 7, 33)
    check(w.program("top", "low", "out"), w.args(), target)


def test_heads_that_are_mixed_lie_apart() -> None:
    """Stored side by side, as a product takes them, where the reader adds the heads up for neighbouring places."""
    w = Writer()
    w.input("x", 8, 4, 4096)
    w.pointwise("heads", (8, 4096, 4), lambda b, i, h: call("exp", w.load("x", b, h, i)))

    def mixed(b: Any, i: Any) -> Node:
        first, *others = (w.load("heads", b, i, h) for h in range(4))
        for other in others:
            first = call("add", first, other)
        return first

    w.pointwise("y", (8, 4096), mixed)
    result, _ = laid_out(w.program("y"))
    assert [int(step) for step in result.buffers["heads"].layout.stride][1] == 1
    check(w.program("y"), w.args(), GPU)


def test_what_loops_walk_along_stays() -> None:
    w = stream()
    w.buffers["sum"] = replace(w.buffers["sum"], layout=Layout.contiguous((BATCH, PLACES, WIDTH)))
    program = w.program("top", "low", "out")
    result, decisions = laid_out(program)
    assert result is program and not decisions


def test_what_somebody_else_sees_stays() -> None:
    """A library call reads the buffer by its strides, and so does whoever gets it."""
    w = stream()
    program = w.program("top", "low", "sum")
    assert laid_out(program)[0] is program
    w.call("copy", torch.ops.aten.clone.default, "sum")
    program = w.program("top", "low", "out", "copy")
    assert laid_out(program)[0] is program


def test_a_layout_with_gaps_stays() -> None:
    w = stream()
    size = w.buffers["sum"].layout.size
    apart = Layout(size, tuple(map(to_expr, (PLACES * WIDTH * 2, 1, 2 * PLACES))))
    w.buffers["sum"] = replace(w.buffers["sum"], layout=apart)
    program = w.program("top", "low", "out")
    assert laid_out(program)[0] is program


def test_a_buffer_that_is_written_twice_stays() -> None:
    w = stream()
    w.store_into("sum", (BATCH, PLACES, WIDTH), lambda b, i, j: w.load("x", b, i, j))
    program = w.program("top", "low", "out")
    assert laid_out(program)[0] is program


def test_single_and_no_elements() -> None:
    for size in ((1, 1, 1), (2, 1, 5), (0, 4, 4), (3, 0, 2)):
        w = stream(*size)
        plan_of(w.program("out"), GPU)


def test_a_veto_keeps_eagers_layout() -> None:
    program = stream().program("top", "low", "out")
    result, (decision,) = laid_out(program, gate=Gate("g", Vetoes(frozenset({"lay_out_temporaries/sum"}))))
    assert result is program and decision.chosen == "as in eager" and "veto" in decision.reason
