"""What lies in the arena, and what a wrong one is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from core.schedule.harness import CPU, GPU, plan_prepared, run_in_planned_memory
from core.schedule.programs import Writer, call
from litz.execution import ExecutionPlan, IllegalPlan, arena, check_plan
from litz.ir import KernelCall, Layout
from litz.ir.interpret import interpret
from litz_plugins import Target

OPTIONS = SimpleNamespace(fusion=False, memory_planning=True)


def planned(w: Writer, *outputs: str, target: Target = GPU, options: Any = OPTIONS) -> ExecutionPlan:
    """Each loop a kernel of its own, in the order of the program; checked, and run against the interpreter."""
    program = w.program(*outputs)
    schedule = plan_prepared(program, target, options)
    for actual, wanted in zip(run_in_planned_memory(schedule, w.args()), interpret(program, w.args()), strict=True):
        torch.testing.assert_close(actual, wanted)
    return schedule


def small(rows: int = 8, count: int = 5) -> Writer:
    """s0 = rows summed up, then one small result of the other, none at the same place."""
    w = Writer()
    w.input("x", rows, 4)
    w.reduce("s0", "sum", (rows,), (4,), lambda i, r: w.load("x", i, r))
    for n in range(1, count):
        w.pointwise(f"s{n}", (rows,), lambda i, n=n: call("tanh", w.load(f"s{n - 1}", rows - 1 - i)))
    return w


def test_small_temporaries_share_bytes_and_outputs_stay_outside():
    schedule = planned(small(), "s4")
    plan = schedule.memory
    assert plan.arena == {"s0": 0, "s1": 128, "s2": 0, "s3": 128}
    assert plan.arena_bytes == 256 and not plan.reuse
    assert plan.peak_bytes == 256 + 32 and plan.total_bytes == 5 * 32
    assert "allocate the arena, 256 bytes" in str(schedule) and "allocate s1 at 128 in the arena" in str(schedule)


def test_what_works_in_place_keeps_its_place():
    w = Writer()
    w.input("x", 8, 4)
    w.reduce("a", "sum", (8,), (4,), lambda i, r: w.load("x", i, r))
    for new, old in ("ba", "cb"):
        w.pointwise(new, (8,), lambda i, old=old: call("tanh", w.load(old, i)))
    w.pointwise("d", (8,), lambda i: call("tanh", w.load("c", 7 - i)))
    w.pointwise("y", (8,), lambda i: call("tanh", w.load("d", 7 - i)))
    schedule = planned(w, "y")
    assert schedule.memory.arena == {"a": 0, "b": 0, "c": 0, "d": 128}
    assert schedule.memory.reuse == {"b": "a", "c": "b"}


def backwards(w: Writer, size: int, first: str, *names: str) -> None:
    """Each of the names made of the one before it, read from its end: nothing can be written in place."""
    for old, new in pairwise((first, *names)):
        w.pointwise(new, (size,), lambda i, old=old: call("tanh", w.load(old, size - 1 - i)))


def test_the_place_of_a_call_takes_all_that_works_in_place_out():
    """b is written over a, c over b, and c is what the library call takes: none of them is in the arena."""
    w = Writer()
    w.input("x", 8, 4)
    w.reduce("a", "sum", (8,), (4,), lambda i, r: w.load("x", i, r))
    for new, old in ("ba", "cb"):
        w.pointwise(new, (8,), lambda i, old=old: call("tanh", w.load(old, i)))
    w.call("d", torch.ops.aten.cos.default, "c")
    backwards(w, 8, "d", "e", "f", "y")
    assert set(planned(w, "y").memory.arena) == {"e", "f"}


def test_aliases_and_what_is_large_stay_outside():
    w = Writer()
    w.input("x", 1024, 300)
    w.pointwise("large", (1024, 300), lambda i, j: call("tanh", w.load("x", i, j)))
    w.reduce("a", "sum", (1024,), (300,), lambda i, r: w.load("large", i, r))
    w.call("view", torch.ops.aten.alias.default, "a", alias=True)
    backwards(w, 1024, "view", "b", "c", "y")
    assert set(planned(w, "y").memory.arena) == {"b", "c"}


def test_kernels_that_came_with_their_source_take_addresses_too():
    w = small()
    w.call("k", torch.ops.aten.cos.default, "s4")
    operation = w.operations[-1]
    w.operations[-1] = KernelCall("k", operation.device, operation.target, operation.args, {}, ("k",))
    w.pointwise("y", (8,), lambda i: call("tanh", w.load("k", 7 - i)))
    assert set(planned(w, "y").memory.arena) == {"s0", "s1", "s2", "s3", "s4", "k"}


def test_a_buffer_that_starts_inside_its_memory_stays_outside():
    w = small()
    w.buffers["s1"] = replace(w.buffers["s1"], layout=replace(Layout.contiguous((8,)), offset=w.buffers["s1"].nbytes))
    schedule = plan_prepared(w.program("s4"), GPU)
    assert set(schedule.memory.arena) == {"s0", "s2", "s3"}


@pytest.mark.parametrize(
    ("count", "target", "changes"), [(2, GPU, {}), (5, CPU, {}), (5, GPU, {"memory_planning": False})]
)
def test_no_arena_where_it_saves_nothing(count: int, target: Target, changes: Mapping[str, Any]):
    options = SimpleNamespace(**{**vars(OPTIONS), **changes})
    schedule = planned(small(count=count), f"s{count - 1}", target=target, options=options)
    assert not schedule.memory.arena and not schedule.memory.arena_bytes


def test_the_arena_has_a_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(arena, "MOST", 128)
    assert planned(small(count=6), "s5").memory.arena == {"s0": 0, "s2": 0, "s4": 0}


def test_it_is_on_record():
    notes: list[Any] = []
    plan_prepared(small().program("s4"), GPU, decisions=notes)
    assert [note.chosen for note in notes if note.stage == "execution"] == ["4 buffers in one allocation of 256 bytes"]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"s1": 0}, "s1 is in the arena where s0 is"),
        ({"s1": 32}, "s1 is at 32 in the arena"),
        ({"s1": 256}, "s1 is at 256 in the arena"),
        ({"s4": 128}, "s4 is in the arena, where it may not be"),
        ({"x": 128}, "x is in the arena, where it may not be"),
        ({"nobody": 0}, "nobody is in the arena, where it may not be"),
    ],
)
def test_a_wrong_arena_is_found(changes: Mapping[str, int], complaint: str):
    schedule = planned(small(), "s4")
    wrong = replace(schedule.memory, arena={**schedule.memory.arena, **changes})
    with pytest.raises(IllegalPlan, match=complaint):
        check_plan(replace(schedule, memory=wrong))


def test_a_call_that_takes_what_is_in_the_arena_is_found():
    w = small()
    w.call("c", torch.ops.aten.cos.default, "s4")
    schedule = planned(w, "c")
    wrong = replace(schedule.memory, arena={**schedule.memory.arena, "s4": 0})
    with pytest.raises(IllegalPlan, match="s4 is in the arena, where it may not be"):
        check_plan(replace(schedule, memory=wrong))


def test_half_a_pair_in_place_is_found():
    w = Writer()
    w.input("x", 8, 4)
    w.reduce("a", "sum", (8,), (4,), lambda i, r: w.load("x", i, r))
    w.pointwise("b", (8,), lambda i: call("tanh", w.load("a", i)))
    w.pointwise("y", (8,), lambda i: call("tanh", w.load("b", 7 - i)))
    schedule = planned(w, "y")
    assert schedule.memory.arena == {"a": 0, "b": 0}
    for places in ({"a": 0}, {"a": 0, "b": 128}):
        wrong = replace(schedule.memory, arena=places, arena_bytes=256)
        with pytest.raises(IllegalPlan, match="not where the arena has it"):
            check_plan(replace(schedule, memory=wrong))
