"""Where buffers lie and for how long, and the order that decides it."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from core.schedule.harness import GPU, check, kernel_texts, plan_of
from core.schedule.programs import Writer, call
from core.schedule.test_dependences import communication
from litz.execution import ExecutionPlan, IllegalPlan, MemoryPlan, check_plan
from litz.execution.memory import shared_bytes
from litz.ir import Program
from litz.schedule import IllegalSchedule, check_schedule
from litz.schedule.schedule import Step
from litz_plugins import Decision


def chain(length: int = 6) -> Writer:
    """Calls with pointwise loops between: nothing to fuse, everything to reuse."""
    w = Writer()
    last = w.input("x", 32, 32)
    for n in range(length):
        last = w.call(f"c{n}", torch.ops.aten.cos.default, last)
        last = w.pointwise(f"p{n}", (32, 32), lambda i, j, last=last: call("exp", w.load(last, i, j)))
    return w


def test_a_chain_works_in_place():
    w = chain()
    schedule = check(w.program("p5"), w.args())
    assert schedule.kernels[0].inplace == {"p0": "c0"}
    assert schedule.memory.peak_bytes < 3 * 32 * 32 * 4
    assert schedule.memory.total_bytes == 12 * 32 * 32 * 4


@pytest.mark.parametrize(("size", "taken"), [((8, 4, 32), True), ((32, 32), True), ((4, 8, 32), False)])
def test_a_buffer_of_other_sizes_is_written_over_at_the_same_places(size: tuple[int, ...], taken: bool):
    """A product's result has rows and columns where what follows has batches, rows and columns."""
    w = Writer()
    w.input("x", 32, 32)
    w.call("c", torch.ops.aten.cos.default, "x")
    if len(size) == 2:
        w.pointwise("p", size, lambda i, j: call("exp", w.load("c", i, j)))
    elif taken:
        w.pointwise("p", size, lambda n, i, j: call("exp", w.load("c", 4 * n + i, j)))
    else:
        w.pointwise("p", size, lambda n, i, j: call("exp", w.load("c", 4 * i + n, j)))
    w.call("y", torch.ops.aten.sin.default, "p")
    plan = check(w.program("y"), w.args())
    assert (plan.kernels[0].inplace == {"p": "c"}) is taken


def test_a_saved_input_is_written_over_after_its_last_use():
    w = Writer()
    w.input("x", 512, 1024)
    w.input("s", 512, 1024)
    w.pointwise("y", (512, 1024), lambda i, j: call("mul", w.load("x", i, j), w.load("s", i, j)))
    program = w.program("y")
    assert not plan_of(program).kernels[0].inplace, "the caller's"
    owned = plan_of(replace(program, dying_inputs=frozenset("s"), owned_inputs=frozenset("s")))
    assert owned.kernels[0].inplace == {"y": "s"} and owned.memory.peak_bytes == 0
    check_plan(owned)
    returned = replace(w.program("y", "s"), dying_inputs=frozenset("s"), owned_inputs=frozenset("s"))
    assert not plan_of(returned).kernels[0].inplace


def test_outputs_keep_their_memory():
    """Nothing takes over the memory of a result, and it is not freed: the caller has it."""
    w = chain(3)
    schedule = check(w.program("p2", "p0"), w.args())
    assert not {"p0", "p2"} & set(schedule.memory.reuse.values())
    assert not {"p0", "p2"} & {name for names in schedule.memory.free for name in names}


def test_an_output_takes_over_dead_memory():
    """`wide` is dead when `z` is made, after a call, of what `wide` became."""
    w = Writer()
    w.input("x", 128, 128)
    w.call("wide", torch.ops.aten.cos.default, "x")
    w.reduce("rows", "sum", (128,), (128,), lambda i, r: w.load("wide", i, r))
    w.call("more", torch.ops.aten.sin.default, "rows")
    w.pointwise("z", (128, 128), lambda i, j: call("mul", w.load("more", i), w.load("x", i, j)))
    schedule = check(w.program("z"), w.args())
    assert schedule.memory.reuse["z"] == "wide"
    assert schedule.memory.peak_bytes < 1.1 * 128 * 128 * 4, "never both at a time"
    two = check(w.program("z", "wide"), w.args())
    assert "z" not in two.memory.reuse, "not the memory of another result"


