"""Recommendation: many tables of embeddings, their products in pairs (DLRM: Naumov et al., 2019)."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .model import Inputs, Model, with_loss


def _mlp(*widths: int) -> nn.Sequential:
    layers = [(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise(widths)]
    return nn.Sequential(*(layer for pair in layers for layer in pair))


class Dlrm(nn.Module):
    """dense (batch, 13), categories (batch, tables): the logit of a click, (batch,)."""

    def __init__(self, tables: int, rows: int, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = _mlp(13, 512, 256, width)
        pairs = torch.tril_indices(tables + 1, tables + 1, -1)
        self.register_buffer("first", pairs[0])
        self.register_buffer("second", pairs[1])
        self.top = nn.Sequential(_mlp(width + pairs.shape[1], 1024, 1024, 512, 256), nn.Linear(256, 1))

    def forward(self, dense: Tensor, categories: Tensor, clicked: Tensor | None = None) -> dict[str, Tensor]:
        low = self.bottom(dense)
        found = [table(categories[:, number]) for number, table in enumerate(self.tables)]
        features = torch.stack([low, *found], 1)
        products = torch.bmm(features, features.transpose(1, 2))[:, self.first, self.second]
        logit = self.top(torch.cat([low, products], 1))[:, 0]
        return with_loss(
            {"logit": logit}, lambda: F.binary_cross_entropy_with_logits(logit, clicked), clicked
        )  # fmt: skip


def _inputs(batch: int, tiny: bool) -> Inputs:
    tables, rows = (4, 50) if tiny else (26, 100_000)
    return {"dense": torch.rand(batch, 13), "categories": torch.randint(0, rows, (batch, tables))}


MODELS = (
    Model(
        "dlrm", "recommendation", lambda tiny: Dlrm(4, 50, 16) if tiny else Dlrm(26, 100_000, 128), _inputs,
        lambda batch, tiny: {"clicked": torch.randint(0, 2, (batch,)).float()}, 2048, 2048,
    ),
)  # fmt: skip
