"""Loops over concatenations: the same position of every segment in one iteration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from core.schedule.harness import CPU, GPU, OPTIONS, check, plan_of
from core.schedule.programs import Writer, call
from litz.ir import Layout, Node, build
from litz.ir.index import loop_var, to_expr
from litz.schedule import Kernel, make_schedule
from litz.schedule.segments import joined_segments
from litz_plugins import Decision, Gate, Target, Vetoes
from support.own_plugins import passes, prepare

ROWS = 20480
"""So many that their sum is split."""


def before(position: Any, end: int) -> Node:
    return call("lt", build.index(to_expr(position)), end)


def behind(position: Any, start: int) -> Node:
    return call("ge", build.index(to_expr(position)), start)


def part(w: Writer, name: str, row: Any, position: Any, start: int, size: int, of: int) -> Node:
    """An element of a part of a concatenation, masked as the lowering of `cat` does."""
    low = behind(position, start) if start else None
    high = before(position, start + size) if start + size < of else None
    return w.load(name, row, position - start, mask=build.logical_and(low, high))


def joined(w: Writer, names: tuple[str, ...], width: int) -> Callable[[Any, Any], Node]:
    """The element of a concatenation of buffers of as many columns."""
    of = width * len(names)

    def element(row: Any, position: Any) -> Node:
        values = [part(w, name, row, position, n * width, width, of) for n, name in enumerate(names)]
        result = values[-1]
        for n in reversed(range(len(names) - 1)):
            result = call("where", before(position, (n + 1) * width), values[n], result)
        return result

    return element


def gate(width: int = 32, rows: int = 40) -> Writer:
    """The gradients of both operands of `h * g.sigmoid()`, side by side."""
    w = Writer()
    for name in ("dy", "h", "g"):
        w.input(name, rows, width)
    w.pointwise("s", (rows, width), lambda i, j: call("sigmoid", w.load("g", i, j)))
    w.pointwise("dh", (rows, width), lambda i, j: call("mul", w.load("dy", i, j), w.load("s", i, j)))
    turn = lambda i, j: call("mul", w.load("s", i, j), call("sub", 1.0, w.load("s", i, j)))
    w.pointwise(
        "dg", (rows, width), lambda i, j: call("mul", call("mul", w.load("dy", i, j), w.load("h", i, j)), turn(i, j))
    )
    w.pointwise("both", (rows, 2 * width), joined(w, ("dh", "dg"), width))
    return w


@pytest.mark.parametrize("target", [CPU, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize("width", [16, 17, 32])
def test_gradients_side_by_side_are_one_loop_that_reads_once(target: Target, width: int) -> None:
    w = gate(width)
    (kernel,) = check(w.program("both"), w.args(), target).kernels
    assert [store.buffer for store in kernel.loop.stores] == ["both", "both"]
    assert len(kernel.loop.loads) == 3 and not any(load.mask for load in kernel.loop.loads)
    assert sum(node.op == "sigmoid" for node in kernel.loop.nodes) == 1


def test_a_value_kept_for_two_readers_goes_into_the_one_that_they_become() -> None:
    """Computed twice it would take longer than in a buffer; in the joined loop it is computed once."""
    w = Writer()
    w.input("g", 400, 32)
    w.pointwise("s", (400, 32), lambda i, j: call("erf", call("exp", call("erf", call("tanh", w.load("g", i, j))))))
    w.pointwise("a", (400, 32), lambda i, j: call("add", w.load("s", i, j), 1.0))
    w.pointwise("b", (400, 32), lambda i, j: call("exp", w.load("s", i, j)))
    w.pointwise("both", (400, 64), joined(w, ("a", "b"), 32))
    (kernel,) = plan_of(w.program("both"), CPU).kernels
    assert len(kernel.loop.stores) == 2 and sum(node.op == "tanh" for node in kernel.loop.nodes) == 1
    check(w.program("both"), w.args(), CPU)


def rotated(width: int = 64) -> Writer:
    """`x * cos + cat(-x2, x1) * sin`: a position of one half needs both."""
    half, w = width // 2, Writer()
    for name in ("x", "cos", "sin"):
        w.input(name, 30, width)

    def turned(i: Any, j: Any) -> Node:
        first = w.load("x", i, j + half, mask=before(j, half))
        second = w.load("x", i, j - half, mask=behind(j, half))
        return call("where", before(j, half), call("neg", first), second)

    w.pointwise(
        "y",
        (30, width),
        lambda i, j: call(
            "add", call("mul", w.load("x", i, j), w.load("cos", i, j)), call("mul", turned(i, j), w.load("sin", i, j))
        ),
    )
    return w


def test_a_rotation_reads_each_half_once() -> None:
    w = rotated()
    (kernel,) = check(w.program("y"), w.args(), GPU).kernels
    assert len(kernel.loop.stores) == 2 and len(kernel.loop.loads) == 6


def test_as_many_parts_as_there_are() -> None:
    """As the gradients of an LSTM's gates."""
    w, names = Writer(), ("a", "b", "c", "d")
    for name in ("dy", *names):
        w.input(name, 20, 24)
    for name in names:
        w.pointwise(f"d{name}", (20, 24), lambda i, j, n=name: call("mul", w.load("dy", i, j), w.load(n, i, j)))
    w.pointwise("all", (20, 96), joined(w, tuple(f"d{name}" for name in names), 24))
    (kernel,) = check(w.program("all"), w.args(), GPU).kernels
    assert len(kernel.loop.stores) == 4 and len(kernel.loop.loads) == 5


