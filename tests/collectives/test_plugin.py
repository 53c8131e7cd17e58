"""The plugin in a compile: estimates of Collectives on a fake process group, the options, the user's own cost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from litz.execution import ExecutionPlan
from litz.ir import Collective, Loop, Wait
from litz.pipeline import make_compiler, plan_schedule, schedule_only
from litz.report.make import make_report
from litz.target import target_of
from litz_collectives import plugin
from litz_collectives.nccl import Message
from litz_collectives.profile import Profile, builtin_profile
from litz_collectives.topology import make_topology
from litz_collectives.traffic import message_of, placed
from litz_plugins import LitzError
from litz_plugins.testing import check_plugin

OPTIONS = ["bucket_bytes", "cost", "memory_limit", "passes", "pieces", "profile", "share_builds", "verify_plan"]
OPTIONS += ["verify_seconds"]
ops = torch.ops._c10d_functional
MODE = FakeTensorMode(allow_non_fake_inputs=True)


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group(backend="fake", rank=0, world_size=8, store=FakeStore())
    yield
    dist.destroy_process_group()


def fake(*size: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    with MODE:
        return torch.empty(size, dtype=dtype, device="cuda")


def plan_of(function: Any, *args: Any, **options: Any) -> ExecutionPlan:
    (found,) = schedule_only(function, args, options or None)
    return plan_schedule(found, make_compiler(None, options or None))


def collective_of(schedule: ExecutionPlan) -> Collective:
    (found,) = (step for step in schedule.steps if isinstance(step, Collective))
    return found


CALLS = {
    "all_reduce": lambda x: ops.all_reduce(x, "sum", "0"),
    "all_gather_into_tensor": lambda x: ops.all_gather_into_tensor(x, 8, "0"),
    "reduce_scatter_tensor": lambda x: ops.reduce_scatter_tensor(x, "sum", 8, "0"),
    "all_to_all_single": lambda x: ops.all_to_all_single(x, [2] * 8, [2] * 8, "0"),
    "broadcast": lambda x: ops.broadcast(x, 0, "0"),
}
BYTES = 16 * 1024 * 2
SENT = {
    "all_reduce": Message("all_reduce", BYTES, 8),
    "all_gather_into_tensor": Message("all_gather", 8 * BYTES, 8),
    "reduce_scatter_tensor": Message("reduce_scatter", BYTES, 8),
    "all_to_all_single": Message("all_to_all", BYTES, 8),
    "broadcast": Message("broadcast", BYTES, 8),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_is_sent(name: str) -> None:
    schedule = plan_of(lambda x: ops.wait_tensor(CALLS[name](x)), fake(16, 1024))
    assert message_of(collective_of(schedule), schedule.program) == SENT[name]


def test_a_coalesced_group_is_one_message() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [ops.wait_tensor(r) for r in ops.all_gather_into_tensor_coalesced([x, y], 8, "0")]

    schedule = plan_of(f, fake(16, 1024), fake(100, dtype=torch.float32))
    assert message_of(collective_of(schedule), schedule.program) == Message("all_gather", 8 * (BYTES + 400), 8)


def test_ranks_of_a_subgroup() -> None:
    half = dist.new_group([0, 2, 4, 6])
    schedule = plan_of(lambda x: ops.wait_tensor(ops.all_reduce(x, "sum", half.group_name)), fake(16, 1024))
    assert collective_of(schedule).ranks == (0, 2, 4, 6)
    assert message_of(collective_of(schedule), schedule.program) == Message("all_reduce", BYTES, 4)


def test_a_group_lies_on_the_nodes_of_its_ranks() -> None:
    """Eight ranks on two nodes of four: every second one, and the first four."""
    topology = make_topology("H100", gpus_per_node=4)
    for ranks, nodes in (([0, 2, 4, 6], 2), ([0, 1, 2, 3], 1), ([0, 4], 2)):
        group = dist.new_group(ranks)
        schedule = plan_of(
            lambda x, group=group: ops.wait_tensor(ops.all_reduce(x, "sum", group.group_name)), fake(16, 1024)
        )
        step = collective_of(schedule)
        message = message_of(step, schedule.program)
        assert message is not None and placed(message, step, topology).nodes == nodes
        cost = plugin.operation_cost(step, schedule.program, Profile(topology))
        assert cost is not None and ("between 2 nodes" in cost.why) == (nodes == 2)


def test_a_permutation_is_one_message() -> None:
    """Each rank sends to the next: one link carries all of it, where an all_to_all would split it between seven."""
    ring = [(rank + 1) % 8 for rank in range(8)]
    schedule = plan_of(lambda x: fc.wait_tensor(fc.permute_tensor(x, ring, dist.group.WORLD)), fake(16384))
    step = collective_of(schedule)
    assert step.target_name == "_c10d_functional.all_to_all_single.default"
    assert message_of(step, schedule.program) == Message("permute", BYTES, 8)
    halves = plan_of(
        lambda x: ops.wait_tensor(ops.all_to_all_single(x, [8, 8, *[0] * 6], [8, 8, *[0] * 6], "0")), fake(16, 1024)
    )
    assert message_of(collective_of(halves), halves.program) == Message("all_to_all", BYTES, 8)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_group_of_one_costs_nothing(name: str, device: str) -> None:
    alone = dist.new_group([0]).group_name
    calls = {
        "all_reduce": lambda x: ops.all_reduce(x, "sum", alone),
        "all_gather_into_tensor": lambda x: ops.all_gather_into_tensor(x, 1, alone),
        "reduce_scatter_tensor": lambda x: ops.reduce_scatter_tensor(x, "sum", 1, alone),
        "all_to_all_single": lambda x: ops.all_to_all_single(x, [16], [16], alone),
        "broadcast": lambda x: ops.broadcast(x, 0, alone),
    }
    with MODE:
        given = torch.empty(16, 1024, device=device)
    schedule = plan_of(lambda x: ops.wait_tensor(calls[name](x)), given)
    step = collective_of(schedule)
    found = schedule.estimates[step.name]
    assert (found.low_us, found.us, found.high_us) == (0, 0, 0) and "group of one" in found.why


def reduced(x: torch.Tensor) -> torch.Tensor:
    return ops.wait_tensor(ops.all_reduce(x.relu(), "sum", "0"))


def test_estimates_of_the_three_kinds_of_steps() -> None:
    schedule = plan_of(reduced, fake(16, 1024))
    for step in schedule.steps:
        estimate = schedule.estimates[step.name]
        if isinstance(step, Wait):
            assert estimate.us == 0
        elif isinstance(step, Collective):
            assert 5 < estimate.low_us < estimate.us < estimate.high_us < 100
        else:
            assert "communication" not in estimate.why


def test_a_profile_as_option(tmp_path: Path) -> None:
    file = tmp_path / "slow.json"
    file.write_text(Profile(make_topology("A100", gpus_per_node=1, network_gb_s=1.0)).dumps())
    here, there = (plan_of(reduced, fake(4096, 1024), **o) for o in ({}, {"collectives.profile": file}))
    name = collective_of(here).name
    assert there.estimates[name].us > 5 * here.estimates[name].us
    assert "between 8 nodes" in there.estimates[name].why


def seed_costs(operation: Any, device: Any, program: Any) -> float | None:
    if isinstance(operation, Collective):
        return 100.0
    return 0.0 if isinstance(operation, Wait) else 1.0


def test_the_users_cost_function(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    import types

    module = types.ModuleType("my_costs")
    module.seed_costs = seed_costs  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_costs", module)
    schedule = plan_of(reduced, fake(16, 1024), **{"collectives.cost": "my_costs:seed_costs"})
    assert [schedule.estimates[step.name].us for step in schedule.steps] == [1.0, 100.0, 0.0]
    assert schedule.estimates[collective_of(schedule).name].why == "by my_costs:seed_costs"


@pytest.mark.parametrize("name", ["no_such_module:f", "math:no_such", "math", "math:pi"])
def test_a_cost_function_that_is_none(name: str) -> None:
    with pytest.raises(LitzError, match=r"collectives\.cost"):
        plugin.user_estimate(name, None, target_of("cuda"), None)


def test_what_it_cannot_know_it_leaves_to_others() -> None:
    schedule = plan_of(reduced, fake(16, 1024))
    operation = collective_of(schedule)
    assert plugin.operation_cost(operation, schedule.program, builtin_profile()) is not None
    unknown = Collective(operation.name, operation.device, operation.target, operation.args, outputs=operation.outputs)
    assert plugin.operation_cost(unknown, schedule.program, builtin_profile()) is None, "its group is not known"
    (loop,) = (o for o in schedule.program.operations if isinstance(o, Loop))
    assert plugin.litz_estimate_runtime(loop, target_of("cuda"), schedule.program, None) is None


def test_no_gpus_links_stand_in_for_a_cpus(tmp_path: Path) -> None:
    """gloo between CPUs is not priced by the model of NCCL, unless the user names a profile."""
    schedule = plan_of(reduced, fake(16, 1024))
    operation, cpu = collective_of(schedule), target_of("cpu")
    assert plugin.litz_estimate_runtime(operation, cpu, schedule.program, None) is None
    (tmp_path / "p.json").write_text(builtin_profile().dumps())
    named = {"collectives.profile": tmp_path / "p.json"}
    priced = plugin.litz_estimate_runtime(operation, cpu, schedule.program, named)
    assert priced is not None and priced.us > 1.0


def test_the_plugin_is_well_formed() -> None:
    found = check_plugin(plugin, name="collectives")
    assert set(found.options) == {f"collectives.{name}" for name in OPTIONS}


def test_what_a_report_says_is_exposed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collective that is waited for at once is exposed in full; one beside a large matrix product is not. The links
    are those of the built-in profile: the machine that runs the test may have a single GPU."""
    monkeypatch.setattr(plugin, "profile_of", lambda gpu: builtin_profile())

    def at_once(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(ops.wait_tensor(ops.all_reduce(x * 2, "sum", "0")))

    def beside(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        started = ops.all_reduce(x * 2, "sum", "0")
        product = x @ x
        return ops.wait_tensor(started), product

    for function, exposed in ((at_once, True), (beside, False)):
        schedule = plan_of(function, fake(8192, 8192), **{"collectives.passes": ["raise_comms", "sink_waits"]})
        (row,) = make_report(None, schedule).to_json()["communication"]
        assert row["step"] == collective_of(schedule).name and row["us"] > 100
        assert row["exposed_us"] == pytest.approx(row["us"] if exposed else 0.0)


P2P = {
    "isend": lambda x: ops.wait_tensor(ops.isend(x * 2, 1, 0, "0")),
    "irecv": lambda x: ops.wait_tensor(ops.irecv(x * 2, 1, 0, "0")),
    "batch_p2p_ops": lambda x: ops.batch_p2p_ops(["isend"], [1], [0], [x * 2], "0"),
}


@pytest.mark.skipif(not hasattr(ops, "isend"), reason="this torch has no functional point-to-point ops")
@pytest.mark.parametrize("name", P2P)
def test_messages_from_rank_to_rank_are_refused(name: str) -> None:
    """An isend that nobody waits for was dropped, and the other rank waited for it for ever."""
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="enable_p2p_compilation"):
        torch.compile(P2P[name], backend="litz")(torch.ones(4))
