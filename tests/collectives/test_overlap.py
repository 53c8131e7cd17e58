"""The pass `overlap`: schedules with known answers, and what holds for every schedule."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from litz.ir import Collective, Wait
from litz.schedule import check_schedule
from litz.schedule.dependences import dependences
from litz.schedule.schedule import Schedule
from litz.target import target_of
from litz_collectives import overlap_pass as module
from litz_collectives.agree import signature
from litz_collectives.buckets import bucketed
from litz_collectives.contention import Contention
from litz_collectives.live import Live
from litz_collectives.memory_limit import memory_limit
from litz_collectives.profile import builtin_profile
from litz_collectives.streams import CORNERS, Interval, replay
from litz_collectives.tasks import make_tasks, slowdown_of
from litz_plugins import Decision, Estimate, PassContext
from support.communication import LATENCY, Made, context, cost, exactly, moved, random_schedule
from support.lifetimes import peak_bytes

overlap = partial(moved, module.overlap)
GATHER, REDUCE, SCATTER = "all_gather_into_tensor", "all_reduce", "reduce_scatter_tensor"


def names(schedule: Schedule) -> list[str]:
    return [step.name for step in schedule.steps]


def needs(schedule: Schedule) -> list[set[int]]:
    """Its dependences, the order of the collectives aside."""
    return dependences(schedule.steps, schedule.program.buffers, collectives_stay=False)


def buckets_of(schedule: Schedule, **options: Any) -> list[tuple[str, ...]]:
    decisions: list[Decision] = []
    overlap(schedule, context(decisions, memory_limit="100%", **options))
    found = [d.reason.partition(":")[0] for d in decisions if d.chosen.startswith("bucket of")]
    return sorted(tuple(text.split(", ")) for text in found)


# ---------------------------------------------------------------------------------------------------- known answers


def gathered_layers(count: int, us: float = 200.0, size: int = 256) -> Made:
    """x = f(x, gathered w), for each layer; f is two kernels, as a collective gets in where one ends."""
    made = Made()
    made.input("x", size)
    for n in range(count):
        made.input(f"w{n}", size)
    value = "x"
    for n in range(count):
        made.communicate(f"full{n}", GATHER, f"w{n}", 50.0)
        made.call(f"a{n}", value, f"full{n}", us=us / 2)
        made.call(f"y{n}", f"a{n}", us=us / 2)
        value = f"y{n}"
    return made


def test_parameters_are_gathered_while_the_layer_before_runs() -> None:
    schedule = gathered_layers(4).schedule("y3")
    done = overlap(schedule, context(bucket_bytes=0, memory_limit="100%"))
    at = {name: number for number, name in enumerate(names(done))}
    for n in range(1, 4):
        assert at[f"full{n}_started"] < at[f"a{n - 1}"], "it has to let a kernel pass, and y hides it"
    assert at["full3_started"] > at["a0"], "and no earlier than that takes"
    before, after = (replay(make_tasks(s.steps, s.estimates)) for s in (schedule, done))
    assert before.exposed_us == 200.0
    assert after.exposed_us == 50.0, "only the first has nothing to run under"


def test_without_room_nothing_is_gathered_early() -> None:
    """Two gathered parameters at a time do not fit."""
    schedule = gathered_layers(4).schedule("y3")
    assert names(overlap(schedule, context(memory_limit="0"))) == names(schedule)


@pytest.mark.parametrize("dying", [True, False])
def test_what_a_backward_lets_go_of_makes_room(dying: bool) -> None:
    """Each layer is the last to read what its forward saved; then the next gather of parameters fits beside it."""
    made = Made()
    made.input("x", 256)
    for n in range(4):
        made.input(f"w{n}", 256)
        made.input(f"saved{n}", 4096)
    value = "x"
    for n in range(4):
        made.communicate(f"full{n}", GATHER, f"w{n}", 50.0)
        made.call(f"a{n}", value, f"full{n}", f"saved{n}", us=100.0, size=256)
        made.call(f"y{n}", f"a{n}", us=100.0)
        value = f"y{n}"
    schedule = made.schedule("y3")
    saved = frozenset(f"saved{n}" for n in range(4)) if dying else frozenset()
    schedule = replace(schedule, program=replace(schedule.program, dying_inputs=saved))
    order = names(overlap(schedule, context(memory_limit="0", bucket_bytes=0)))
    assert (order != names(schedule)) == dying
    early = [n for n in range(1, 4) if order.index(f"full{n}_started") < order.index(f"y{n - 1}")]
    assert early == ([1, 2, 3] if dying else [])


def test_inputs_that_die_are_live_until_their_last_use() -> None:
    made = Made()
    for name in ("x", "kept", "saved"):
        made.input(name, 64)
    made.call("a", "x", "saved", us=1.0)
    made.call("b", "a", "kept", us=1.0)
    made.call("c", "b", us=1.0)
    schedule = made.schedule("c")
    each = int(schedule.program.buffers["x"].nbytes)
    program = replace(schedule.program, dying_inputs=frozenset({"saved"}))
    live = Live(program, schedule.steps)
    assert live.now == each and live.profile() == [2 * each, 2 * each, 2 * each]
    assert [size // each for size in Live(schedule.program, schedule.steps).profile()] == [1, 2, 2]
    live.take(0)
    assert live.now == each and live.peak == 2 * each, "a took its place"
    assert Live(program, schedule.steps).peak_in([0, 1, 2]) == 2 * each


def backward() -> Made:
    """dw = f(g), scattered; g = h(g): two layers, the weight's gradient first, as autograd has it."""
    made = Made()
    made.input("g", 1024)
    made.input("x", 1024)
    value = "g"
    for n in range(3):
        made.call(f"dw{n}", value, "x", us=60.0)
        made.communicate(f"shard{n}", SCATTER, f"dw{n}", 40.0)
        made.call(f"out{n}", f"shard{n}", us=2.0)
        made.call(f"e{n}", value, us=10.0)
        made.call(f"g{n}", f"e{n}", us=60.0)
        value = f"g{n}"
    return made


