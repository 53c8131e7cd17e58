"""Small models whose training steps a CPU runs in a second: what `memory_budget` and `peak_memory` measure there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """A block of a transformer. dropout: the share that is dropped of what each half adds."""

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads, self.dropout = heads, dropout

    def forward(self, x: Tensor) -> Tensor:
        """Returns x with attention and a perceptron added."""
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.into(self.first(x)).chunk(3, -1)
        )
        x = x + self._drop(self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)))
        return x + self._drop(self.down(F.gelu(self.up(self.second(x)))))

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout) if self.dropout else x


def perceptron() -> nn.Module:
    """Returns 8 layers of two products each."""
    return nn.Sequential(*[nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)) for _ in range(8)])


def transformer() -> nn.Module:
    """Returns 4 blocks."""
    return nn.Sequential(*[Block(128, 4) for _ in range(4)])


def images() -> nn.Module:
    """Returns 6 convolutions with batch norm."""
    layers: list[nn.Module] = []
    for channels in (3, 16, 16, 16, 16, 16):
        layers += [nn.Conv2d(channels, 16, 3, padding=1), nn.BatchNorm2d(16), nn.SiLU()]
    return nn.Sequential(*layers)


def language() -> nn.Module:
    """Returns a table of embeddings, 2 blocks with dropout, and scores of all tokens."""
    return nn.Sequential(nn.Embedding(2048, 128), Block(128, 4, 0.1), Block(128, 4, 0.1), nn.Linear(128, 2048))


@dataclass(frozen=True)
class Small:
    """A model and what it is called with. make: returns the model. size: of its input. tokens: how many there are, of
    which the input is made; 0 where the input is numbers."""

    make: Callable[[], nn.Module]
    size: tuple[int, ...]
    tokens: int = 0

    def input(self) -> Tensor:
        """Returns a batch."""
        return torch.randint(0, self.tokens, self.size) if self.tokens else torch.randn(self.size)


SMALL: Mapping[str, Small] = {
    "perceptron, 8 layers": Small(perceptron, (1024, 256)),
    "transformer, 4 blocks": Small(transformer, (4, 256, 128)),
    "6 convolutions with batch norm": Small(images, (8, 3, 64, 64)),
    "embedding, 2 blocks, dropout": Small(language, (4, 256), 2048),
}

__all__ = ["SMALL", "Block", "Small"]
