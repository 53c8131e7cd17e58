"""A mixture of experts with an expert on each rank: tokens go to their expert and come back (all_to_all).

    torchrun --standalone --nproc-per-node 2 examples/distributed/expert_parallel.py

Here as many tokens go to each expert. Where a router decides, each rank first tells the others how many tokens come,
and the sizes of the exchange depend on data (docs/use/dynamic_shapes.md).
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from common import MLP, job, same_as_eager
from torch import Tensor, nn


class Experts(nn.Module):
    """An MLP for the tokens of every rank whose expert is here. Each token is weighed by its gate."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, dist.get_world_size(), bias=False)
        self.expert = MLP(width)

    def exchanged(self, tokens: Tensor) -> Tensor:
        equal = [tokens.shape[0] // dist.get_world_size()] * dist.get_world_size()
        return fc.all_to_all_single_autograd(tokens, equal, equal, dist.group.WORLD)

    def forward(self, x: Tensor) -> Tensor:
        world, width = dist.get_world_size(), x.shape[-1]
        tokens = x.reshape(-1, world, width)  # the token at place n goes to expert n
        share = self.gate(tokens).softmax(-1).diagonal(dim1=1, dim2=2)
        mine = self.exchanged(tokens.transpose(0, 1).reshape(-1, width))
        back = self.exchanged(self.expert(mine)).view(world, -1, width).transpose(0, 1)
        return (back * share[..., None]).reshape(x.shape)


class Layer(nn.Module):
    """A norm and a mixture of experts, added to what comes in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.experts = nn.LayerNorm(width), Experts(width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.experts(self.norm(x))


def run(device: torch.device) -> None:
    torch.manual_seed(dist.get_rank())  # each rank's expert is another
    model = nn.Sequential(Layer(32), Layer(32)).to(device, torch.float64)
    same_as_eager("expert parallel", model, torch.randn(16, 32, dtype=torch.float64, device=device))


if __name__ == "__main__":
    with job() as device:
        run(device)