def test_nothing_is_reused_when_planning_is_switched_off():
    w = chain()
    schedule = plan_of(w.program("p5"), options=SimpleNamespace(fusion=True, memory_planning=False))
    assert not schedule.memory.reuse and not any(k.inplace for k in schedule.kernels)


def test_no_writing_over_what_is_read_elsewhere():
    w = Writer()
    w.input("x", 8, 8)
    w.call("c", torch.ops.aten.cos.default, "x")
    w.pointwise("p", (8, 8), lambda i, j: call("add", w.load("c", i, j), w.load("c", j, i)))
    w.call("y", torch.ops.aten.cos.default, "p")
    schedule = check(w.program("y"), w.args(), element_wise=True)
    assert not schedule.kernels[0].inplace


def test_no_writing_over_what_a_later_pass_reads():
    """The sum is in the second pass; what is stored in the first would be read again."""
    w = Writer()
    w.input("x", 4, 8)
    w.call("c", torch.ops.aten.cos.default, "x")
    w.pointwise("e", (4, 8), lambda i, j: call("exp", w.load("c", i, j)))
    w.reduce("s", "sum", (4,), (8,), lambda i, r: w.load("e", i, r))
    w.pointwise("y", (4, 8), lambda i, j: call("mul", w.load("c", i, j), w.load("s", i)))
    w.call("e2", torch.ops.aten.cos.default, "e")
    w.call("y2", torch.ops.aten.cos.default, "y")
    schedule = check(w.program("e2", "y2"), w.args(), element_wise=True)
    assert kernel_texts(schedule)[1] == "op1 op2 op3"
    assert schedule.kernels[0].inplace == {"y": "c"}


def test_what_is_under_way_is_neither_freed_nor_reused():
    w = communication()
    schedule = plan_of(w.program("y", "other", "z"))
    names = [step.name if not hasattr(step, "fused") else " ".join(step.fused) for step in schedule.steps]
    wait = names.index("op3")
    assert not any("send" in names for names in schedule.memory.free[:wait])
    assert "send" not in {old for new, old in schedule.memory.reuse.items() if new == "other"}


def test_an_alias_keeps_its_memory_alive():
    w = Writer()
    w.input("x", 16)
    w.call("c", torch.ops.aten.cos.default, "x")
    w.call("view", torch.ops.aten.alias.default, "c", alias=True)
    w.call("d", torch.ops.aten.sin.default, "x")
    w.pointwise("p", (16,), lambda i: call("exp", w.load("d", i)))
    w.call("e", torch.ops.aten.sin.default, "p")
    w.pointwise("y", (16,), lambda i: call("add", w.load("view", i), w.load("e", i)))
    schedule = check(w.program("y"), w.args())
    assert "c" not in schedule.memory.reuse.values()


def test_the_order_frees_early():
    """Four large results, each made small at once: the program makes all the large ones first."""
    w = Writer()
    w.input("x", 512, 512)
    for n in range(4):
        w.call(f"big{n}", torch.ops.aten.cos.default, "x")
    for n in range(4):
        w.reduce(f"s{n}", "sum", (), (512, 512), lambda a, b, n=n: w.load(f"big{n}", a, b))
    w.pointwise(
        "y", (), lambda: call("add", call("add", w.load("s0"), w.load("s1")), call("add", w.load("s2"), w.load("s3")))
    )
    schedule = check(w.program("y"), w.args())
    assert schedule.memory.peak_bytes < 2 * 512 * 512 * 4