def test_a_wait_for_a_gradient_sinks_under_the_next_layer() -> None:
    schedule = backward().schedule("out0", "out1", "out2", "g2")
    done = overlap(schedule, context(bucket_bytes=0, memory_limit="100%"))
    order = names(done)
    for n in range(3):
        assert order.index(f"shard{n}_started") < order.index(f"g{n}") < order.index(f"shard{n}")
    assert replay(make_tasks(done.steps, done.estimates)).exposed_us == 0.0


def test_memory_in_flight_is_let_go_of_where_the_communication_has_finished() -> None:
    """The wait stands after the layer that hides it, not at the end of the graph."""
    schedule = backward().schedule("out0", "out1", "out2", "g2")
    order = names(overlap(schedule, context(bucket_bytes=0, memory_limit="100%")))
    assert order.index("shard0") < order.index("dw2")


def tensor_parallel() -> Made:
    """dw first and dx second, as autograd may have it: dx is reduced, and nothing but dw can hide that."""
    made = Made()
    made.input("g", 1024)
    made.input("x", 1024)
    value = "g"
    for n in range(3):
        made.call(f"dv{n}", value, "x", us=10.0)
        made.call(f"dw{n}", value, "x", us=60.0)
        made.call(f"dx{n}", value, us=60.0)
        made.communicate(f"sum{n}", REDUCE, f"dx{n}", 40.0)
        value = f"sum{n}"
    made.call("last", value, us=1.0)
    return made


def test_what_the_reduction_needs_comes_first_and_the_rest_hides_it() -> None:
    done = overlap(
        tensor_parallel().schedule("dv0", "dw0", "dv1", "dw1", "dv2", "dw2", "last"), context(memory_limit="100%")
    )
    order = names(done)
    for n in range(3):
        assert order.index(f"dx{n}") < order.index(f"sum{n}_started") < order.index(f"dw{n}") < order.index(f"sum{n}")
    assert replay(make_tasks(done.steps, done.estimates)).exposed_us == 0.0


