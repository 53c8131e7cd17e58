"""Buckets taken apart and put together where communication is exposed, and what the whole search promises."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from litz_collectives.improve import judged, score_of
from litz_collectives.live import Live
from litz_collectives.planner import RULES, Candidate, Planner
from litz_collectives.regroup import regroup
from litz_collectives.reorder import make_pass, rules
from litz_collectives.streams import surely_gains
from litz_collectives.tasks import estimates_of, make_tasks
from litz_plugins import Estimate
from support.communication import Made, Timed, context, cost, moved, random_schedule

GATHER = "all_gather_into_tensor"


def planner_of(schedule: Timed, **options: Any) -> Planner:
    own = {id(step) for step in schedule.steps}

    def estimate(step: Any, *_: Any) -> Estimate | None:
        return schedule.estimates.get(step.name) if id(step) in own else cost(step, schedule.program.buffers)

    where = replace(context(**options), estimate=estimate)
    return Planner(schedule, estimates_of(schedule.steps, schedule.program, where), where)


def layers(count: int, elements: int, us: float, calls: int = 1) -> Timed:
    """Layers of some calls each, whose parameters are gathered right before."""
    made = Made()
    made.input("x", 64)
    value = "x"
    for n in range(count):
        made.input(f"w{n}", elements)
        made.communicate(f"full{n}", GATHER, f"w{n}")
        made.call(f"y{n}", value, f"full{n}", us=us, size=64)
        value = f"y{n}"
        for more in range(1, calls):
            made.call(f"y{n}_{more}", value, us=us, size=64)
            value = f"y{n}_{more}"
    return made.schedule(value)


def as_one(planner: Planner) -> Candidate:
    names = tuple(planner.source.source.numbers)
    found = planner.grouped(planner.source, (names,), {names[0]: 0}, float("inf"))
    assert found is not None and found.plan.items == (tuple(range(len(names))),)
    return found


def test_a_bucket_that_holds_everything_up_is_taken_apart() -> None:
    """Each gather takes 102 µs, less than a layer; as one they take 348, and nothing runs meanwhile."""
    planner = planner_of(layers(4, 8192, 50.0, calls=4), memory_limit="1GiB")
    one = as_one(planner)
    assert one.us == pytest.approx(348 + 4 * 200, abs=1)
    found = regroup(one, planner)
    assert len(found.plan.items) > 1 and len(found.plan.items[0]) < 4
    assert found.us < one.us - 150 and found.score < one.score and found.peak <= planner.limit


def test_small_messages_are_put_together() -> None:
    planner = planner_of(layers(6, 64, 5.0), memory_limit="1GiB")
    found = regroup(planner.source, planner)
    assert len(found.plan.items) < 6 and found.us < planner.source.us and found.score < planner.source.score


def test_no_bucket_is_larger_than_the_option_says() -> None:
    schedule = layers(6, 64, 5.0)
    none = planner_of(schedule, memory_limit="1GiB", bucket_bytes=0)
    assert regroup(none.source, none) is none.source
    two = planner_of(schedule, memory_limit="1GiB", bucket_bytes=2 * 4 * 64 * 4)
    assert max(map(len, regroup(two.source, two).plan.items)) == 2


def test_nothing_is_put_together_beyond_the_memory_limit() -> None:
    """All that is gathered at once would have to be held at once."""
    planner = planner_of(layers(6, 64, 5.0), memory_limit="0")
    found = regroup(planner.source, planner)
    assert found.peak <= planner.limit == planner.source.peak < as_one(planner).peak


def test_gathers_of_which_one_needs_the_other_stay_apart() -> None:
    made = Made()
    made.input("x", 64)
    made.communicate("a", GATHER, "x")
    made.call("y", "a", us=5.0, size=64)
    made.communicate("b", GATHER, "y")
    planner = planner_of(made.schedule("b"))
    names = tuple(planner.source.source.numbers)
    assert planner.grouped(planner.source, (names,), {names[0]: 0}, float("inf")) is None


@pytest.mark.parametrize("seed", range(12))
def test_the_plan_is_no_worse_than_the_other_passes(seed: int) -> None:
    """Of the orders that surely gain and keep to the memory limit, by the simulator."""
    schedule = random_schedule(1000 + seed)
    planner = planner_of(schedule)
    chosen = planner.best()
    assert chosen.us <= planner.source.us and chosen.peak <= planner.limit
    for names in RULES:
        other = schedule
        for name in names:
            other = moved(make_pass(*rules(names)[name]), other, context())
        tasks = make_tasks(other.steps, other.estimates)
        peak = max(Live(other.program, other.steps).profile())
        if peak <= planner.limit and surely_gains(tasks, planner.source.tasks):
            assert chosen.score <= score_of([one.us for one in judged(tasks)]) * (1 + 1e-9), names