def recurring(wide: int, rest: int = 1) -> Writer:
    """`a` and `b`, then calls of few elements and one of `wide` x 256, then `z`, of the size of `a`."""
    w = Writer()
    w.input("x", 256, 256)
    w.input("s", 8)
    w.input("w", wide, 256)
    w.call("a", torch.ops.aten.cos.default, "x")
    w.call("b", torch.ops.aten.sin.default, "a")
    w.reduce("r", "sum", (), (256, 256), lambda i, j: w.load("b", i, j))
    last = w.call("c", torch.ops.aten.mul.Tensor, "s", "r")
    w.call("big", torch.ops.aten.mul.Tensor, "w", "r")
    w.reduce("t", "sum", (), (wide, 256), lambda i, j: w.load("big", i, j))
    for n in range(rest):
        last = w.call(f"c{n}", torch.ops.aten.mul.Tensor, last, "t")
    w.reduce("u", "sum", (), (8,), lambda i: w.load(last, i))
    w.call("z", torch.ops.aten.mul.Tensor, "x", "u")
    w.reduce("y", "sum", (), (256, 256), lambda i, j: w.load("z", i, j))
    return w


@pytest.mark.parametrize("wide", [512])
def test_dead_memory_does_not_wait_through_the_peak(wide: int):
    """What is freed and allocated again leaves its bytes to others in between."""
    w = recurring(wide)
    plan = check(w.program("y"), w.args())
    assert "z" not in plan.memory.reuse
    assert plan.memory.peak_bytes <= 1.02 * wide * 256 * 4


@pytest.mark.parametrize(("rest", "waits"), [(1, True), (80, False)])
def test_dead_memory_waits_where_there_is_room(rest: int, waits: bool):
    """No allocation for `z`; but nobody waits through half a model."""
    w = recurring(8, rest)
    plan = check(w.program("y"), w.args())
    assert ("z" in plan.memory.reuse) is waits
    assert plan.memory.peak_bytes <= 1.02 * 2 * 256 * 256 * 4


def test_a_wrong_plan_is_found():
    schedule = plan_of(chain().program("p5"))
    names = schedule.memory.free
    early = replace(schedule.memory, free=(("c0",), *names[1:]))
    with pytest.raises(IllegalPlan, match=r"freed before its last use|no memory"):
        check_plan(replace(schedule, memory=early))
    swapped = (schedule.steps[1], schedule.steps[0], *schedule.steps[2:])
    with pytest.raises(IllegalSchedule):
        check_schedule(replace(schedule, steps=swapped))


def test_a_backward_begins_with_what_frees_most():
    """`wide` is needed after what frees the large saved tensor, and before it in the program."""
    w = Writer()
    w.input("saved", 512, 512)
    w.input("x", 512, 256)
    w.call("wide", torch.ops.aten.cos.default, "x")
    w.call("more", torch.ops.aten.sin.default, "saved")
    w.reduce("s", "sum", (), (512, 512), lambda i, j: w.load("more", i, j))
    w.pointwise("y", (512, 256), lambda i, j: call("mul", w.load("wide", i, j), w.load("s")))
    program = w.program("y")
    own = replace(program, dying_inputs=frozenset({"saved"}), owned_inputs=frozenset({"saved"}))
    plan = plan_of(own)
    first, second = (next(n for n, step in enumerate(plan.steps) if name in step.writes) for name in ("more", "wide"))
    assert first < second, "what is put off does not lie beside the saved tensor and what is made of it"