def test_a_kernel_that_hides_nothing_now_is_kept_for_when_it_does() -> None:
    """By itself it would be let pass, and nothing would hide the first sum; before another it lets that hide a sum."""
    made = Made()
    made.input("x", 1024)
    made.call("spare", "x", us=20.0)
    made.communicate("sum0", REDUCE, "x", 40.0)
    made.call("more", "sum0", us=60.0)
    made.communicate("sum1", REDUCE, "sum0", 40.0)
    made.call("last", "sum1", us=1.0)
    done = overlap(made.schedule("spare", "more", "last"), context(memory_limit="100%"))
    order = names(done)
    assert order.index("sum0") < order.index("sum1_started") < order.index("spare") < order.index("more")
    assert order.index("more") < order.index("sum1")
    assert replay(make_tasks(done.steps, done.estimates)).exposed_us == 40.0


def small(op: str, *types: torch.dtype) -> Made:
    made = Made()
    for n, dtype in enumerate(types):
        made.input(f"x{n}", 64, dtype)
    for n in range(len(types)):
        made.communicate(f"y{n}", op, f"x{n}")
        made.call(f"z{n}", f"y{n}", us=1.0)
    return made


F32, BF16 = torch.float32, torch.bfloat16


@pytest.mark.parametrize("op", [GATHER, REDUCE, SCATTER])
def test_small_ones_of_a_kind_are_merged(op: str) -> None:
    made = small(op, F32, F32, BF16, F32)
    schedule = made.schedule("z0", "z1", "z2", "z3")
    done = overlap(schedule, context(memory_limit="100%"))
    check_schedule(done)
    (bucket,) = (step for step in done.steps if isinstance(step, Collective) and len(step.outputs) > 1)
    assert bucket.target_name == f"_c10d_functional.{op}_coalesced.default"
    assert [ref.buffer for ref in bucket.args[0]] == ["x0", "x1", "x3"], (
        "in the source's order; another dtype is not in"
    )
    assert bucket.outputs == ("y0_started", "y1_started", "y3_started")
    assert bucket.args[1:] == next(s for s in schedule.steps if isinstance(s, Collective)).args[1:]
    assert done.estimates[bucket.name].us == cost(bucket, done.program.buffers).us < 3 * LATENCY


def test_what_bars_a_bucket() -> None:
    assert buckets_of(small(REDUCE, F32, F32).schedule("z0", "z1")) == [("y0_started", "y1_started")]
    assert buckets_of(small(REDUCE, F32, F32).schedule("z0", "z1"), bucket_bytes=0) == []
    assert buckets_of(small(REDUCE, F32, F32).schedule("z0", "z1"), bucket_bytes=2 * 64 * 4) != []
    assert buckets_of(small(REDUCE, F32, F32).schedule("z0", "z1"), bucket_bytes=2 * 64 * 4 - 1) == []

    another_op = small(REDUCE, F32)
    another_op.input("x1", 64)
    another_op.collective("y1_started", REDUCE, "x1", None, "max", "0")
    another_op.wait("y1", "y1_started")
    assert buckets_of(another_op.schedule("z0", "y1")) == []

    another_group = small(REDUCE, F32)
    another_group.input("x1", 64)
    another_group.collective("y1_started", REDUCE, "x1", None, "sum", "1")
    another_group.wait("y1", "y1_started")
    assert buckets_of(another_group.schedule("z0", "y1")) == []

    needs_the_other = small(REDUCE, F32)
    needs_the_other.communicate("y1", REDUCE, "z0")
    needs_the_other.communicate("y2", REDUCE, "x0")
    assert buckets_of(needs_the_other.schedule("y1", "y2")) in (
        [("y0_started", "y2_started")],
        [("y1_started", "y2_started")],
    )


