"""Small kernels that need nothing of each other, in one launch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from core.schedule.harness import CPU, GPU, OPTIONS, check, passed, plan_of
from core.schedule.programs import Writer, call
from litz.execution import ExecutionPlan
from litz.ir import build
from litz.target import figures_of
from litz_passes.schedule import beside
from litz_plugins import Decision


def apart(*sizes: int, of: str | None = None) -> Writer:
    """Kernels that do not fuse: each over a size of its own, of an input of its own; or all of the input `of`."""
    w = Writer()
    for number, size in enumerate(sizes):
        source = w.input(f"x{number}", size, 8)
        w.reduce(f"y{number}", "sum", (size,), (8,), lambda i, r, source=source: w.load(source, i, r))
    return w


def zeros(w: Writer, name: str, *size: int) -> None:
    w.pointwise(name, size, lambda *at: build.const(0.0, torch.float32))


def launches(plan: ExecutionPlan) -> list[int]:
    """How many kernels each launch has."""
    return [len(kernel.parts) for kernel in plan.kernels]


APART = """\
program apart
  input x0: f32 [16, 8] cpu
  input x1: f32 [24, 8] cpu
  loop op0 [i0<16 | r0<8] cpu
    v0: f32 = load x0[i0, r0]
    v1: f32 = reduce sum v0
    store y0[i0] = v1  # f32 [16]
  loop op1 [i0<24 | r0<8] cpu
    v0: f32 = load x1[i0, r0]
    v1: f32 = reduce sum v0
    store y1[i0] = v1  # f32 [24]
  return y0[16], y1[24]
schedule apart
  kernel op0 = op0
    loop op0 [i0<16 | r0<8] cpu
      v0: f32 = load x0[i0, r0]
      v1: f32 = reduce sum v0
      store y0[i0] = v1
  kernel op1 = op1
    loop op1 [i0<24 | r0<8] cpu
      v0: f32 = load x1[i0, r0]
      v1: f32 = reduce sum v0
      store y1[i0] = v1
"""
BESIDE = """\
schedule apart: 2 loops in 1 kernels
  kernel op0 = op0 + op1
    loop op0 [i0<16 | r0<8] cpu
      v0: f32 = load x0[i0, r0]
      v1: f32 = reduce sum v0
      store y0[i0] = v1  # f32 [16]
    beside it, by other programs:
      kernel op1 = op1
        loop op1 [i0<24 | r0<8] cpu
          v0: f32 = load x1[i0, r0]
          v1: f32 = reduce sum v0
          store y1[i0] = v1  # f32 [24]
