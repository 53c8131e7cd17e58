"""What strict numbers cost: processor time of eager, litz and litz in strict mode, in turns in one process.

    python -m benchmarks.strict_cost [MODEL ...]

In: models of `MODELS`, with random weights. Out: a Markdown table: milliseconds of the processor for one call or one
training step, the least of several rounds, and whether results are eager's bit for bit. Processor time counts what the
threads of this process work, whatever else the machine does.
"""

from __future__ import annotations

import argparse
import copy
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

STRICT = {"numerics.mode": "strict"}
ROUNDS = 7


class Block(nn.Module):
    """A layer of a transformer: norm, attention, norm, a gated MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.first, self.second, self.heads = nn.LayerNorm(width), nn.LayerNorm(width), heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.gate, self.down = (
            nn.Linear(width, 4 * width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Returns (batch, length, width) of the same."""
        batch, length, width = x.shape
        parts = self.qkv(self.first(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(*parts.unbind(0), is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        inner = self.second(x)
        return x + self.down(nn.functional.silu(self.gate(inner)) * self.up(inner))


def _convolutions() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, padding=1)]
    for _ in range(4):
        layers += [nn.BatchNorm2d(32), nn.Hardswish(), nn.Conv2d(32, 32, 3, padding=1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


def _clicks() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1))


class Elementwise(nn.Module):
    """Arithmetic that is exact, in a row: a loss with a mask, as detectors have."""

    def forward(self, x: Tensor) -> Tensor:
        """Returns a tensor of the size of x."""
        moved = (x * 2.0 - 1.0).clamp(-3, 3)
        inside = torch.where(moved.abs() < 1.0, moved * moved * 0.5, moved.abs() - 0.5)
        return inside.masked_fill(x < -2, 0.0) / 3.0 + torch.relu(x)


MODELS: Mapping[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "transformer": (lambda: nn.Sequential(*(Block(256, 8) for _ in range(4))), lambda: torch.randn(8, 128, 256)),
    "convolutions": (_convolutions, lambda: torch.randn(16, 3, 64, 64)),
    "clicks": (_clicks, lambda: torch.randn(512, 256)),
    "elementwise": (Elementwise, lambda: torch.randn(2048, 1024)),
}


def _step(model: nn.Module, function: Callable[..., Any], x: Tensor, training: bool) -> list[Tensor]:
    """The results of one call, with the gradients where it is a training step."""
    if not training:
        with torch.no_grad():
            return [function(x)]
    given = x.clone().requires_grad_()
    result = function(given)
    wanted = [given, *model.parameters()]
    return [result, *torch.autograd.grad(result.square().sum(), wanted)]


def measure(name: str, training: bool) -> str:
    """Returns a row of the table."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    make, inputs = MODELS[name]
    model, x = make().train(training), inputs()
    models = {peer: copy.deepcopy(model) for peer in ("eager", "litz", "strict")}
    functions: dict[str, Callable[..., Any]] = {
        "eager": models["eager"],
        "litz": torch.compile(models["litz"], backend="litz"),
        "strict": torch.compile(models["strict"], backend="litz", options=STRICT),
    }
    results = {peer: _step(models[peer], function, x, training) for peer, function in functions.items()}
    same = all(map(torch.equal, results["strict"], results["eager"]))
    spent = {peer: [] for peer in functions}
    for _ in range(ROUNDS):
        for peer, function in functions.items():
            _step(models[peer], function, x, training)
            begun = time.process_time()
            for _ in range(3):
                _step(models[peer], function, x, training)
            spent[peer].append((time.process_time() - begun) / 3)
    least = {peer: 1000 * min(times) for peer, times in spent.items()}
    task = "training" if training else "inference"
    shares = f"{least['strict'] / least['eager']:.2f} | {least['strict'] / least['litz']:.2f}"
    times = " | ".join(f"{least[peer]:.1f}" for peer in functions)
    return f"| {name} | {task} | {times} | {shares} | {'yes' if same else 'NO'} |"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    warnings.filterwarnings("ignore")
    print("| model | task | eager | litz | strict | strict / eager | strict / litz | equal to eager |")
    print("|---|---|---|---|---|---|---|---|")
    for name in parser.parse_args().models:
        for training in (False, True):
            print(measure(name, training), flush=True)


if __name__ == "__main__":
    main()
