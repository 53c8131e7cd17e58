"""Small models whose training steps a CPU runs in a second: what `memory_budget` and `peak_memory` measure there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


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


class Loss(nn.Module):
    """A language model of 2 blocks with its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(4096, 128), nn.Linear(128, 4096)
        self.blocks = nn.Sequential(Block(128, 4), Block(128, 4))

    def forward(self, tokens: Tensor) -> Tensor:
        """Returns the loss where each token is its own label."""
        return F.cross_entropy(self.head(self.blocks(self.table(tokens))).flatten(0, 1), tokens.flatten())


class Gated(nn.Module):
    """A block with root mean square norms, halves of queries and keys that are turned, and a gated perceptron."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, 3 * width, bias=False)
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Returns x with attention and a perceptron added."""
        y = self.first(x)
        q, k, v = (part(y).unflatten(-1, (4, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(_turned(q), _turned(k), v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        y = self.second(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def _turned(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1) * 0.3 + x * 0.7


class Written(nn.Module):
    """Attention that is written out, with dropout of its weights."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.into, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Returns x with attention added."""
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.into(self.norm(x)).chunk(3, -1))
        weights = F.dropout((q @ k.transpose(-1, -2) * 0.2).softmax(-1), 0.1)
        return x + self.out((weights @ v).transpose(1, 2).flatten(2))


class Down(nn.Module):
    """Convolutions that go down two levels and up again."""

    def __init__(self) -> None:
        super().__init__()
        sizes = ((3, 16), (16, 32), (32, 32), (64, 16), (32, 16))
        self.parts = nn.ModuleList(
            nn.Sequential(nn.Conv2d(given, made, 3, padding=1), nn.GroupNorm(4, made), nn.SiLU())
            for given, made in sizes
        )
        self.last = nn.Conv2d(16, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Returns images of the size of x."""
        high, middle, low, up, end = self.parts
        a = high(x)
        b = middle(F.avg_pool2d(a, 2))
        y = up(torch.cat([F.interpolate(low(F.max_pool2d(b, 2)), scale_factor=2), b], 1))
        return self.last(end(torch.cat([F.interpolate(y, scale_factor=2), a], 1)))


def in_groups() -> nn.Module:
    """Returns 3 blocks with a convolution of each channel for itself."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 2, 1)]
    for _ in range(3):
        layers += [nn.Conv2d(16, 64, 1), nn.BatchNorm2d(64), nn.ReLU6()]
        layers += [nn.Conv2d(64, 64, 3, padding=1, groups=64), nn.BatchNorm2d(64), nn.ReLU6()]
        layers += [nn.Conv2d(64, 16, 1), nn.BatchNorm2d(16)]
    return nn.Sequential(*layers)


class Residual(nn.Module):
    """Two convolutions, added to what they are given."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(16, 16, 3, padding=1) for _ in range(2))
        self.norm = nn.GroupNorm(4, 16)

    def forward(self, x: Tensor) -> Tensor:
        """Returns images of the size of x."""
        return F.relu(x + self.second(F.relu(self.norm(self.first(x)))))


def rows() -> nn.Module:
    """Returns three convolutions over rows."""
    first, second = nn.Conv1d(8, 32, 5, padding=2), nn.Conv1d(32, 32, 5, stride=2)
    return nn.Sequential(first, nn.GELU(), second, nn.GELU(), nn.Conv1d(32, 8, 1))


class Regions(nn.Module):
    """Attention in regions of torch.utils.checkpoint. between: what is computed between two of them."""

    def __init__(self, between: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.into, self.between = nn.Linear(64, 192, bias=False), between

    def _mixed(self, x: Tensor) -> Tensor:
        parts = self.into(x.tanh()).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(2)

    def forward(self, x: Tensor) -> Tensor:
        """Returns a tensor of the size of x."""
        for _ in range(4):
            x = self.between(x, checkpoint(self._mixed, x, use_reentrant=False))
        return x


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

MORE: Mapping[str, Small] = {
    "loss of 2 blocks": Small(Loss, (4, 256), 4096),
    "3 gated blocks": Small(lambda: nn.Sequential(*[Gated(128) for _ in range(3)]), (4, 256, 128)),
    "attention written out": Small(lambda: nn.Sequential(Written(128), Written(128)), (2, 256, 128)),
    "convolutions down and up": Small(Down, (4, 3, 64, 64)),
    "convolutions in groups": Small(in_groups, (4, 3, 96, 96)),
    "residual convolutions": Small(lambda: nn.Sequential(Residual(), Residual(), Residual()), (4, 16, 48, 48)),
    "convolutions over rows": Small(rows, (8, 8, 1024)),
    "a bag of embeddings": Small(lambda: nn.Sequential(nn.EmbeddingBag(4096, 64), nn.Linear(64, 64)), (256, 16), 4096),
    "regions": Small(lambda: Regions(lambda x, mixed: mixed), (4, 256, 64)),
    "regions, added": Small(lambda: Regions(lambda x, mixed: x + mixed), (4, 256, 64)),
    "regions, a norm between": Small(lambda: Regions(lambda x, mixed: F.layer_norm(mixed, (64,)).sin()), (4, 256, 64)),
}

__all__ = ["MORE", "SMALL", "Block", "Small"]
