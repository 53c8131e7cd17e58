"""Attention of a sequence that no rank has as a whole (context parallel).

    torchrun --standalone --nproc-per-node 2 examples/distributed/context_parallel.py

Each rank has a part of the sequence: queries, keys and values. Keys and values are gathered, queries stay. The result
is compared with eager's, and with attention of the whole sequence in one process.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from common import all_gather, job, report, same_as_eager
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

HEADS, WIDTH, TOKENS = 4, 32, 16


class Attention(nn.Module):
    """Causal attention of the part of a sequence that begins at `start`."""

    def __init__(self, start: int) -> None:
        super().__init__()
        self.inner, self.out, self.start = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), start

    def gathered(self, x: Tensor) -> Tensor:
        return all_gather(x, 1, dist.group.WORLD)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (part.unflatten(-1, (HEADS, -1)) for part in self.inner(x).chunk(3, -1))
        key, value = self.gathered(key), self.gathered(value)
        rows = torch.arange(x.shape[1], device=x.device)[:, None] + self.start
        mask = rows >= torch.arange(key.shape[1], device=x.device)
        heads = (part.transpose(1, 2) for part in (query, key, value))
        found = scaled_dot_product_attention(*heads, attn_mask=mask)
        return self.out(found.transpose(1, 2).flatten(2))


def run(device: torch.device) -> None:
    torch.manual_seed(0)
    rank, world = dist.get_rank(), dist.get_world_size()
    model = Attention(rank * TOKENS // world).to(device, torch.float64)
    whole = torch.randn(2, TOKENS, WIDTH, dtype=torch.float64).to(device)
    found, *_ = same_as_eager("context parallel", model, whole.chunk(world, 1)[rank].contiguous())

    alone = Attention(0).to(device, torch.float64)
    alone.load_state_dict(model.state_dict())
    alone.gathered = lambda x: x  # type: ignore[method-assign]
    torch.testing.assert_close(found, alone(whole).chunk(world, 1)[rank], rtol=1e-9, atol=1e-11)
    report("context parallel", "as one process has it")


if __name__ == "__main__":
    with job() as device:
        run(device)
