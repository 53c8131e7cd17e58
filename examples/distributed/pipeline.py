"""A model in stages, one on each rank, through which microbatches go one behind the other (distributed.pipelining).

    torchrun --standalone --nproc-per-node 2 examples/distributed/pipeline.py

Each stage is compiled by itself. What a stage sends to the next are messages between two ranks (isend and irecv), which
stand between the compiled graphs.
"""

from __future__ import annotations

import warnings

import torch
import torch.distributed as dist
from common import Block, job, report
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

MICROBATCHES = 4


def step(stage: nn.Module, owner: nn.Module, given: Tensor, target: Tensor) -> list[Tensor]:
    """A training step of this rank's stage: its losses, on the last rank, and its gradients."""
    rank, world = dist.get_rank(), dist.get_world_size()
    owner.zero_grad(set_to_none=True)
    place = PipelineStage(stage, rank, world, given.device)
    schedule = ScheduleGPipe(place, MICROBATCHES, loss_fn=nn.functional.mse_loss)
    losses: list[Tensor] = []
    if rank == 0:
        schedule.step(given)
    elif rank == world - 1:
        schedule.step(target=target, losses=losses)
    else:
        schedule.step()
    return [loss.detach() for loss in losses] + [p.grad.clone() for p in owner.parameters() if p.grad is not None]


def run(device: torch.device) -> None:
    torch.manual_seed(0)
    stages = [nn.Sequential(Block(32), Block(32)) for _ in range(dist.get_world_size())]
    stage = stages[dist.get_rank()].to(device, torch.float64)
    given, target = (torch.randn(16, 32, dtype=torch.float64).to(device) for _ in range(2))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning)  # torch's, about what it copies
        expected = step(stage, stage, given, target)
        found = step(torch.compile(stage, backend="litz"), stage, given, target)
    assert len(found) == len(expected) > 1
    for mine, eager in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, eager, rtol=1e-9, atol=1e-11)
    report("pipeline", f"{len(found)} gradients as eager's")


if __name__ == "__main__":
    with job() as device:
        run(device)
