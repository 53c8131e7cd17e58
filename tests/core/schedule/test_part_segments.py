"""Loops over concatenations whose segments get programs of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from core.schedule.harness import CPU, GPU, OPTIONS, check, plan_of
from core.schedule.programs import Writer, call
from core.schedule.test_join_segments import before, joined, part
from litz.ir import Node
from litz.schedule import Kernel, make_schedule
from litz.schedule.segments import parted_segments
from litz_plugins import Decision, Gate, Target, Vetoes
from support.own_plugins import passes, prepare

ROWS = 4096


def costly(value: Node) -> Node:
    """What takes longer than its memory."""
    for op in ("tanh", "erf", "sin", "cos"):
        value = call(op, value)
    return value


def sides(widths: tuple[int, ...] = (64, 64, 64), rows: int = ROWS) -> Writer:
    """A costly function of each input, side by side."""
    w, of = Writer(), sum(widths)
    starts = [sum(widths[:n]) for n in range(len(widths))]
    for n, width in enumerate(widths):
        w.input(f"x{n}", rows, width)
        w.pointwise(f"f{n}", (rows, width), lambda i, j, n=n: costly(w.load(f"x{n}", i, j)))

    def element(i: Any, j: Any) -> Node:
        parts = [part(w, f"f{n}", i, j, start, width, of) for n, (start, width) in enumerate(zip(starts, widths))]
        result = parts[-1]
        for n in reversed(range(len(parts) - 1)):
            result = call("where", before(j, starts[n + 1]), parts[n], result)
        return result

    w.pointwise("y", (rows, of), element)
    return w


def kernel_of(w: Writer, *outputs: str) -> Kernel:
    plan = check(w.program(*outputs), w.args(), GPU)
    (kernel,) = (kernel for kernel in plan.kernels if outputs[0] in kernel.writes)
    return kernel


@pytest.mark.parametrize("widths", [(64, 64, 64), (32, 96), (16, 17, 40, 64)], ids=str)
def test_each_segment_computes_its_own(widths: tuple[int, ...]) -> None:
    kernel = kernel_of(sides(widths), "y")
    assert [int(each.loop.ranges[-1].size) for each in kernel.parts] == list(widths)
    for n, each in enumerate(kernel.parts):
        assert each.loop.reads == (f"x{n}",) and each.loop.writes == ("y",)
        assert sum(node.op == "erf" for node in each.loop.nodes) == 1
        assert not any(load.mask for load in each.loop.loads)
    assert len({loop.name for loop in kernel.loops}) == len(widths)


def test_a_processor_has_loops_of_its_own_for_them() -> None:
    """`litz.targets.cpp.segments` makes them."""
    (kernel,) = check(sides(rows=40).program("y"), sides(rows=40).args(), CPU).kernels
    assert not kernel.beside


def test_sums_over_rows_and_what_finishes_them() -> None:
    w = sides(rows=20480)
    w.reduce("bias", "sum", (192,), (20480,), lambda j, r: w.load("y", r, j))
    w.input("z", 20480, 70)
    w.reduce("zs", "sum", (70,), (20480,), lambda j, r: w.load("z", r, j))  # `finish` is for two kernels or more
    kernel = kernel_of(w, "y", "bias", "zs")
    assert [len(each.finish) for each in kernel.parts] == [1, 1, 1]
    assert [int(each.finish[0].ranges[-1].size) for each in kernel.parts] == [64, 64, 64]
    assert all(each.loop.is_reduction for each in kernel.parts)


def test_segments_of_a_dimension_that_others_were_made_of() -> None:
    """`stack(...)` as one dimension: whose part an element is hangs on two variables."""
    w = sides((32, 32, 32), rows=96)

    def element(n: Any, i: Any, j: Any) -> Node:
        return w.load("y", i, 32 * n + j)

    w.pointwise("stacked", (3, 96, 32), element)
    kernel = kernel_of(w, "stacked")
    assert len(kernel.parts) == 3 and all(int(each.loop.ranges[0].size) == 1 for each in kernel.parts)


def test_segments_that_are_sums_over_each_other_stay() -> None:
    """A sum over the segments needs them all."""
    w = sides(rows=512)
    w.reduce("rows", "sum", (512,), (192,), lambda i, r: w.load("y", i, r))
    plan = check(w.program("y", "rows"), w.args(), GPU)
    assert all(not kernel.beside for kernel in plan.kernels if "rows" in kernel.writes)


def test_copies_and_short_segments_stay() -> None:
    w = Writer()
    for name in ("a", "b"):
        w.input(name, ROWS, 64)
    w.pointwise("y", (ROWS, 128), joined(w, ("a", "b"), 64))
    assert not kernel_of(w, "y").beside  # memory takes as long either way
    assert not kernel_of(sides((15, 15)), "y").beside  # less than a line of memory
    assert not kernel_of(sides((16,) * 9), "y").beside  # more than a launch should have


def test_a_loop_that_writes_what_it_reads_stays() -> None:
    program = prepare(sides(rows=8).program("y"), OPTIONS, lambda device: GPU)
    (loop,) = program.loops
    (store,) = loop.stores
    assert list(parted_segments(loop, program, Target("cpu")))
    assert not list(parted_segments(replace(loop, stores=(replace(store, buffer="x0"),)), program, Target("cpu")))


def test_segments_without_stores_stay() -> None:
    program = prepare(sides(rows=8).program("y"), OPTIONS, lambda device: GPU)
    (loop,) = program.loops
    (store,) = loop.stores
    some = replace(store, mask=before(loop.ranges[-1].var, 64))
    assert not list(parted_segments(replace(loop, stores=(some,)), program, Target("cpu")))


def test_the_decision_is_on_record_and_may_be_vetoed() -> None:
    program, decisions = sides().program("y"), list[Decision]()
    (kernel,) = plan_of(program, GPU, decisions=decisions).kernels
    (decision,) = (each for each in decisions if each.chosen == "3 segments by programs of their own")
    assert dict(decision.considered)["apart"] < dict(decision.considered)["one loop"]
    vetoes = Vetoes(frozenset({decision.key}))
    prepared, ordered = prepare(program, OPTIONS, lambda device: GPU), passes("schedule")
    left = make_schedule(
        prepared, target_of=lambda device: GPU, options=OPTIONS, passes=ordered, gate=Gate("g", vetoes)
    )
    assert [len(each.parts) for each in (kernel, *left.kernels)] == [3, 1], decision.key
