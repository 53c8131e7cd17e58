"""A model, compiled and run: python second_process.py CASE...; prints JSON of each case. A process of its own, as what
is looked at is what the one before has left in the caches."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

import litz.report


class Block(nn.Module):
    """Layers, an average that each call moves, and a result that a user's code writes."""

    def __init__(self, width: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, width))
        self.register_buffer("average", torch.zeros(width))
        self.to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        found = torch.softmax(self.layers(x) + x, -1)
        self.average.mul_(0.9).add_(found.detach().mean(0), alpha=0.1)
        return found * self.average


CASES: dict[str, dict[str, Any]] = {
    "inference": {},
    "training": {"train": True},
    "training on a GPU": {"train": True, "device": "cuda"},
    "retained": {"train": True, "retain": True},
    "offloaded": {"train": True, "offload": True},
    "dynamic": {"train": True, "dynamic": True},
    "longer": {"train": True, "dynamic": True, "rows": 11},
    "reduce-overhead": {"train": True, "mode": "reduce-overhead"},
    "precise": {"options": {"fallback_random": True}},
    "half": {"dtype": torch.bfloat16},
    "wider": {"width": 24},
}


def step(model: nn.Module, x: Tensor, train: bool, retain: bool, run: Callable[..., Any]) -> list[Tensor]:
    with torch.set_grad_enabled(train):
        found = run(x)
    if train:
        loss = (found * found).sum()
        loss.backward(retain_graph=retain)
        if retain:
            loss.backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    return [tensor.detach().double() for tensor in (found, *model.buffers(), *grads)]


def main(case: str) -> dict[str, Any]:
    """What became of a case, and its error against float64."""
    known = CASES[case]
    train, retain, dtype = known.get("train", False), known.get("retain", False), known.get("dtype", torch.float32)
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    width = known.get("width", 16)
    model, x = Block(width, dtype), torch.randn(known.get("rows", 7), width, dtype=dtype)
    device = known.get("device", "cpu")
    model, x, exact = model.to(device), x.to(device), Block(width).double().to(device)
    exact.load_state_dict(model.state_dict())
    settings = {name: known[name] for name in ("mode", "options", "dynamic") if name in known}
    compiled = torch.compile(model, backend="litz", **settings)
    with litz.report.collect() as reports:
        if known.get("offload"):
            with torch.autograd.graph.save_on_cpu():
                found = step(model, x, train, retain, compiled)
        else:
            found = step(model, x, train, retain, compiled)
    expected = step(exact, x.double(), train, retain, exact)
    error = max(float((a - b).norm() / (b.norm() + 1e-30)) for a, b in zip(found, expected, strict=True))
    kinds = [report.graph_cache for report in reports]
    return {"hits": counters["aot_autograd"]["autograd_cache_hit"], "graphs": kinds, "error": error}


if __name__ == "__main__":
    print(json.dumps({case: main(case) for case in sys.argv[1:]}))