def test_large_ones_are_not_merged_where_errors_are_as_large_as_what_is_saved() -> None:
    """Two of 500 µs known to 5 % save 20 at best, and may cost 30."""
    made = small(REDUCE, F32, F32)
    schedule = made.schedule("z0", "z1")
    known, before = dict(schedule.estimates), needs(schedule)
    for name in ("y0_started", "y1_started"):
        known[name] = Estimate(500.0, 475.0, 525.0, "")
    wide = lambda step: Estimate(980.0, 960.0, 1060.0, "")
    narrow = lambda step: Estimate(980.0, 940.0, 1040.0, "")
    assert not bucketed(schedule.steps, before, schedule.program, known, wide, 1e9).members
    assert bucketed(schedule.steps, before, schedule.program, known, narrow, 1e9).members


def test_buckets_grow_from_the_exposed_end() -> None:
    made = Made()
    for n in range(8):
        made.input(f"x{n}", 1024)
    for n in range(8):
        made.communicate(f"y{n}", GATHER, f"x{n}")
        made.call(f"z{n}", f"y{n}", us=1.0)
    schedule = made.schedule(*(f"z{n}" for n in range(8)))
    each = 4 * 1024 * 4  # of one gathered tensor
    before = needs(schedule)
    estimate = lambda step: cost(step, schedule.program.buffers)
    found = bucketed(schedule.steps, before, schedule.program, schedule.estimates, estimate, 8 * each, ramp=True)
    assert sorted(map(len, found.members.values())) == [2, 4]  # after a first one by itself, and the eighth alone
    assert next(iter(sorted(found.members.values()))) == ("y1_started", "y2_started")


def test_an_unknown_time_means_the_sources_order() -> None:
    schedule = gathered_layers(3).schedule("y2")
    decisions: list[Decision] = []
    blind = replace(schedule, estimates={})
    assert overlap(blind, context(decisions)) is blind
    assert "nobody knows" in decisions[0].reason
    idle = replace(
        schedule, estimates={**schedule.estimates, **{f"y{n}": schedule.estimates["full0"] for n in range(3)}}
    )
    assert overlap(idle, context(decisions)) is idle


def test_a_rank_that_knows_no_times_follows_one_that_does() -> None:
    schedule = gathered_layers(4).schedule("y3")
    blind = replace(schedule, estimates={})
    store: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "agreed", lambda plan, key: store.setdefault(key, plan))
        seeing, following = (overlap(s, context(memory_limit="100%")) for s in (schedule, blind))
    check_schedule(following)
    starts = [[step.name for step in s.steps if isinstance(step, Collective)] for s in (seeing, following)]
    assert starts[0] == starts[1] and seeing.steps != schedule.steps


def test_every_move_is_on_record() -> None:
    decisions: list[Decision] = []
    overlap(gathered_layers(4).schedule("y3"), context(decisions, memory_limit="100%", bucket_bytes=0))
    subjects = {d.subject: d for d in decisions}
    assert "before" in subjects["overlap"].reason and len(subjects["overlap"].considered) > 1
    assert subjects["full2_started"].chosen in [f"starts {us} µs of computation earlier" for us in (200, 300, 400)]
    assert subjects["full2_started"].reason == "exposed 50 µs before, 0 µs after"


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [("10%", 1100), ("0%", 1000), ("0", 1000), ("4KiB", 4096), ("1.5 kb", 1500), ("2000", 2000), ("1GiB", 1 << 30)],
)
def test_memory_limit(text: str, bytes_: float) -> None:
    assert memory_limit(text, 1000) == pytest.approx(bytes_)
    assert memory_limit("10%", 1000, held=4000) == 1500


@pytest.mark.parametrize("text", ["", "much", "-1", "10 pounds", "10%%"])
def test_a_memory_limit_that_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="no size such as"):
        memory_limit(text, 1000)


# ---------------------------------------------------------------------------------------------------- what always holds


