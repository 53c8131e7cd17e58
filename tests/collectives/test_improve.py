"""`improve`: moves with known answers, and what holds for every order."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from litz.schedule.dependences import dependences
from litz_collectives import improve as module
from litz_collectives.improve import improve, judged
from litz_collectives.live import Live
from litz_collectives.place import Work
from litz_collectives.streams import known, replay
from litz_collectives.tasks import make_tasks
from support.communication import Made, random_schedule
from support.lifetimes import peak_bytes

GATHER, REDUCE = "all_gather_into_tensor", "all_reduce"


def improved(made: Made, *outputs: str, limit: float = 1e9) -> list[str]:
    schedule = made.schedule(*outputs)
    before = dependences(schedule.steps, schedule.program.buffers, collectives_stay=False)
    work = Work(make_tasks(schedule.steps, schedule.estimates), before)
    order = improve(work, range(len(schedule.steps)), Live(schedule.program, schedule.steps), limit)
    return [schedule.steps[n].name for n in order]


def test_a_start_goes_before_small_kernels_so_that_a_large_one_hides_it() -> None:
    """It gets in where the first of them ends, and what it sends is computed before."""
    made = Made()
    for name in ("w", "x"):
        made.input(name, 64)
    for n in range(3):
        made.call(f"small{n}", "x", us=5.0)
    made.call("large", "small0", us=100.0)
    made.call("sent", "w", us=5.0)
    made.communicate("full", GATHER, "sent", 50.0)
    made.call("last", "full", "large", us=5.0)
    order = improved(made, "small1", "small2", "last")
    assert order.index("sent") < order.index("full_started") < order.index("large") < order.index("full")
    assert min(order.index(f"small{n}") for n in range(3)) < order.index("large")


def test_work_from_behind_the_wait_fills_in() -> None:
    made = Made()
    made.input("x", 64)
    made.communicate("sum", REDUCE, "x", 50.0)
    made.call("needs", "sum", us=5.0)
    made.call("other", "x", us=5.0)
    made.call("more", "other", us=100.0)
    order = improved(made, "needs", "more")
    assert order == ["sum_started", "other", "more", "sum", "needs"]


def test_one_that_is_wanted_later_yields() -> None:
    made = Made()
    made.input("x", 64)
    made.collective("late_started", REDUCE, "x", 100.0)
    made.collective("soon_started", REDUCE, "x", 30.0)
    made.call("first", "x", us=10.0)
    made.call("work", "x", us=50.0)
    made.wait("soon", "soon_started")
    made.call("uses", "soon", "work", us=200.0)
    made.wait("late", "late_started")
    made.call("last", "late", "uses", us=1.0)
    schedule = made.schedule("first", "last")
    steps = {step.name: step for step in schedule.steps}
    order = improved(made, "first", "last")
    assert order[0] == "soon_started" and order.index("late_started") < order.index("uses")
    tasks = make_tasks([steps[name] for name in order], schedule.estimates)
    assert replay(tasks).exposed_us == 0.0


def test_memory_stops_a_move() -> None:
    made = Made()
    made.input("w", 256)
    made.input("x", 256)
    made.call("a", "x", us=50.0, size=4096)
    made.call("b", "a", us=50.0, size=256)
    made.communicate("full", GATHER, "w", 40.0)
    made.call("last", "b", "full", us=1.0)
    schedule = made.schedule("last")
    peak = peak_bytes(schedule.program, schedule.steps)
    names = [step.name for step in schedule.steps]
    assert improved(made, "last", limit=peak) == names
    assert improved(made, "last") != names


def test_an_order_beyond_the_limit_comes_back() -> None:
    made = Made()
    made.input("x", 64)
    made.communicate("sum", REDUCE, "x", 50.0)
    made.call("needs", "sum", us=5.0)
    made.call("more", "x", us=100.0)
    assert improved(made, "needs", "more", limit=0.0) == ["sum_started", "sum", "needs", "more"]


@settings(max_examples=18, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1.0, 1.2, 3.0]))
def test_any_order(seed: int, share: float) -> None:
    schedule = random_schedule(seed)
    steps = schedule.steps
    before = dependences(steps, schedule.program.buffers, collectives_stay=False)
    tasks = make_tasks(steps, schedule.estimates)
    peak = peak_bytes(schedule.program, steps)
    order = improve(Work(tasks, before), range(len(steps)), Live(schedule.program, steps), share * peak)
    place = {number: at for at, number in enumerate(order)}
    assert sorted(order) == list(range(len(steps)))
    assert all(place[other] < place[number] for number in place for other in before[number])
    then = [steps[number] for number in order]
    assert peak_bytes(schedule.program, then) == Live(schedule.program, steps).peak_in(order) <= share * peak
    old, new = (sum(r.us for r in judged(t)) for t in (tasks, make_tasks(then, schedule.estimates)))
    assert new <= old


def test_a_part_is_replayed_as_the_whole_would_be() -> None:
    """From where it begins to where the streams are as they were."""
    for seed in range(12):
        schedule = random_schedule(seed)
        tasks = make_tasks(schedule.steps, schedule.estimates)
        order = list(range(len(tasks)))
        for judge in module.JUDGES:
            reel = module._Reel([known(task, judge) for task in tasks], order, judge)
            assert reel.us == pytest.approx(replay(tasks, judge).us)
            for first in range(len(tasks) - 1):
                part = [first + 1, first]
                changed = [tasks[n] for n in (*order[:first], *part, *order[first + 2 :])]
                if changed[first].kind == "wait" and changed[first].of == changed[first + 1].name:
                    continue  # no order: it would wait for what has not started
                us, took = reel.with_part(first, part)
                assert us == pytest.approx(replay(changed, judge).us) and 2 <= took <= len(tasks)


def test_it_ends_when_enough_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = random_schedule(3)
    before = dependences(schedule.steps, schedule.program.buffers, collectives_stay=False)
    work = Work(make_tasks(schedule.steps, schedule.estimates), before)
    given, found = list(range(len(work.tasks))), []
    for most in (module.REPLAYED, 0):
        monkeypatch.setattr(module, "REPLAYED", most)
        found.append(improve(work, given, Live(schedule.program, schedule.steps), 1e12))
    assert found[0] != given and found[1] == given
