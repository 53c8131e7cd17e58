"""Recurrent models: cells in a loop, which a compiler unrolls."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .model import Inputs, Model, classes, with_loss


class Gru(nn.Module):
    """One layer (Cho et al., 2014): x (batch, time, width) to states of the same shape."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.enter, self.back = nn.Linear(width, 3 * width), nn.Linear(width, 3 * width)

    def forward(self, x: Tensor) -> Tensor:
        inputs, state, states = self.enter(x), torch.zeros_like(x[:, 0]), []
        for at in range(x.shape[1]):
            reset, update, new = inputs[:, at].chunk(3, -1)
            old_reset, old_update, old = self.back(state).chunk(3, -1)
            keep = torch.sigmoid(update + old_update)
            fresh = torch.tanh(new + torch.sigmoid(reset + old_reset) * old)
            state = fresh + keep * (state - fresh)
            states.append(state)
        return torch.stack(states, 1)


class Lstm(nn.Module):
    """One layer with layer norms in the cell (Ba et al., 2016), which no library call has."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.enter, self.back = nn.Linear(width, 4 * width), nn.Linear(width, 4 * width, bias=False)
        self.norm, self.cell_norm = nn.LayerNorm(4 * width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        inputs, states = self.enter(x), []
        state = cell = torch.zeros_like(x[:, 0])
        for at in range(x.shape[1]):
            keep, take, new, out = self.norm(inputs[:, at] + self.back(state)).chunk(4, -1)
            cell = torch.sigmoid(keep) * cell + torch.sigmoid(take) * torch.tanh(new)
            state = torch.sigmoid(out) * torch.tanh(self.cell_norm(cell))
            states.append(state)
        return torch.stack(states, 1)


class Reader(nn.Module):
    """Tokens (batch, time) through two layers to one of ten classes."""

    def __init__(self, layer: type[nn.Module], width: int) -> None:
        super().__init__()
        self.embedding, self.leave = nn.Embedding(1000, width), nn.Linear(width, 10)
        self.layers = nn.Sequential(layer(width), layer(width))

    def forward(self, tokens: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.leave(self.layers(self.embedding(tokens))[:, -1])
        return with_loss({"logits": logits}, lambda: F.cross_entropy(logits, labels), labels)


def _inputs(batch: int, tiny: bool) -> Inputs:
    return {"tokens": torch.randint(0, 1000, (batch, 6 if tiny else 32))}


MODELS = tuple(
    Model(
        name, "recurrent", lambda tiny, layer=layer: Reader(layer, 32 if tiny else 512), _inputs, classes(10), 64, 64,
    )
    for name, layer in (("gru", Gru), ("lstm_norm", Lstm))
)  # fmt: skip
