"""Assertions and other effects among communication: each pass leaves them in their order, and what they need before
them; a wait, a collective or a kernel passes an effect only where core's dependences say that it may."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from litz.ir import Collective, Extern, Wait
from litz.schedule import check_schedule
from litz.schedule.dependences import dependences
from litz_collectives.overlap_pass import overlap
from litz_collectives.reorder import make_pass, rules
from support.communication import CPU, Made, Timed, context, exactly, moved, random_schedule

PASSES: dict[str, Callable[[Any, Any], Any]] = {
    "overlap": partial(moved, overlap),
    **{n: partial(moved, make_pass(*rule)) for n, rule in rules(()).items()},
}


def assertion(name: str, made: Made, source: str) -> None:
    """An assertion of what `source` holds: nothing reads a result of it."""
    args = (made.ref(source), "it holds")
    made.steps.append(Extern(name, CPU, torch.ops.aten._assert_async.msg, args, {}, (), effect=True))
    made.estimates[name] = exactly(1.0)


def with_effects(seed: int) -> Timed:
    """A random schedule with assertions of its values wherever those are known."""
    schedule, rng = random_schedule(seed), random.Random(seed)
    made = Made()
    made.buffers, made.inputs = dict(schedule.program.buffers), list(schedule.program.inputs)
    known: list[str] = []
    for step in schedule.steps:
        made.steps.append(step)
        made.estimates[step.name] = schedule.estimates[step.name]
        known += [] if isinstance(step, Collective) else step.outputs
        if known and rng.random() < 0.3:
            assertion(f"check{len(made.steps)}", made, rng.choice(known))
    steps = tuple(made.steps)
    program = replace(schedule.program, operations=steps)
    return replace(schedule, program=program, steps=steps, estimates=made.estimates)


@pytest.mark.parametrize("name", PASSES)
def test_effects_stay_in_order_and_nothing_passes_what_it_must_follow(name: str) -> None:
    moved = 0
    for seed in range(12):  # `overlap` takes a sixth of a second each
        schedule = with_effects(seed)
        done = PASSES[name](schedule, context(memory_limit="1000%", bucket_bytes=0))
        check_schedule(done)
        place = {step.name: number for number, step in enumerate(done.steps)}
        assert place.keys() == {step.name for step in schedule.steps}, "an effect is not dropped"
        old = [step.name for step in schedule.steps]
        kept = [n for n in old if n.startswith("check")]
        assert sorted(kept, key=place.__getitem__) == kept
        # In the new order as in the old: `overlap` alone gives collectives an order of its own.
        own_order = name == "overlap"
        before = dependences(schedule.steps, schedule.program.buffers, waits_stay=False, collectives_stay=not own_order)
        assert all(place[old[first]] < place[old[n]] for n, firsts in enumerate(before) for first in firsts)
        moved += [step.name for step in done.steps] != old
    assert moved > 3, "the passes had something to do"


@pytest.mark.parametrize("name", PASSES)
def test_an_assertion_of_what_was_sent_is_after_its_wait(name: str) -> None:
    """`full` is known after the wait; the assertion that reads it goes with the wait, and a later one after that."""
    made = Made()
    made.input("x", 64)
    made.call("y", "x", us=10.0)
    made.collective("sent", "all_reduce", "y", 50.0)
    made.wait("full", "sent")
    assertion("check1", made, "full")
    made.call("beside", "x", us=40.0)
    assertion("check2", made, "beside")
    made.call("z", "full", "beside", us=10.0)
    schedule = made.schedule("z")
    done = PASSES[name](schedule, context(memory_limit="1000%"))
    check_schedule(done)
    order = [step.name for step in done.steps]
    wait = next(n for n, step in enumerate(done.steps) if isinstance(step, Wait))
    assert wait < order.index("check1") < order.index("check2")
    assert order.index("beside") < order.index("check2")