def test_a_large_result_waits_for_its_reader_and_a_small_one_does_not():
    w = Writer()
    w.input("x", 512, 512)
    w.input("v", 512)
    w.call("large", torch.ops.aten.cos.default, "x")
    w.call("small", torch.ops.aten.cos.default, "v")
    w.call("other", torch.ops.aten.sin.default, "x")
    w.call("again", torch.ops.aten.exp.default, "other")
    w.reduce("s", "sum", (512,), (512,), lambda i, r: w.load("again", i, r))
    w.call("t", torch.ops.aten.mul.Tensor, "s", "small")
    w.pointwise("y", (512, 512), lambda i, j: call("mul", w.load("large", i, j), w.load("t", i)))
    plan = check(w.program("y"), w.args())
    at = {name: n for n, step in enumerate(plan.steps) for name in step.writes}
    assert at["large"] > at["t"] and at["small"] < at["other"]
    assert plan.memory.peak_bytes <= 1.02 * 2 * 512 * 512 * 4
    decisions: list[Decision] = []
    plan_of(w.program("y"), decisions=decisions)
    (reason,) = (d.reason for d in decisions if d.subject == "order of steps")
    assert re.fullmatch(r"steps with large results .*: the peak of memory falls from \S+ MiB to \S+ MiB", reason)


@pytest.mark.parametrize(("rows", "kernels"), [(2048, 8), (16, 1)])
def test_loops_that_share_nothing_are_one_kernel_while_that_makes_little(rows: int, kernels: int):
    """Eight small copies, each for a call that comes after a larger one: all at once they would be held for long."""
    w = Writer()
    w.input("x", rows, 1024)
    last = "x"
    for n in range(8):
        w.input(f"a{n}", 1024)
        w.pointwise(f"p{n}", (rows, 1024), lambda i, j, n=n: call("exp", w.load(f"a{n}", j)))
    for n in range(8):
        w.call(f"s{n}", torch.ops.aten.sin.default, last)
        last = w.call(f"m{n}", torch.ops.aten.mul.Tensor, f"s{n}", f"p{n}")
    plan = check(w.program(last), w.args(), GPU)
    assert len(plan.kernels) == kernels
    if kernels > 1:
        assert plan.memory.peak_bytes <= 4 * rows * 1024 * 4


def calls(rows: int, count: int, *more: int) -> Writer:
    """A chain of library calls on matrices of `rows` times 4 KiB, and other calls by themselves, by their rows."""
    w = Writer()
    last = w.input("x", rows, 1024)
    for n in range(count):
        last = w.call(f"c{n}", torch.ops.aten.cos.default, last)
    for n, rows in enumerate(more):
        w.call(f"m{n}", torch.ops.aten.cos.default, w.input(f"i{n}", rows, 1024))
    return w


def test_what_shares_a_segment_is_neither_small_nor_most_of_all():
    """1000 KiB are small, 60 MiB of 80 MiB a segment of their own. A chain holds two of its matrices, outputs all."""
    kib = 1024
    few = calls(512, 3)
    assert shared_bytes(*parts(plan_of(few.program("c2")))) == (0, 0), "2 MiB each, of 4"
    held = [f"c{n}" for n in range(10)]
    assert shared_bytes(*parts(plan_of(calls(512, 10).program(*held)))) == (20 * kib**2, 20 * kib**2)
    assert shared_bytes(*parts(plan_of(calls(250, 10).program(*held)))) == (0, 0)
    much = calls(512, 10, 60 * 256).program(*held, "m0")
    assert shared_bytes(*parts(plan_of(much))) == (20 * kib**2, 20 * kib**2)


def test_growth_is_beyond_inputs_that_die():
    """Eight matrices of 2 MiB die one after the other, and each leaves a result."""
    w = Writer()
    for n in range(8):
        w.call(f"c{n}", torch.ops.aten.cos.default, w.input(f"x{n}", 512, 1024))
    names = frozenset(f"x{n}" for n in range(8))
    program = replace(w.program(*[f"c{n}" for n in range(8)]), dying_inputs=names)
    assert shared_bytes(*parts(plan_of(program))) == (16 << 20, 2 << 20)


def parts(plan: ExecutionPlan) -> tuple[Program, tuple[Step, ...], MemoryPlan]:
    return plan.program, plan.steps, plan.memory
