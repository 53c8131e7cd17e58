"""The rules of reordering on graphs of steps: legal, collectives in order, and what each is for."""

from __future__ import annotations

import random

import pytest
import torch

from litz.errors import InvalidOptionError
from litz.ir import Collective, Extern, Wait
from litz.options import make_options
from litz_collectives import plugin
from litz_collectives.plugin import litz_register_passes
from litz_collectives.reorder import raise_comms_and_waits, rules
from litz_plugins.manager import make_plugins

CPU = torch.device("cpu")
Graph = tuple[list[Extern], list[set[int]]]


def step(kind: type[Extern], number: int) -> Extern:
    return kind(f"op{number}", CPU, torch.relu, ())


def random_graph(seed: int) -> Graph:
    """Steps, each after a few earlier ones; collectives in a chain, most with a wait somewhere behind."""
    rng = random.Random(seed)
    steps: list[Extern] = []
    before: list[set[int]] = []
    last: int | None = None
    open_waits: list[int] = []
    for number in range(rng.randint(2, 40)):
        needs = set(rng.sample(range(number), min(number, rng.choice([0, 1, 1, 2]))))
        kind: type[Extern] = rng.choice([Extern, Extern, Extern, Collective, Wait])
        if kind is Wait and not open_waits:
            kind = Extern
        if kind is Wait:
            needs = {open_waits.pop(rng.randrange(len(open_waits)))}
        elif kind is Collective:
            needs |= set() if last is None else {last}
            last = number
            open_waits.append(number)
        steps.append(step(kind, number))
        before.append(needs)
    return steps, before


RULES = rules(("sink_waits", "raise_comms"))


def times_of(steps: list[Extern]) -> dict[str, float]:
    return {one.name: 50.0 if isinstance(one, Collective) else 4.0 for one in steps}


@pytest.mark.parametrize("name", [*RULES, "raise_comms_and_waits"])
def test_legal_on_random_graphs(name: str) -> None:
    rule = RULES[name][0] if name in RULES else raise_comms_and_waits
    for seed in range(300):
        steps, before = random_graph(seed)
        order = rule(steps, before, times_of(steps))
        assert sorted(order) == list(range(len(steps)))
        place = {number: position for position, number in enumerate(order)}
        assert all(place[needed] < place[n] for n, names in enumerate(before) for needed in names)
        comms = [n for n in order if isinstance(steps[n], Collective)]
        assert comms == sorted(comms), "every rank starts collectives in one order"
        assert rule(steps, before, times_of(steps)) == order


def test_a_sunk_wait_stands_before_what_needs_it() -> None:
    rule, _ = RULES["sink_waits"]
    for seed in range(300):
        steps, before = random_graph(seed)
        order = rule(steps, before, {})
        for position, number in enumerate(order[:-1]):
            if isinstance(steps[number], Wait):
                # What comes next is another wait, or hangs on a wait.
                following = order[position + 1]
                assert isinstance(steps[following], Wait) or hangs_on_a_wait(following, steps, before)


def hangs_on_a_wait(number: int, steps: list[Extern], before: list[set[int]]) -> bool:
    return any(isinstance(steps[n], Wait) or hangs_on_a_wait(n, steps, before) for n in before[number])


def test_before_a_raised_collective_stands_only_what_it_or_an_earlier_one_needs() -> None:
    rule, _ = RULES["raise_comms"]
    for seed in range(300):
        steps, before = random_graph(seed)
        order = rule(steps, before, {})
        needed: set[int] = set()
        comms = [n for n in order if isinstance(steps[n], Collective)]
        for comm in comms:
            pending = [comm]
            while pending:
                one = pending.pop()
                needed.add(one)
                pending += before[one] - needed
        last = order.index(comms[-1]) if comms else -1
        assert set(order[: last + 1]) <= needed


def test_a_wait_is_raised_with_its_collective_where_no_pass_puts_it_off() -> None:
    """Both, or neither where computation stands between them."""
    kinds: list[type[Extern]] = [Extern, Collective, Collective, Wait, Wait, Extern]
    steps = [step(kind, number) for number, kind in enumerate(kinds)]
    before: list[set[int]] = [set(), set(), set(), {1}, {2}, {3, 4}]
    times = times_of(steps)
    assert rules(("raise_comms",))["raise_comms"][0](steps, before, times) == [1, 2, 3, 4, 0, 5]
    assert rules(("raise_comms", "sink_waits"))["raise_comms"][0](steps, before, times) == [1, 2, 0, 3, 4, 5]
    kinds[2:5] = [Extern, Wait, Extern]
    steps = [step(kind, number) for number, kind in enumerate(kinds)]
    before = [set(), set(), set(), {1}, set(), {3, 4}]
    assert rules(("raise_comms",))["raise_comms"][0](steps, before, times) == [1, 0, 2, 3, 4, 5]


def test_computation_is_moved_only_as_long_as_it_hides_something() -> None:
    """Four free steps of 10 µs before a second collective: as many go between as the first one's time takes."""
    kinds: list[type[Extern]] = [Collective, Wait, Extern, Extern, Extern, Extern, Collective, Wait]
    steps = [step(kind, number) for number, kind in enumerate(kinds)]
    before: list[set[int]] = [set(), {0}, set(), set(), set(), set(), {0, 1}, {6}]
    rule, _ = RULES["reorder_compute_for_overlap"]
    for us, between in [(0.0, 0), (15.0, 2), (20.0, 2), (1000.0, 4)]:
        times = {one.name: us if isinstance(one, Collective) else 10.0 for one in steps}
        order = rule(steps, before, times)
        assert order.index(6) == 2 + between  # the first collective, its wait, and the steps between


def test_a_pass_that_is_none() -> None:
    specs = make_plugins(extra=[("collectives", plugin)], entry_points=()).option_specs()
    for given in (("sink_wait",), "overlap,sink_wait"):
        with pytest.raises(InvalidOptionError, match="did you mean 'sink_waits'") as raised:
            make_options(None, {"collectives.passes": given}, specs)
        assert "a list of some of overlap, sink_waits, raise_comms" in str(raised.value)
    with pytest.raises(InvalidOptionError, match="LITZ_COLLECTIVES_PASSES"):
        make_options(None, {}, specs, {"LITZ_COLLECTIVES_PASSES": "nope"})
    found = litz_register_passes({"collectives.passes": tuple(reversed(RULES))})
    assert [one.name for one in found] == list(reversed(RULES))
    assert found[1].after == ("part_segments", "order_steps?", found[0].name)
    assert litz_register_passes({"collectives.passes": ()}) == []