"""


def test_small_kernels_run_in_one_launch():
    decisions = list[Decision]()
    assert passed("run_beside", APART, GPU, decisions) == BESIDE
    assert [each.chosen for each in decisions] == ["one launch"] and beside.REASON in decisions[0].reason
    assert passed("run_beside", APART, CPU).count("  kernel ") == 2
    w = apart(16, 24, 40)
    plan = check(w.program("y0", "y1", "y2"), w.args(), GPU)
    assert launches(plan) == [3]
    (kernel,) = plan.kernels
    assert set(kernel.reads) == {"x0", "x1", "x2"} and set(kernel.writes) == {"y0", "y1", "y2"}


def test_what_needs_another_waits_for_it():
    w = apart(16, 24)
    w.pointwise("z", (24, 16), lambda i, j: call("add", w.load("y0", j), w.load("y1", i)))
    plan = check(w.program("z"), w.args(), GPU)
    assert launches(plan) == [2, 1]


def test_a_call_between_them_keeps_two_apart_that_need_it_and_are_needed():
    w = apart(16, 24)
    w.call("called", torch.ops.aten.relu.default, "y0")
    w.pointwise("z", (16, 5), lambda i, j: w.load("called", i))
    w.pointwise("late", (24, 3), lambda i, j: w.load("y1", i))
    plan = check(w.program("z", "late"), w.args(), GPU)
    for kernel in plan.kernels:
        names = {name for part in kernel.parts for name in part.writes}
        assert not {"y0", "z"} <= names and not {"y1", "late"} <= names
    assert sum(launches(plan)) == 4 and len(launches(plan)) == 2


@pytest.mark.parametrize(
    "target, options",
    [
        (CPU, OPTIONS),
        (GPU, type(OPTIONS)(fusion=False, memory_planning=True)),
        (replace(GPU, abilities=GPU.abilities - {beside.ABILITY}), OPTIONS),
        (replace(GPU, most_buffers=3), OPTIONS),
    ],
)
def test_not_where_the_device_or_the_user_does_not_want_it(target, options):
    assert launches(plan_of(apart(16, 24).program("y0", "y1"), target, options)) == [1, 1]


LARGE = 1 << 20


def listed(w: Writer, *sizes: tuple[int, ...], factor: float = 2.0, mark: str = "") -> list[str]:
    """Kernels that multiply inputs of their own by a factor, as `_foreach_mul` does; the names of the results."""
    for number, size in enumerate(sizes):
        source = w.input(f"t{mark}{number}", *size)
        value = lambda *at, source=source: call("mul", w.load(source, *at), factor)
        w.pointwise(f"m{mark}{number}", size, value)
    return [f"m{mark}{number}" for number in range(len(sizes))]


def test_large_kernels_of_another_kind_stay_alone():
    w = apart(16, 24)
    (made,) = listed(w, (LARGE,))
    assert sorted(launches(plan_of(w.program("y0", "y1", made), GPU))) == [1, 2]


def test_a_list_of_tensors_is_one_launch():
    """Of any size and number, each by programs of its own; sizes that are whole blocks have one text."""
    w = Writer()
    sizes = [(1024 * (n + 1), 1024) for n in range(12)]
    made = listed(w, *sizes)
    decisions = list[Decision]()
    plan = plan_of(w.program(*made), GPU, decisions=decisions)
    assert launches(plan) == [12]
    assert any(beside.ALIKE in each.reason for each in decisions)


def test_a_list_of_reductions_is_one_launch():
    w = apart(LARGE, LARGE + 8, LARGE + 16)
    assert launches(plan_of(w.program("y0", "y1", "y2"), GPU)) == [3]


def test_a_list_has_few_texts():
    """Sizes that are no whole blocks have masks of their own."""
    w = Writer()
    made = listed(w, *((LARGE + n + 1,) for n in range(beside.MOST + 1)), *((LARGE, n + 1) for n in range(3)))
    assert sorted(launches(plan_of(w.program(*made), GPU))) == [4, beside.MOST]


def test_lists_of_other_computations_have_launches_of_their_own():
    w = Writer()
    sizes = [(LARGE + 1024 * n,) for n in range(3)]
    made = [*listed(w, *sizes), *listed(w, *sizes, factor=3.0, mark="x")]
    assert launches(plan_of(w.program(*made), GPU)) == [3, 3]


def test_a_list_takes_as_many_buffers_as_a_launch_may():
    most = figures_of(GPU, beside.BesideFigures).alike_buffers
    w = Writer()
    made = listed(w, *((LARGE + 1024 * n,) for n in range(most // 2 + 3)))
    assert launches(plan_of(w.program(*made), GPU)) == [most // 2, 3]


def test_what_is_large_and_read_in_the_graph_does_not_wait_for_a_list():
    w = Writer()
    made = listed(w, *((LARGE + 1024 * n,) for n in range(3)))
    for name in made:
        w.call(f"called_{name}", torch.ops.aten.relu.default, name)
    assert launches(plan_of(w.program(*(f"called_{name}" for name in made)), GPU)) == [1, 1, 1]


def test_a_small_part_of_a_large_buffer_is_small():
    w = Writer()
    w.input("x", 1 << 20, 8)
    w.input("other", 24)
    w.pointwise("row", (8,), lambda j: w.load("x", 5, j))
    w.pointwise("twice", (24,), lambda i: call("mul", w.load("other", i), 2.0))
    assert launches(plan_of(w.program("row", "twice"), GPU)) == [2]


def test_no_more_than_so_many():
    sizes = [16 + 8 * n for n in range(beside.MOST + 2)]
    w = apart(*sizes)
    plan = check(w.program(*(f"y{n}" for n in range(len(sizes)))), w.args(), GPU)
    assert launches(plan) == [beside.MOST, 2]


def test_a_launch_works_over_nothing_that_another_of_its_kernels_reads():
    """Both read what dies here; one alone would write over it."""
    w = Writer()
    w.input("x", 16, 8)
    w.reduce("t", "sum", (16,), (8,), lambda i, r: w.load("x", i, r))
    w.call("u", torch.ops.aten.relu.default, "t")
    w.pointwise("a", (16,), lambda i: call("mul", w.load("u", i), 2.0))
    w.reduce("b", "sum", (5,), (16,), lambda i, r: w.load("u", r))
    plan = check(w.program("a", "b"), w.args(), GPU, element_wise=True)
    for kernel in plan.kernels:
        assert not kernel.inplace or not kernel.beside


def test_what_needs_nothing_does_not_run_ahead_of_the_launch_for_that():
    """Zeros that later layers add to, 8 MiB each, are made when they are needed, and no layer's early."""
    w = Writer()
    value = w.input("x", 1 << 18, 8)
    for number in range(1, 5):
        rows, columns = (1 << 21) // (8 * number), 8 * number
        size = tuple(map(int, w.buffers[value].layout.size))
        w.reduce(f"one{number}", "sum", (1,), size, lambda i, r, q, value=value: w.load(value, r, q))
        zeros(w, f"small{number}", columns)
        w.call(f"part{number}", torch.ops.aten.add.Tensor, f"small{number}", f"one{number}")
        zeros(w, f"large{number}", rows, columns)
        w.call(f"sum{number}", torch.ops.aten.add.Tensor, f"large{number}", f"part{number}")
        value = f"sum{number}"
    program = w.program(value)
    plan = check(program, w.args(), GPU)
    assert max(launches(plan)) >= 4
    assert plan.memory.peak_bytes < 3.1 * (8 << 20)


