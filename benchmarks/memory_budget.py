"""What a memory budget costs and gives: seconds of the processor to compile a training step without and with a budget,
and the planned peaks of eager, of litz, and of the smallest budget that is met.

    python -m benchmarks.memory_budget
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from litz import report as reports


class Block(nn.Module):
    """A block of a transformer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        """Returns x with attention and a perceptron added."""
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.into(self.first(x)).chunk(3, -1)
        )
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.second(x))))


def _perceptron() -> nn.Module:
    return nn.Sequential(*[nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)) for _ in range(8)])


def _transformer() -> nn.Module:
    return nn.Sequential(*[Block(128, 4) for _ in range(4)])


def _images() -> nn.Module:
    layers: list[nn.Module] = []
    for channels in (3, 16, 16, 16, 16, 16):
        layers += [nn.Conv2d(channels, 16, 3, padding=1), nn.BatchNorm2d(16), nn.SiLU()]
    return nn.Sequential(*layers)


MODELS: Mapping[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "perceptron, 8 layers": (_perceptron, (1024, 256)),
    "transformer, 4 blocks": (_transformer, (4, 256, 128)),
    "6 convolutions with batch norm": (_images, (8, 3, 64, 64)),
}


def compiled(model: nn.Module, x: Tensor, budget: str | None) -> tuple[float, Mapping[str, Any]]:
    """Returns (seconds of the processor for the compile and the first step, what the report says of memory)."""
    torch._dynamo.reset()
    options: dict[str, Any] = {"graph_cache": False, "memory.budget": budget}
    begun = time.process_time()
    with reports.collect() as found:
        torch.compile(model, backend="litz", options=options)(x).square().sum().backward()
    return time.process_time() - begun, json.loads(found[0].attachments["memory.json"])


def main() -> None:
    """Prints a row for each model."""
    warm = nn.Linear(8, 8)
    compiled(warm, torch.randn(4, 8), None)
    print("| model | without (s) | with (s) | candidates | eager (MiB) | litz (MiB) | least (MiB) |")
    print("|---|---|---|---|---|---|---|")
    for name, (make, size) in MODELS.items():
        model, x = make(), torch.randn(size)
        without, facts = compiled(model, x, None)
        taken, found = compiled(model, x, "100GiB")
        rows = found["candidates"]
        peaks = [facts["eager_bytes"], rows[0]["bytes"], min(row["bytes"] for row in rows)]
        cells = [name, f"{without:.1f}", f"{taken:.1f}", str(len(rows)), *(f"{peak / 2**20:.1f}" for peak in peaks)]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
