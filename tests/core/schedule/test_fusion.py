"""Which loops become one, and the reasons on record where they do not."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from core.schedule.harness import CPU, GPU, OPTIONS, check, kernel_texts, plan_of
from core.schedule.programs import Writer, batch_norm, call, softmax
from litz.execution import plan_execution
from litz.ir import Buffer, Collective, Layout, Program, Store, TensorRef, Wait, build
from litz.ir.index import placeholder
from litz.schedule import make_schedule
from litz_plugins import Decision, Estimate
from litz_plugins.passes import sort_passes
from support.own_plugins import passes


def reasons(program: Program) -> set[str]:
    """Why loops were kept apart."""
    decisions: list[Decision] = []
    plan_of(program, decisions=decisions)
    return {d.reason for d in decisions if d.chosen == "kept apart"}


def test_no_fusion_when_it_is_switched_off():
    writer = softmax()
    schedule = plan_of(writer.program("y"), options=SimpleNamespace(fusion=False, memory_planning=True))
    assert len(schedule.kernels) == 4
    assert schedule.loops_before == 4


def test_calls_stay_between_what_they_divide():
    w = Writer()
    w.input("x", 4, 8)
    w.pointwise("a", (4, 8), lambda i, j: call("exp", w.load("x", i, j)))
    w.call("c", torch.ops.aten.cos.default, "a")
    w.pointwise("y", (4, 8), lambda i, j: call("mul", w.load("c", i, j), w.load("a", i, j)))
    schedule = check(w.program("y"), w.args())
    assert kernel_texts(schedule) == ["op0", "call op1", "op2"]
    assert "one kernel of both would create a cycle" in reasons(w.program("y"))


def test_a_reader_at_another_place_is_not_fused():
    w = Writer()
    w.input("x", 8, 8)
    w.reduce("s", "sum", (8,), (8,), lambda i, r: w.load("x", i, r))
    w.pointwise("y", (8,), lambda i: call("mul", w.load("s", 7 - i), 2.0))
    schedule = check(w.program("y"), w.args(), element_wise=True)
    assert len(schedule.kernels) == 2


def test_rows_and_columns_of_a_square_are_not_one_reduction():
    w = Writer()
    w.input("x", 8, 8)
    w.reduce("rows", "sum", (8,), (8,), lambda i, r: w.load("x", i, r))
    w.reduce("columns", "sum", (8,), (8,), lambda i, r: w.load("x", r, i))
    schedule = check(w.program("rows", "columns"), w.args())
    assert all(len(k.loop.loads) == 1 for k in schedule.kernels if len(k.fused) == 1) or len(schedule.kernels) == 1


def test_reductions_of_nothing():
    """Of a buffer without elements, in as many values each by other ranges: nothing divides by a size of 0."""
    w = Writer()
    w.input("x", 2, 0, 0)
    w.reduce("s", "sum", (), (2, 0, 0), lambda a, b, c: w.load("x", a, b, c))
    w.reduce("t", "sum", (), (0, 0), lambda b, c: w.load("x", 1, b, c))
    check(w.program("s", "t"), w.args())


def test_reductions_of_different_length_stay_apart():
    w = Writer()
    w.input("x", 8, 4)
    w.input("z", 8, 6)
    w.reduce("a", "sum", (8,), (4,), lambda i, r: w.load("x", i, r))
    w.reduce("b", "sum", (8,), (6,), lambda i, r: call("mul", w.load("z", i, r), w.load("a", i)))
    assert len(check(w.program("a", "b"), w.args()).kernels) == 2


def test_the_order_of_an_argmax_is_kept():
    w = Writer()
    w.input("x", 4, 6)
    w.pointwise("y", (6, 4), lambda j, i: call("abs", w.load("x", i, j)))
    w.reduce("best", "argmax", (), (6, 4), lambda a, b: w.load("y", a, b))
    w.reduce("total", "sum", (), (4, 6), lambda a, b: w.load("y", b, a))
    check(w.program("best", "total", "y"), w.args())


def test_a_large_batch_norm_on_a_gpu_applies_in_a_kernel_of_its_own():
    """One kernel over 8 channels would use 8 of 132 units."""
    writer = batch_norm(64, 8, 64)
    schedule = plan_of(writer.program("y", "mean"), GPU)
    apply = next(k for k in schedule.kernels if "y" in k.writes)
    assert not apply.loop.is_reduction
    assert len([k for k in schedule.kernels if k.loop.is_reduction]) == 2  # partial statistics, and those combined


def test_a_cheap_body_goes_into_every_reader_and_an_expensive_one_does_not():
    def two_readers(op: str) -> Writer:
        w = Writer()
        w.input("x", 512, 512)
        w.pointwise("s", (512, 512), lambda i, j: call(op, w.load("x", i, j)))
        for name in ("u", "v"):
            w.call(f"c{name}", torch.ops.aten.cos.default, "x")
            w.pointwise(name, (512, 512), lambda i, j, n=name: call("add", w.load("s", i, j), w.load(f"c{n}", i, j)))
        return w

    cheap = plan_of(two_readers("neg").program("u", "v"))
    assert "s" not in {name for k in cheap.kernels for name in k.writes}
    slow = replace(CPU, vector={"fp32": CPU.vector["fp32"] / 100})
    dear = plan_of(two_readers("lgamma").program("u", "v"), slow)
    computed = [k for k in dear.kernels if any(node.op == "lgamma" for node in k.loop.nodes)]
    assert len(computed) == 1


def test_stores_into_one_row_twice_keep_their_order():
    w = Writer()
    w.input("x", 5, 4)
    w.input("ids", 5, dtype=torch.int64)
    w.pointwise("t", (8, 4), lambda i, j: build.const(0.0, torch.float32))
    for _ in range(2):
        from litz.ir.index import loop_var

        at = loop_var(0), loop_var(1)
        row = build.bounded(w.load("ids", at[0]), 8)
        w.loop((5, 4), (), Store("t", (placeholder(0), at[1]), w.load("x", *at), (row,), "add"))
    w.pointwise("y", (8, 4), lambda i, j: w.load("t", i, j))
    assert len(check(w.program("y"), w.args(), element_wise=True).kernels) == 4


def test_small_loops_that_share_nothing_become_one_kernel():
    w = Writer()
    for n in range(8):
        w.input(f"p{n}", 16)
    for n in range(8):
        w.pointwise(f"q{n}", (16,), lambda i, n=n: call("mul", w.load(f"p{n}", i), 0.5))
    assert len(check(w.program(*(f"q{n}" for n in range(8))), w.args(), GPU).kernels) == 1


def test_what_can_run_at_once_is_not_joined_with_what_waits():
    """Casts of parameters that are to be gathered, and of a gradient that comes out of communication."""
    w = Writer()
    for n in range(3):
        w.input(f"p{n}", 16)
    w.buffers["got"] = Buffer("got", torch.float32, w.buffers["p0"].device, Layout.contiguous((16,)))
    w.buffers["done"] = replace(w.buffers["got"], name="done")
    whole = {name: TensorRef(name, w.buffers[name].layout) for name in ("p0", "got")}
    device, target = w.buffers["p0"].device, torch.ops.aten.alias.default
    w.operations.append(Collective("op0", device, target, (whole["p0"],), {}, ("got",), effect=True))
    w.operations.append(Wait("op1", device, target, (whole["got"],), {}, ("done",), aliases={"done": "got"}))
    w.pointwise("q0", (16,), lambda i: call("mul", w.load("done", i), 0.5))
    for n in (1, 2):
        w.pointwise(f"q{n}", (16,), lambda i, n=n: call("mul", w.load(f"p{n}", i), 0.5))
    schedule = plan_of(w.program("q0", "q1", "q2"), GPU)
    assert sorted(kernel.fused for kernel in schedule.kernels) == [("op2",), ("op3", "op4")]


def test_no_kernel_takes_too_many_buffers():
    w = Writer()
    names = [w.input(f"p{n}", 16) for n in range(100)]
    for n, name in enumerate(names):
        w.pointwise(f"q{n}", (16,), lambda i, name=name: call("mul", w.load(name, i), 0.5))
    schedule = check(w.program(*(f"q{n}" for n in range(100))), w.args(), GPU)
    parts = [part for kernel in schedule.kernels for part in kernel.parts]
    assert max(len({*part.reads, *part.writes}) for part in parts) <= GPU.most_buffers


def test_passes_have_names_that_others_can_order_themselves_by():
    ordered = (*passes("program"), *passes("schedule"))
    assert [p.name for p in sort_passes(ordered)] == [p.name for p in ordered]


def test_estimates_and_decisions_are_on_record():
    writer = softmax()
    noted = []
    schedule = make_schedule(writer.program("y"), options=OPTIONS, note=noted.append)
    plan = plan_execution(schedule, estimate=lambda step, program: Estimate(1, 1, 1, step.name))
    assert {name: time.why for name, time in plan.estimates.items()} == {step.name: step.name for step in plan.steps}
    fused = [d for d in noted if d.chosen == "fused"]
    assert fused and all(dict(d.considered)["fused"] <= dict(d.considered)["apart"] for d in fused)


def test_scheduling_is_the_same_every_time():
    from core.schedule.programs import EXAMPLES

    for make, outputs in EXAMPLES.values():
        assert str(plan_of(make().program(*outputs))) == str(plan_of(make().program(*outputs)))


def test_a_thousand_loops_take_no_more_than_a_second_or_two():
    import time

    w = Writer()
    w.input("x", 64, 64)
    last = "x"
    for n in range(250):
        w.pointwise(f"a{n}", (64, 64), lambda i, j, last=last: call("exp", w.load(last, i, j)))
        w.reduce(f"b{n}", "sum", (64,), (64,), lambda i, r, n=n: w.load(f"a{n}", i, r))
        w.pointwise(f"c{n}", (64, 64), lambda i, j, n=n: call("div", w.load(f"a{n}", i, j), w.load(f"b{n}", i)))
        last = w.call(f"d{n}", torch.ops.aten.cos.default, f"c{n}")
    program = w.program(last)
    start = time.perf_counter()
    schedule = plan_of(program)
    assert time.perf_counter() - start < 6  # generous: verifying and printing included, on a busy machine
    assert len(schedule.kernels) == 250


@pytest.mark.parametrize("target", [CPU, GPU], ids=["cpu", "gpu"])
def test_wide_and_narrow_reads_of_one_result(target):
    """A column statistic applied to rows: a broadcast that fusion over one space cannot do, inlining can."""
    w = Writer()
    w.input("x", 8, 16)
    w.input("scale", 16)
    w.pointwise("s", (16,), lambda j: call("rsqrt", call("add", w.load("scale", j), 1.0)))
    w.pointwise("y", (8, 16), lambda i, j: call("mul", w.load("x", i, j), w.load("s", j)))
    assert len(check(w.program("y"), w.args(), target).kernels) == 1


def sums_of_columns(count: int, rows: int, made: bool = False) -> Writer:
    """Sums over the rows of as many matrices of 768 columns; made: by a call each."""
    w = Writer()
    for n in range(count):
        given = w.input(f"x{n}", rows, 768)
        name = w.call(f"a{n}", torch.ops.aten.sin.default, given) if made else given
        w.reduce(f"s{n}", "sum", (768,), (rows,), lambda j, r, name=name: w.load(name, r, j))
    return w


def test_what_has_grown_by_joining_takes_no_more_loops():
    """24 sums in one kernel took 164 us on an H200: an accumulator each, and a launch that was long hidden."""
    large, small = (
        plan_of(sums_of_columns(8, rows).program(*(f"s{n}" for n in range(8))), GPU).kernels for rows in (1792, 64)
    )
    assert max(sum(name.startswith("x") for name in kernel.reads) for kernel in large) == 2
    assert len(small) == 1


def test_what_one_loop_reads_does_not_wait_for_another():
    w = sums_of_columns(4, 1792, made=True)
    plan = plan_of(w.program(*(f"s{n}" for n in range(4))), GPU)
    assert all(sum(name.startswith("a") for name in kernel.reads) <= 1 for kernel in plan.kernels)
    assert plan.memory.peak_bytes <= 1.2 * 1792 * 768 * 4


@pytest.mark.parametrize("size", [(1 << 20,), (4096, 1024)], ids=str)
def test_a_power_that_follows_a_counter_is_computed_once(size):
    """A step's bias correction: the kernel that counts the step makes it, no thread of the large loop."""
    w = Writer()
    w.input("count", 1)
    w.input("x", *size)
    w.pointwise("next", (1,), lambda i: call("add", w.load("count", i), 1.0))
    w.pointwise("power", (1,), lambda i: call("pow", 0.9, w.load("next", i)))
    w.pointwise("y", size, lambda *at: call("mul", w.load("x", *at), call("sqrt", w.load("power", 0))))
    program = w.program("next", "y")
    assert kernel_texts(plan_of(program, GPU)) == ["op0 op1", "op2"]
    check(program, w.args(), GPU)


def test_a_power_whose_launch_nothing_shares_is_computed_where_it_is_read():
    w = Writer()
    w.input("count", 1)
    w.input("x", 1 << 20)
    w.pointwise("power", (1,), lambda i: call("pow", 0.9, w.load("count", i)))
    w.pointwise("y", (1 << 20,), lambda i: call("mul", w.load("x", i), w.load("power", 0)))
    assert kernel_texts(plan_of(w.program("y"), GPU)) == ["op1"]
