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


@pytest.fixture(scope="module", params=[64, 1024])
def planned(request: pytest.FixtureRequest) -> tuple[int, list[Planned]]:
    ranks = request.param
    return ranks, plan_cluster(ranks, HOST, 2, SMALL, {"collectives.memory_limit": "100%"})


@pytest.mark.ci_cases("1024")
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