@settings(max_examples=14, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["0", "10%", "300%"]), st.sampled_from([None, 0, 4096]))
def test_any_schedule(seed: int, limit: str, cap: int | None) -> None:
    schedule = random_schedule(seed)
    done = overlap(schedule, context(memory_limit=limit, bucket_bytes=cap))
    check_schedule(done)  # dependences, and all memory as it is needed
    before, after = (peak_bytes(s.program, s.steps) for s in (schedule, done))
    held = sum(int(schedule.program.buffers[name].nbytes) for name in schedule.program.input_buffers)
    assert after <= memory_limit(limit, before, held)
    options = context(memory_limit=limit).options
    where = PassContext(options, target_of=target_of)
    # What overlap costs is what the pass took it for: the built-in profile's figures.
    old, new = (
        make_tasks(
            s.steps,
            s.estimates,
            partial(slowdown_of, program=s.program, context=where),
        )
        for s in (schedule, done)
    )
    assert all(replay(new, corner).us <= replay(old, corner).us + 1e-6 for corner in CORNERS)
    assert names(overlap(schedule, context(memory_limit=limit, bucket_bytes=cap))) == names(done)
    assert {name for s in done.steps for name in s.writes} == {name for s in schedule.steps for name in s.writes}


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6))
def test_a_plan_of_another_rank_can_be_followed(seed: int) -> None:
    """A rank with other kernel times starts the same collectives in the same order, tensor by tensor."""
    mine = random_schedule(seed)
    slower = dict(mine.estimates)
    for number, step in enumerate(mine.steps):
        if not isinstance(step, (Collective, Wait)):
            slower[step.name] = exactly(float(1 + (seed + number) % 90))
    other = replace(mine, estimates=slower)
    store: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "agreed", lambda plan, key: store.setdefault(key, plan))
        sent = [
            [
                (step.target_name, step.args)
                for step in overlap(s, context(memory_limit="50%")).steps
                if isinstance(step, Collective)
            ]
            for s in (mine, other)
        ]
    assert sent[0] == sent[1]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_live_memory_is_what_core_counts(seed: int) -> None:
    schedule = random_schedule(seed)
    live = Live(schedule.program, schedule.steps)
    profile = live.profile()
    for number in range(len(schedule.steps)):
        live.take(number)
    assert live.peak == max(profile) == peak_bytes(schedule.program, schedule.steps)


def test_a_signature_says_what_ranks_have_in_common() -> None:
    def digest(schedule: Schedule, **options: Any) -> str:
        return signature(schedule.steps, needs(schedule), schedule.program, options)

    usual = digest(gathered_layers(3).schedule("y2"))
    assert usual == digest(gathered_layers(3, us=7.0).schedule("y2")), "its kernels are each rank's own"
    assert usual != digest(gathered_layers(3, size=512).schedule("y2"))
    assert usual != digest(gathered_layers(4).schedule("y3"))
    assert usual != digest(gathered_layers(3).schedule("y2"), limit="5%")
    chained = small(REDUCE, F32)
    chained.communicate("y1", REDUCE, "z0")
    free = small(REDUCE, F32)
    free.communicate("y1", REDUCE, "x0")
    assert digest(chained.schedule("y1")) != digest(free.schedule("y1"))


def test_what_overlap_costs_is_the_profiles(tmp_path: Path) -> None:
    step = next(s for s in gathered_layers(1).schedule("y0").steps if isinstance(s, Collective))
    program = gathered_layers(1).schedule("y0").program
    rows = (Contention(1.0, 1.1, 1.3, 1.2),)
    file = tmp_path / "measured.json"
    file.write_text(replace(builtin_profile(), contention={"all_gather": rows}).dumps())
    found = slowdown_of(step, program, PassContext({"collectives.profile": file}, target_of=target_of))
    assert (found.compute.low, found.compute.us, found.compute.high) == pytest.approx((1.07, 1.1, 1.13))
    assert found.copy is not None and found.copy.us == pytest.approx(1.3), "of what is bound by memory"
    assert found.collective.us == pytest.approx(1.2) and found.beside_copy == Interval(1.35, 1.5, 1.65)
    unmeasured = slowdown_of(step, program, PassContext({}, target_of=target_of))
    assert 1 <= unmeasured.compute.low < unmeasured.compute.us < unmeasured.compute.high
