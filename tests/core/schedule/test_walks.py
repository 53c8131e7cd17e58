"""How often a long row is read, and what fuses because of that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.schedule.harness import CPU, GPU, plan_of
from core.schedule.programs import Writer, call, softmax
from litz.ir import Loop
from litz.ir.stages import walks_loading

ROWS = 2670
FIT, SHARED, FAR = 8_192, 50_257, 4_000_000
"""float32 columns: a program keeps the row, the cache keeps the rows of all units in part, or not at all."""


def loads_of_x(loop: Loop, one_walk: bool) -> int:
    walks = walks_loading(loop, one_walk)
    (found,) = {walks[load] for load in loop.loads if load.buffer == "x"}
    return found


@pytest.mark.parametrize("columns", [FIT, SHARED])
def test_a_softmax_is_one_kernel_and_reads_its_row_once_a_walk(columns: int) -> None:
    (kernel,) = plan_of(softmax(ROWS, columns).program("y"), GPU).kernels
    assert loads_of_x(kernel.loop, one_walk=False) == 3
    assert loads_of_x(kernel.loop, one_walk=True) == 2


def test_rows_that_no_cache_keeps_are_read_by_two_kernels() -> None:
    kernels = plan_of(softmax(ROWS, FAR).program("y"), GPU).kernels
    assert [kernel.loop.is_reduction for kernel in kernels] == [True, False]
    assert loads_of_x(kernels[0].loop, one_walk=True) == 1


def test_without_the_ability_the_sum_has_a_walk_of_its_own() -> None:
    without = replace(GPU, abilities=GPU.abilities - {"one_walk"})
    assert len(plan_of(softmax(ROWS, FAR).program("y"), without).kernels) == 3
    assert "one_walk" not in CPU.abilities


def test_what_a_later_walk_alone_needs_is_read_once() -> None:
    w = Writer()
    w.input("x", 64, 4096)
    w.input("z", 64, 4096)
    w.reduce("top", "max", (64,), (4096,), lambda i, r: w.load("x", i, r))
    w.pointwise("y", (64, 4096), lambda i, j: call("add", w.load("z", i, j), w.load("top", i)))
    (kernel,) = plan_of(w.program("y"), GPU).kernels
    assert set(walks_loading(kernel.loop).values()) == {1}
