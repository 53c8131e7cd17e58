"""The estimate of a loop against the grain of what it reads, on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import sympy
import torch

from core.schedule.harness import GPU, plan_of
from core.schedule.programs import Writer, call
from litz.ir import Loop, Node
from litz.ir.index import floordiv, mod, to_expr
from litz.schedule import CostModel

BF16 = torch.bfloat16


def us(writer: Writer, output: str) -> float:
    """What the program's last loop is expected to take on an H100."""
    program = writer.program(output)
    loop = program.operations[-1]
    assert isinstance(loop, Loop)
    return CostModel(program, lambda device: GPU).cost(loop).us


def summed_windows(load: Callable[[Writer, object, object], Node]) -> float:
    """The sum over 100,352 rows of 96 columns in 112 pieces; a row is a token of one of 49 windows of 32 images."""
    w = Writer()
    w.input("x", 1568, 64, 96, dtype=BF16)
    w.input("turned", 1568, 96, 64, dtype=BF16)
    w.reduce("y", "sum", (112, 96), (896,), lambda p, c, r: load(w, 896 * p + r, c))
    return us(w, "y")


def place(row: object) -> tuple[object, object]:
    """The window and the token of a row, windows first."""
    ranges: dict = {}
    row = to_expr(row)
    return 49 * floordiv(row, to_expr(3136), ranges) + mod(row, to_expr(49), ranges), mod(
        floordiv(row, to_expr(49), ranges), to_expr(64), ranges
    )


def test_values_without_neighbours_are_a_sector_each() -> None:
    """In memory the neighbours of the keys' gradients are tokens, and the next row is of another window."""
    straight = summed_windows(lambda w, row, c: w.load("x", *place(row), c))
    turned = summed_windows(lambda w, row, c: call("add", w.load("x", *place(row), c), turned_load(w, row, c)))
    whole = 2 * 1568 * 64 * 96 / GPU.usual_bandwidth
    assert straight < 2 * whole + GPU.launch_us
    assert turned > 16 * whole


def turned_load(w: Writer, row: object, c: object) -> Node:
    window, token = place(row)
    return w.load("turned", window, c, token)


def batch_norm_gradient(turned: bool) -> Writer:
    """A value made from one tensor and summed with another over the images and places of a channel; the first has
    channels last if `turned`."""
    w = Writer()
    w.input("a", 32, 256, 784, dtype=BF16)
    w.input("b", *((32, 784, 256) if turned else (32, 256, 784)), dtype=BF16)
    w.pointwise("p", (32, 256, 784), lambda n, c, s: call("exp", w.load("b", *((n, s, c) if turned else (n, c, s)))))
    w.reduce("y", "sum", (256,), (32, 784), lambda c, n, s: call("mul", w.load("p", n, c, s), w.load("a", n, c, s)))
    w.pointwise("z", (32, 256, 784), lambda n, c, s: call("mul", w.load("a", n, c, s), w.load("y", c)))
    return w


def test_rows_are_not_reduced_together_with_a_transposition() -> None:
    """16 rows a program are 16 programs: 387 µs on an H100."""
    plan = plan_of(batch_norm_gradient(turned=True).program("z"), GPU)
    assert [bool(kernel.loop.reduction_ranges) for kernel in plan.kernels] == [False, True]
    plan = plan_of(batch_norm_gradient(turned=False).program("z"), GPU)
    assert len(plan.kernels) == 1


def test_a_size_is_no_variable_that_neighbours_in_memory_lie_along() -> None:
    """A flipped load of a symbolic size is at s0 - 1 - i0: the cost of one ended in KeyError: s0 (s52n:3617)."""
    s0 = sympy.Symbol("s0", integer=True, positive=True)
    w = Writer()
    w.input("x", 7, 30)
    w.pointwise("y", (7, 30), lambda i, j: w.load("x", i, s0 - 1 - to_expr(j)))
    (loop,) = w.program("y").loops
    load, store = loop.accesses
    row = w.program("y").buffers["x"].layout
    assert load.unit_variable(row, loop.extents) is None
    assert store.unit_variable(row, loop.extents) == loop.ranges[-1].var