def test_launches_are_not_spared_for_memory(monkeypatch):
    """What the first kernel makes, 192 KiB, would wait for the last beside a peak of 1 MiB."""

    def made(near):
        monkeypatch.setattr(beside, "NEAR", near)
        w = Writer()
        value = w.input("x", 1 << 17)
        for number in range(4):
            zeros(w, f"small{number}", size := (48 << 10) + number * 8)
            w.reduce(f"one{number}", "sum", (1,), (1 << 17,), lambda i, r, value=value: w.load(value, r))
            w.call(f"more{number}", torch.ops.aten.add.Tensor, f"small{number}", f"one{number}")
            w.reduce(f"part{number}", "sum", (1,), (size,), lambda i, r, n=number: w.load(f"more{n}", r))
            w.call(f"sum{number}", torch.ops.aten.add.Tensor, value, f"part{number}")
            value = f"sum{number}"
        program = w.program(value)
        return check(program, w.args(), GPU)

    apart, kept = made(()), made((24, 12, 6, 3))
    assert kept.memory.peak_bytes <= apart.memory.peak_bytes * (1 + beside.SLACK)
    monkeypatch.setattr(beside, "SLACK", 10.0)
    assert made((24,)).memory.peak_bytes > apart.memory.peak_bytes * 1.1


def test_zeros_of_four_layers_do_not_wait_beside_a_peak_that_counts_them():
    """Half a MiB for each of four layers, beside 16 MiB and what a layer makes of its half: two wait for each other."""
    w = Writer()
    value = w.input("x", 16, 1 << 17)
    for number in range(4):
        w.reduce(f"one{number}", "sum", (1,), (16, 1 << 17), lambda i, r, q, value=value: w.load(value, r, q))
        zeros(w, f"small{number}", 1 << 17)
        w.call(f"part{number}", torch.ops.aten.add.Tensor, f"small{number}", f"one{number}")
        w.call(f"sum{number}", torch.ops.aten.add.Tensor, value, f"part{number}")
        value = f"sum{number}"
    program = w.program(value)
    plan = check(program, w.args(), GPU)
    assert plan.memory.peak_bytes < (16 << 20) + (9 << 17)
