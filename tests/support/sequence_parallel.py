"""A tensor parallel layer of this rank's, with the sequence in parts between the products, and a step of it."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
import torch.nn.functional as F
from torch import Tensor, nn

# torch 2.13 gave these new names, and warns of the old ones.
gather = getattr(fc, "all_gather_single_autograd", None) or fc.all_gather_tensor_autograd
scatter = getattr(fc, "reduce_scatter_single_autograd", None) or fc.reduce_scatter_tensor_autograd
WORLD = 2


class Layer(nn.Module):
    """Tensor parallel with the sequence in parts between the products; this rank's part of each weight."""

    def __init__(self, width: int, inner: int, bias: bool, rank: int, dtype: torch.dtype) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)

        def made(*size: int) -> Tensor:
            return torch.randn(*size, generator=generator, dtype=torch.float64) / 3

        up, gate, down = made(inner, width), made(inner, width), made(width, inner)
        offset = made(inner)
        self.up, self.gate, self.down = (
            nn.Parameter(whole.chunk(WORLD, dim)[rank].to(dtype)) for whole, dim in ((up, 0), (gate, 0), (down, 1))
        )
        self.bias = nn.Parameter(offset.chunk(WORLD)[rank].to(dtype)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        whole = gather(torch.tanh(x), 0, dist.group.WORLD)
        found = F.linear(whole, self.up, self.bias) * torch.sigmoid(F.linear(whole, self.gate))
        return x + scatter(F.linear(found, self.down), "sum", 0, dist.group.WORLD)


def step(run: Callable[..., Tensor], model: nn.Module, x: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    model.zero_grad(set_to_none=True)
    found = run(x)
    found.square().sum().backward()
    return [found.detach(), x.grad, *(p.grad.clone() for p in model.parameters())]  # type: ignore[list-item, union-attr]