def test_sums_over_rows_are_joined_with_what_finishes_them() -> None:
    """The gradient of a bias beside that of what it is added to."""
    w = gate(rows=ROWS)
    w.reduce("bias", "sum", (64,), (ROWS,), lambda j, r: w.load("both", r, j))
    w.reduce("top", "max", (64,), (ROWS,), lambda j, r: w.load("both", r, j))
    w.input("z", ROWS, 70)
    w.reduce("zs", "sum", (70,), (ROWS,), lambda j, r: w.load("z", r, j))  # `finish` is for two kernels or more
    alone = replace(GPU, abilities=GPU.abilities - {"beside"})  # else each segment gets programs of its own
    schedule = check(w.program("both", "bias", "top", "zs"), w.args(), alone)
    found = [kernel for kernel in schedule.kernels if "both" in kernel.writes]
    (kernel,) = found
    assert kernel.finish and all(len(loop.stores) == 2 for loop in kernel.finish)
    assert kernel.loop.is_reduction and len(kernel.loop.loads) == 3


# ------------------------------------------------------------------------------------------------------- not joined


def kernels_of(w: Writer, *outputs: str) -> list[Kernel]:
    return check(w.program(*outputs), w.args(), GPU).kernels


def test_parts_of_other_sizes_are_chosen_between() -> None:
    w = Writer()
    w.input("a", 20, 32)
    w.input("b", 20, 48)

    def element(i: Any, j: Any) -> Node:
        return call("where", before(j, 32), part(w, "a", i, j, 0, 32, 80), part(w, "b", i, j, 32, 48, 80))

    w.pointwise("y", (20, 80), element)
    (kernel,) = kernels_of(w, "y")
    assert len(kernel.loop.stores) == 1


def test_parts_that_share_nothing_are_chosen_between() -> None:
    w = Writer()
    w.input("a", 20, 32)
    w.input("b", 20, 32)
    w.pointwise("y", (20, 64), joined(w, ("a", "b"), 32))
    (kernel,) = kernels_of(w, "y")
    assert len(kernel.loop.stores) == 1


def test_short_parts_are_chosen_between() -> None:
    """Less than a line of memory: 15 numbers of 4 bytes."""
    w = gate(width=15)
    assert all(len(kernel.loop.stores) == len(kernel.loop.writes) for kernel in kernels_of(w, "both"))


def test_parts_that_are_masked_otherwise_too_are_chosen_between() -> None:
    """A step's row in the tensor of all steps: most points would compute every part for nothing."""
    w = gate()
    last = call("eq", build.index(loop_var(1)), 7)

    def element(i: Any, n: Any, j: Any) -> Node:
        value = w.load("both", i, j, mask=last)
        return call("where", last, value, build.const(0.0, value.dtype))

    w.pointwise("steps", (40, 8, 64), element)
    assert all(len(kernel.loop.stores) == len(kernel.loop.writes) for kernel in kernels_of(w, "steps"))


def test_what_is_the_same_for_all_parts_is_not_written_twice() -> None:
    """A sum over the range is stored at no position of it."""
    program = rotated().program("y")
    (loop,) = program.loops
    (store,) = loop.stores
    once = replace(store, buffer="once", index=(store.index[0],))
    program.buffers["once"] = replace(program.buffers["y"], name="once", layout=Layout.contiguous((30,)))
    assert list(joined_segments(loop, program, Target("cpu")))
    assert not list(joined_segments(replace(loop, stores=(store, once)), program, Target("cpu")))


def test_a_loop_that_writes_what_it_reads_stays() -> None:
    program = rotated().program("y")
    (loop,) = program.loops
    assert not list(
        joined_segments(replace(loop, stores=(replace(loop.stores[0], buffer="x"),)), program, Target("cpu"))
    )


def test_the_decision_is_on_record_and_may_be_vetoed() -> None:
    program, decisions = gate().program("both"), list[Decision]()
    (kernel,) = plan_of(program, GPU, decisions=decisions).kernels
    (decision,) = (each for each in decisions if each.chosen == "2 segments at once")
    assert dict(decision.considered)["at once"] < dict(decision.considered)["each"]
    assert "3 loads, in place of " in decision.reason
    vetoes = Vetoes(frozenset({decision.key}))
    prepared, ordered = prepare(program, OPTIONS, lambda device: GPU), passes("schedule")
    left = make_schedule(
        prepared, target_of=lambda device: GPU, options=OPTIONS, passes=ordered, gate=Gate("g", vetoes)
    )
    assert [len(each.loop.stores) for each in (kernel, *left.kernels)] == [2, 1], decision.key
