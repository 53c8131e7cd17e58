"""N equal layers, `layers:N`: how the first call of a model grows with its layers, and what equal layers share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .model import Inputs, Model

PREFIX = "layers:"


class _Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.before(x)).unflatten(-1, (3, self.heads, -1)).unbind(2)
        q, k, v = (part.transpose(1, 2) for part in parts)
        found = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(found.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.between(x))))


class _Layers(nn.Module):
    def __init__(self, count: int, width: int, heads: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Layer(width, heads) for _ in range(count))

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        for layer in self.layers:
            x = layer(x)
        return {"hidden": x} if labels is None else {"loss": nn.functional.mse_loss(x.float(), labels.float())}


def equal_layers(name: str) -> Model | None:
    """Returns the model of `layers:N`; None for any other name."""
    count = name.removeprefix(PREFIX)
    if count == name or not count.isdecimal() or int(count) < 1:
        return None

    def sizes(batch: int, small: bool) -> tuple[int, int, int]:
        return (batch, 32, 64) if small else (batch, 512, 512)

    def values(key: str, batch: int, small: bool) -> Inputs:
        return {key: torch.randn(sizes(batch, small))}

    return Model(
        name,
        "layers",
        lambda small: _Layers(int(count), 64 if small else 512, 4 if small else 8),
        lambda batch, small: values("x", batch, small),
        lambda batch, small: values("labels", batch, small),
        batch=4,
        training=4,
    )
