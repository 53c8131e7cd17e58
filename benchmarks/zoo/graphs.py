"""Graph networks: messages along edges, summed where they arrive."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .model import Inputs, Model, with_loss


class Layer(nn.Module):
    """Messages of both ends of an edge; their mean and maximum go to the node at its goal."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.message = nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, width))
        self.update = nn.Sequential(nn.Linear(3 * width, width), nn.SiLU(), nn.Linear(width, width))
        self.norm = nn.LayerNorm(width)

    def forward(self, nodes: Tensor, source: Tensor, goal: Tensor, degree: Tensor) -> Tensor:
        messages = self.message(torch.cat([nodes[source], nodes[goal]], -1))
        mean = torch.zeros_like(nodes).index_add(0, goal, messages) / degree
        where = goal[:, None].expand_as(messages)
        most = torch.zeros_like(nodes).scatter_reduce(0, where, messages, "amax")
        return self.norm(nodes + self.update(torch.cat([nodes, mean, most], -1)))


class Attention(nn.Module):
    """Graph attention (Veličković et al., 2018): a softmax over the edges into a node."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.linear = heads, nn.Linear(width, width)
        self.here, self.there = (nn.Parameter(torch.randn(heads, width // heads) * 0.1) for _ in range(2))

    def forward(self, nodes: Tensor, source: Tensor, goal: Tensor, degree: Tensor) -> Tensor:
        values = self.linear(nodes).unflatten(-1, (self.heads, -1))
        score = (values * self.here).sum(-1)[goal] + (values * self.there).sum(-1)[source]
        weight = F.leaky_relu(score, 0.2).clamp(max=20).exp()
        total = weight.new_zeros(nodes.shape[0], self.heads).index_add(0, goal, weight)
        weight = weight / total[goal].clamp(min=1e-6)
        mixed = torch.zeros_like(values).index_add(0, goal, values[source] * weight[..., None])
        return F.elu(mixed.flatten(1)) + nodes


class Network(nn.Module):
    """x (nodes, 64), edges (2, edges): a number for each node."""

    def __init__(self, layer: type[nn.Module], width: int, depth: int) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(64, width), nn.Linear(width, 1)
        self.layers = nn.ModuleList(layer(width) for _ in range(depth))

    def forward(self, x: Tensor, edges: Tensor, target: Tensor | None = None) -> dict[str, Tensor]:
        source, goal = edges[0], edges[1]
        ones = torch.ones_like(goal, dtype=x.dtype)
        degree = x.new_zeros(x.shape[0]).index_add(0, goal, ones).clamp(min=1)[:, None]
        nodes = self.enter(x)
        for layer in self.layers:
            nodes = layer(nodes, source, goal, degree)
        out = self.leave(nodes)[:, 0]
        return with_loss({"out": out}, lambda: F.mse_loss(out, target), target)


_NODES, _SMALL_NODES = 2000, 20
"""Of each graph of a batch; ten times as many edges."""


def _inputs(batch: int, tiny: bool) -> Inputs:
    nodes = batch * (_SMALL_NODES if tiny else _NODES)
    return {"x": torch.randn(nodes, 64), "edges": torch.randint(0, nodes, (2, 10 * nodes))}


def _targets(batch: int, tiny: bool) -> Inputs:
    return {"target": torch.randn(batch * (_SMALL_NODES if tiny else _NODES))}


def _network(name: str, layer: type[nn.Module]) -> Model:
    return Model(
        name, "graph network", lambda tiny: Network(layer, 32 if tiny else 128, 2 if tiny else 4), _inputs, _targets,
        16, 16, half=False,
    )  # fmt: skip


MODELS = (_network("graph_messages", Layer), _network("graph_attention", Attention))
