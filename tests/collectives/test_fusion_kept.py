"""Overlap takes no fusion away: what it moves are kernels that fusion has made.

The graph is of the kind of pytorch/pytorch#186084: pointwise work that fuses stands on both sides of collectives that a
pass moves. A scheduler that orders by dependences between operations, before it fuses, keeps such work apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives  # defines the ops
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from litz.ir import Collective, Wait
from litz.pipeline import schedule_only
from litz.report.log import Log
from litz.schedule.schedule import Kernel, Schedule

ops = torch.ops._c10d_functional
PASSES: dict[str, list[str]] = {
    "overlap": ["overlap"],
    "sink_waits": ["sink_waits"],
    "raise_comms": ["raise_comms"],
    "all rules": ["sink_waits", "raise_comms", "reorder_compute_for_overlap"],
}


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    torch._dynamo.reset()
    dist.init_process_group(backend="fake", rank=0, world_size=8, store=FakeStore())
    yield
    dist.destroy_process_group()


def gathered(shard: torch.Tensor) -> torch.Tensor:
    return ops.wait_tensor(ops.all_gather_into_tensor(shard.bfloat16(), 8, "0"))


def layers(x: torch.Tensor, *shards: torch.Tensor) -> torch.Tensor:
    """Gathered weights, casts before the gathers, and a norm, an activation and an addition after each product."""
    for up, down in zip(shards[::2], shards[1::2], strict=True):
        scale = x.float().square().mean(-1, keepdim=True).add(1e-5).rsqrt()
        y = (x * scale).bfloat16()
        hidden = torch.nn.functional.silu(y @ gathered(up).t()) * 2
        x = x + (hidden @ gathered(down).t()).sin()
    return x


def gradients(x: torch.Tensor, *shards: torch.Tensor) -> list[torch.Tensor]:
    """Products whose results are scaled, reduced, and then used by an optimizer's step: the other end of a graph."""
    found = []
    for shard in shards:
        grad = (x.t() @ x) * 0.5
        mean = ops.wait_tensor(ops.reduce_scatter_tensor(grad.float() / 8, "sum", 8, "0"))
        found.append(shard - 0.1 * mean * mean.square().add(1e-8).rsqrt())
        x = x.cos()
    return found


PROGRAMS = {"layers": layers, "gradients": gradients}


def made(name: str, passes: list[str], device: str) -> tuple[Schedule, Log]:
    torch._dynamo.reset()
    log = Log()
    with FakeTensorMode(allow_non_fake_inputs=True):
        x = torch.empty(4096, 2048, dtype=torch.bfloat16, device=device)
        shards = [torch.empty(256, 2048, device=device) for _ in range(4)]
    options: dict[str, Any] = {"collectives.passes": passes, "collectives.memory_limit": "100%"}
    (schedule,) = schedule_only(PROGRAMS[name], (x, *shards), options, log=log)
    return schedule, log


def fused(schedule: Schedule) -> set[frozenset[str]]:
    """What became of each operation that computes: those of each kernel."""
    computing = [step for step in schedule.steps if not isinstance(step, (Collective, Wait))]
    return {frozenset(step.fused) if isinstance(step, Kernel) else frozenset({step.name}) for step in computing}


def order(schedule: Schedule) -> list[str]:
    return [step.name for step in schedule.steps]


@pytest.mark.ci_cases("layers-cuda", "gradients-cpu")
@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_no_pass_takes_a_fusion_away(name: str, device: str) -> None:
    alone, _ = made(name, [], device)
    kernels = fused(alone)
    assert any(len(operations) > 1 for operations in kernels), "there is something to lose"
    moved = []
    for passes, given in PASSES.items():
        schedule, _ = made(name, given, device)
        now = fused(schedule)
        lost = [one for one in kernels if not any(one <= other for other in now)]  # what is launched with more is kept
        assert not lost, f"{passes}: {lost} were one kernel each"
        moved += [passes] if order(schedule) != order(alone) else []
    assert "all rules" in moved, "and something was moved"
    assert device == "cpu" or "overlap" in moved


def test_what_is_kept_apart_for_communication_is_on_record() -> None:
    """Two small kernels of equal ranges would share a launch, if one did not have to wait for what is sent; fused, the
    first could not run under the communication. The record says so, with what the two take apart."""

    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        sent = ops.all_reduce(x, "sum", "0")
        return y.sin(), ops.wait_tensor(sent).cos()

    log = Log()
    with FakeTensorMode(allow_non_fake_inputs=True):
        given = [torch.empty(64, device="cuda") for _ in range(2)]
    (schedule,) = schedule_only(program, given, {"collectives.passes": []}, log=log)
    assert [len(kernel.fused) for kernel in schedule.kernels] == [1, 1]
    (found,) = (one for one in log.decisions if "would wait for" in one.reason)
    assert found.chosen == "kept apart" and found.plugin == "core"
    assert found.considered[0][0] == "apart" and found.considered[0][1] > 0
    torch._dynamo.reset()
    log = Log()
    (schedule,) = schedule_only(lambda x, y: (y.sin(), x.cos()), given, {}, log=log)
    assert [len(kernel.fused) for kernel in schedule.kernels] == [2], "without communication they are one"
    assert not [one for one in log.decisions if "would wait for" in one.reason]
