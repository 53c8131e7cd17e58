"""Split reductions whose partial results are combined in the launch that made them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from core.schedule.harness import CPU, GPU, OPTIONS, check, plan_of
from core.schedule.programs import Writer, call
from litz.ir import Loop
from litz.schedule import IllegalSchedule, Kernel, Schedule, check_schedule
from litz.schedule.finish import why_not_finish
from litz_passes.schedule.one_launch import as_finish

EAGER_GPU = replace(GPU, launch_us=0.01)
"""One that splits small reductions too."""


def norm(w: Writer, x: str, columns: int, rows: int = 1280) -> None:
    """A batch norm with running statistics: partial results, those combined, what they are used for."""
    w.reduce(f"{x}_sum", "sum", (columns,), (rows,), lambda j, r: w.load(x, r, j))
    w.reduce(f"{x}_top", "max", (columns,), (rows,), lambda j, r: w.load(x, r, j))
    w.pointwise(
        f"{x}_out", (rows, columns), lambda i, j: call("sub", w.load(x, i, j), call("div", w.load(f"{x}_sum", j), 5.0))
    )


def two_norms() -> Writer:
    w = Writer()
    w.input("a", 1280, 40)
    w.input("b", 1280, 70)
    norm(w, "a", 40)
    norm(w, "b", 70)
    return w


def finishing(schedule: Schedule) -> list[Kernel]:
    """Kernels with a finish, those that share a launch too."""
    return [part for part in parts(schedule) if part.finish]


def parts(schedule: Schedule) -> list[Kernel]:
    return [part for kernel in schedule.kernels for part in kernel.parts]


def test_the_kernel_of_partial_results_combines_them():
    w = two_norms()
    schedule = check(w.program("a_out", "a_top", "b_out", "b_top"), w.args(), EAGER_GPU)
    kernels = finishing(schedule)
    assert len(kernels) == 2 and len(parts(schedule)) == 4
    for kernel in kernels:
        partial = set(kernel.loop.writes)
        assert partial and not partial & set(kernel.reads), "what a kernel reads of its own is no input"
        assert partial <= set(kernel.writes)
        # The sum and the maximum are combined each by a loop of its own.
        assert len(kernel.finish) == 2
    assert str(schedule).count("then, by the last of the programs") == 4


def test_partial_results_live_for_their_kernel_only():
    w = two_norms()
    schedule = plan_of(w.program("a_out", "b_out"), EAGER_GPU)
    for number, step in enumerate(schedule.steps):
        for name in step.loop.writes if isinstance(step, Kernel) and step.finish else ():
            assert name in schedule.memory.allocate[number] and name in schedule.memory.free[number]


def test_one_alone_is_not_worth_the_counters():
    w = Writer()
    w.input("a", 1280, 40)
    norm(w, "a", 40)
    assert not finishing(plan_of(w.program("a_out"), EAGER_GPU))


def test_a_long_kernel_does_not_combine():
    """All its programs would have the registers that the combining loop needs, and only one launch is saved."""
    w = Writer()
    for x in "ab":
        w.input(x, 1 << 21, 64)
        norm(w, x, 64, 1 << 21)
    schedule = plan_of(w.program("a_out", "b_out"), EAGER_GPU)
    assert len(schedule.kernels) > 4 and not finishing(schedule)


def test_not_where_the_last_program_would_take_longer_than_the_others():
    """100 maxima of 20 values each, for each image: one program would walk through the maxima."""
    w = Writer()
    for x in "ab":
        w.input(x, 8, 100, 20, 512)
        w.reduce(f"{x}_part", "max", (8, 100, 512), (20,), lambda n, i, j, r, x=x: w.load(x, n, i, r, j))
        w.reduce(f"{x}_out", "sum", (8, 512), (100,), lambda n, j, r, x=x: w.load(f"{x}_part", n, r, j))
    schedule = plan_of(w.program("a_out", "a_part", "b_out", "b_part"), GPU)
    assert len(parts(schedule)) > 2 and not finishing(schedule)


def test_not_on_a_cpu_and_not_without_fusion():
    program = two_norms().program("a_out", "b_out")
    assert not finishing(plan_of(program, CPU))
    unfused = type(OPTIONS)(fusion=False, memory_planning=True)
    assert not finishing(plan_of(program, EAGER_GPU, unfused))


@pytest.mark.parametrize("between", [False, True])
def test_not_with_a_call_between_the_two(between):
    """What combines needs the result of a call that needs the partial results."""
    w = Writer()
    for x, columns in (("a", 10), ("b", 14)):
        w.input(x, 256, columns)
        w.reduce(f"{x}_part", "sum", (4, columns), (64,), lambda i, j, r, x=x: w.load(x, 64 * i + r, j))
        part = w.call(f"{x}_more", torch.neg, f"{x}_part") if between else f"{x}_part"
        values = lambda j, r, x=x, part=part: call("mul", w.load(part, r, j), w.load(f"{x}_part", r, j))
        w.reduce(f"{x}_out", "sum", (columns,), (4,), values)
    schedule = check(w.program("a_out", "b_out"), w.args(), EAGER_GPU, element_wise=not between)
    assert len(finishing(schedule)) == (0 if between else 2)


def pair() -> tuple[Loop, Loop]:
    """A loop of partial results, and one that finishes it."""
    schedule = plan_of(two_norms().program("a_out", "a_top", "b_out"), EAGER_GPU)
    kernel = finishing(schedule)[0]
    return kernel.loop, kernel.finish[0]


def test_says_why_not():
    first, finish = pair()
    assert why_not_finish(first, [], finish, {}) is None
    (column,) = finish.ranges
    wider = replace(finish, ranges=(replace(column, size=column.size + 1),))
    assert why_not_finish(first, [], wider, {}) == "has other outputs"
    assert (
        why_not_finish(first, [], replace(finish, reduction_ranges=()), {}) == "is not a reduction of partial results"
    )
    elsewhere = replace(finish, device=torch.device("meta"))
    assert why_not_finish(first, [], elsewhere, {}) == "is on another device"
    read = first.reads[0]
    over = replace(finish, stores=tuple(replace(store, buffer=read) for store in finish.stores))
    assert "other programs" in str(why_not_finish(first, [], over, {}))
    alias = {finish.writes[0]: "base", read: "base"}
    assert "other programs" in str(why_not_finish(first, [], finish, alias))
    assert "other programs or threads" in str(why_not_finish(first, [finish], finish, {}))
    other = replace(first, stores=tuple(replace(store, buffer=f"{store.buffer}_") for store in first.stores))
    assert why_not_finish(other, [], finish, {}) == "reads no result of the first kernel"


@pytest.mark.parametrize("rows", [64, 1])
def test_two_with_different_outputs_are_not_in_one_launch(rows):
    """The whole sum of what is stored, and the sum of each row, of one loop: their last programs are not the same."""
    w = Writer()
    w.input("x", rows, 100_000)
    for name, kind in (("all", "sum"), ("tops", "max")):
        shape = () if name == "all" else (rows,)
        lengths = (rows, 100_000) if name == "all" else (100_000,)
        w.reduce(name, kind, shape, lengths, lambda *at: w.load("x", *at))
    plan = plan_of(w.program("all", "tops"), GPU)
    for kernel in finishing(plan):
        assert len({frozenset(loop.ranges) for loop in kernel.finish}) == 1


def test_other_positions_do_not_fit():
    first, finish = pair()
    assert as_finish(first, finish) == finish
    swapped = replace(first, stores=tuple(replace(s, index=s.index[::-1]) for s in first.stores))
    assert as_finish(swapped, finish) is None
    shifted = replace(first, stores=tuple(replace(s, index=(s.index[0], s.index[1] + 1)) for s in first.stores))
    assert as_finish(shifted, finish) is None


def test_a_wrong_finish_is_found():
    w = two_norms()
    schedule = plan_of(w.program("a_out", "b_out"), EAGER_GPU)
    check_schedule(schedule)
    kernel = next(step for step in schedule.kernels if step.finish)
    (column,) = kernel.finish[0].ranges
    wrong = replace(kernel.finish[0], ranges=(replace(column, size=column.size + 1),))
    steps = tuple(replace(kernel, finish=(wrong,)) if step is kernel else step for step in schedule.steps)
    with pytest.raises(IllegalSchedule, match=r"its finish .* has other outputs"):
        check_schedule(replace(schedule, steps=steps))


def test_neighbours_in_memory_are_no_pieces():
    """A short sum over rows, and the norm of each row of what it gives: as pieces, a program would read one column."""
    w = Writer()
    for x, rows in (("a", 512), ("b", 520)):
        w.input(x, rows, 4, 600)
        w.reduce(f"{x}_sum", "sum", (rows, 600), (4,), lambda i, j, r, x=x: w.load(x, i, r, j))
        w.reduce(f"{x}_norm", "sum", (rows,), (600,), lambda i, r, x=x: w.load(f"{x}_sum", i, r))
    schedule = check(w.program("a_sum", "a_norm", "b_sum", "b_norm"), w.args(), GPU)
    assert not finishing(schedule)
