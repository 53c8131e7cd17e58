"""Fully sharded training in which the model gathers its parameters itself, so that the collectives are in the graph.

    torchrun --standalone --nproc-per-node 2 examples/distributed/simple_fsdp.py

Each rank keeps some rows of every weight. The forward gathers a weight where it is used; the gradient of a gather is a
reduce_scatter. The pass `overlap` of litz-collectives starts the gathers early, and merges small ones.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from common import all_gather, job, same_as_eager
from torch import Tensor, nn


class Sharded(nn.Module):
    """A linear layer, of whose weight each rank has a part of the rows."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        whole = torch.randn(out, width, dtype=torch.float64) * width**-0.5  # the same on every rank
        self.part = nn.Parameter(whole.chunk(dist.get_world_size())[dist.get_rank()].clone())

    def forward(self, x: Tensor) -> Tensor:
        weight = all_gather(self.part, 0, dist.group.WORLD)
        return nn.functional.linear(x, weight)


def run(device: torch.device) -> None:
    torch.manual_seed(0)
    layers = [nn.Sequential(Sharded(32, 64), nn.GELU(), Sharded(64, 32)) for _ in range(3)]
    model = nn.Sequential(*layers).to(device)
    torch.manual_seed(dist.get_rank())  # each rank has data of its own
    same_as_eager("simple FSDP", model, torch.randn(16, 32, dtype=torch.float64, device=device))


if __name__ == "__main__":
    with job() as device:
        run(device)
