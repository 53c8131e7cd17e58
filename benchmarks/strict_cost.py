"""What numbers that one can rely on cost: processor time of eager, litz, and litz in each way of `WAYS`.

    python -m benchmarks.strict_cost [MODEL ...] [--rounds N] [--json FILE]

In: models of `MODELS`, with random weights, in turns in one process. Out: a Markdown table: milliseconds of the
processor for one call or one training step, the least of several rounds, and whether strict results are eager's bit for
bit. Processor time counts what the threads of this process work, whatever else the machine does.
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

from benchmarks.record import add_option, recorder

WAYS: Mapping[str, dict[str, Any]] = {
    "litz": {},
    "litz, strict": {"numerics.mode": "strict"},
    "litz, rounded": {"numerics.mode": "rounded"},
    "litz, invariant": {"numerics.batch_invariant": True},
    "litz, deterministic": {"numerics.deterministic": True},
}
"""Options, by the name of a peer (`benchmarks.record.PEERS`)."""


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


def measure(name: str, training: bool, rounds: int, record: Callable[..., None]) -> str:
    """Returns a row of the table."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    make, inputs = MODELS[name]
    model, x = make().train(training), inputs()
    models = {peer: copy.deepcopy(model) for peer in ("eager", *WAYS)}
    functions: dict[str, Callable[..., Any]] = {"eager": models["eager"]} | {
        peer: torch.compile(models[peer], backend="litz", options=options or None) for peer, options in WAYS.items()
    }
    results = {peer: _step(models[peer], function, x, training) for peer, function in functions.items()}
    same = all(map(torch.equal, results["litz, strict"], results["eager"]))
    spent: dict[str, list[float]] = {peer: [] for peer in functions}
    for _ in range(rounds):
        for peer, function in functions.items():
            begun = time.process_time()
            _step(models[peer], function, x, training)
            spent[peer].append(time.process_time() - begun)
    least = {peer: 1000 * min(times) for peer, times in spent.items()}
    task = "training" if training else "inference"
    note = f"{task}, {torch.get_num_threads()} threads; strict results are {'' if same else 'not '}eager's"
    peers = {peer: {"processor_ms": ms} for peer, ms in least.items()}
    record(task="numerics", case=f"{name}, {task}", dtype="float32", peers=peers, note=note)
    times = " | ".join(f"{least[peer]:.1f}" for peer in functions)
    return f"| {name} | {task} | {times} | {'yes' if same else 'NO'} |"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=15, help="of which the least counts")
    add_option(parser)
    given = parser.parse_args()
    record = recorder(given.json, "strict_cost", "cpu")
    warnings.filterwarnings("ignore")
    print(f"| model | task | eager | {' | '.join(WAYS)} | strict is equal to eager |")
    print(f"|---|---|---|{'---|' * len(WAYS)}---|")
    for name in given.models:
        for training in (False, True):
            print(measure(name, training, given.rounds, record), flush=True)


if __name__ == "__main__":
    main()
