"""A training step planned for clusters of up to 1,024 ranks, by torch's fake process group: who sends how far, and
what is hidden. The model is that of benchmarks.cluster_plan, small."""

from __future__ import annotations

import re

import pytest
from benchmarks.cluster_plan import Planned, Shape, plan_cluster

from litz.ir import Collective
from litz_collectives.plugin import operation_cost, profile_of

SMALL = Shape(width=1024, inner=2048, heads=16, key_heads=8, tokens=2048)
HOST = 8
EXPOSED = r"([\d.e+]+) of ([\d.e+]+) µs"


@pytest.fixture(scope="module", params=[pytest.param(64, marks=pytest.mark.nightly), 1024])
def planned(request: pytest.FixtureRequest) -> tuple[int, list[Planned]]:
    ranks = request.param
    return ranks, plan_cluster(ranks, HOST, 2, SMALL, {"collectives.memory_limit": "100%"})


def test_every_group_is_estimated_where_it_lies(planned: tuple[int, list[Planned]]) -> None:
    ranks, graphs = planned
    profile = profile_of("NVIDIA H100 80GB HBM3")
    assert [one.schedule.program.name for one in graphs] == ["graph0_forward", "graph0_backward"]
    for one in graphs:
        far = near = 0
        for step in one.schedule.steps:
            if not isinstance(step, Collective):
                continue
            cost = operation_cost(step, one.schedule.program, profile)
            assert cost is not None and 0 < cost.low_us < cost.us < cost.high_us
            if len(step.ranks) == ranks // HOST and step.ranks != tuple(range(HOST)):
                assert f"between {ranks // HOST} nodes" in cost.why
                far += 1
            else:
                assert step.ranks == tuple(range(HOST)) and "measured" in cost.why
                near += 1
        assert far and near


def test_communication_is_hidden_and_the_plan_takes_seconds(planned: tuple[int, list[Planned]]) -> None:
    _, graphs = planned
    for one in graphs:
        (said,) = (decision for decision in one.log.decisions if decision.subject == "overlap")
        assert said.chosen != "source order" and "exposed before" in said.reason, said
        before, after = (float(us) for us, _ in re.findall(EXPOSED, said.reason))
        assert after < before, said.reason
        assert 0 < one.overlap_seconds < one.seconds
        assert one.overlap_seconds < 60, "some seconds, where nobody else keeps the machine busy"


@pytest.mark.nightly
def test_layers_of_llama_70b_hide_most_of_what_can_be_hidden() -> None:
    """Of the forward's communication a quarter is between the GPUs of a host, which the next product always needs."""
    forward, backward = plan_cluster(64, HOST, 4, Shape(), {"collectives.memory_limit": "40%"})
    for one, most in ((forward, 0.36), (backward, 0.16)):
        (said,) = (decision for decision in one.log.decisions if decision.subject == "overlap")
        exposed, total = re.findall(EXPOSED, said.reason)[-1]
        assert float(exposed) < most * float(total), said.reason


def in_pieces(one: Planned) -> dict[str, int]:
    """By collective, into how many pieces it is cut."""
    found = ((one.subject, re.fullmatch(r"(\d+) pieces", one.chosen)) for one in one.log.decisions)
    return {subject: int(count[1]) for subject, count in found if count is not None}


def step_and_exposed(one: Planned) -> tuple[float, float]:
    """µs of a graph as planned, and of these exposed."""
    (said,) = (decision for decision in one.log.decisions if decision.subject == "overlap")
    *_, us = re.findall(r"([\d.e+]+) µs, [\d.e+]+ of", said.reason)
    return float(us), float(re.findall(EXPOSED, said.reason)[-1][0])


def pieces_pay(ranks: int, layers: int, least: float) -> None:
    """Messages that the next product needs at once, or that wait for a product, run behind pieces of it: so much of
    what is exposed without pieces is hidden, and the step is shorter; both by the simulator."""
    limit = {"collectives.memory_limit": "40%"}
    (before, _), (after, backward) = (
        plan_cluster(ranks, HOST, layers, Shape(), {**limit, **more}) for more in ({}, {"collectives.pieces": 0})
    )
    assert not in_pieces(before) and in_pieces(after)
    (old, old_exposed), (new, new_exposed) = map(step_and_exposed, (before, after))
    assert new < old and new_exposed < (1 - least) * old_exposed
    for graph in (after, backward):  # a reason for both outcomes
        cut = in_pieces(graph)
        reasons = {one.subject: one.reason for one in graph.log.decisions if one.chosen == "whole"}
        assert all("exposed" in reason for reason in reasons.values()) and not cut.keys() & reasons.keys()
        assert len(cut) + len(reasons) >= 3
    steps = {step.name for step in after.schedule.steps}
    for name, count in in_pieces(after).items():
        assert {f"{name}_{k}of{count}" for k in range(count)} <= steps and name not in steps


@pytest.mark.nightly
def test_products_of_a_host_hide_their_messages_in_pieces() -> None:
    pieces_pay(HOST, 2, 0.1)


@pytest.mark.nightly
def test_products_of_llama_70b_hide_their_messages_in_pieces() -> None:
    pieces_pay(64, 4, 0.05)


def test_small_products_stay_whole(planned: tuple[int, list[Planned]]) -> None:
    """What nobody asks for is not tried."""
    stays_whole(planned[1], "asks for none")


def test_small_products_that_may_be_cut_stay_whole() -> None:
    """Each piece has its own latency and launch."""
    graphs = plan_cluster(64, HOST, 2, SMALL, {"collectives.memory_limit": "100%", "collectives.pieces": 0})
    stays_whole(graphs, "more: each has its own latency and launch")


def stays_whole(graphs: list[Planned], why: str) -> None:
    """Nothing is cut, and that is on record, with the reason."""
    for one in graphs:
        assert not in_pieces(one) and not any("of" in step.name for step in one.schedule.steps)
        said = [decision.reason for decision in one.log.decisions if decision.chosen == "whole"]
        assert any(why in reason for reason in said), said
