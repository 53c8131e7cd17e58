"""Higher-order ops on the CPU: processor time of a call beside eager and TorchInductor.

    python -m benchmarks.bodies
    python -m benchmarks.bodies --rounds 30 cond while_loop

Each row is the median processor time of a call, in milliseconds, of calls that take turns. "layers" is a model of equal
layers, each a call of one `nested_compile_region`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._higher_order_ops import while_loop
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan

BACKENDS = ("eager", "litz", "inductor")


def branch(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """torch.cond, whose bodies are pointwise with a sum over rows."""
    yes, no = lambda x, w: (x * w).sin() * x.sum(1, True), lambda x, w: (x + w).exp().tanh() - x.mean(1, True)
    return torch.cond(x.sum() > 0, yes, no, (x, w))


def loop(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A while_loop of ten turns."""
    zero = torch.zeros((), dtype=torch.int64)

    def turn(n: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return n + 1, (y * 0.5 + w).sin() * torch.sigmoid(y)

    return while_loop(lambda n, y: n < 10, turn, (zero, x))[1]


def scanned(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A scan over the rows, each of them long."""

    def step(state: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = torch.tanh(state * 0.9 + row * w)
        return state, state.sin() + row

    return scan(step, w * 0.5, x, dim=0)[1]


def mapped(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A map over the rows."""
    return torch_map(lambda row, w: (row * w).sigmoid() * row.sin() + w, x, w)


@torch.compiler.nested_compile_region
def layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A layer of the model of equal layers."""
    return x + torch.nn.functional.gelu(torch.nn.functional.layer_norm(x, x.shape[-1:])) * w


def layers(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Twelve equal layers."""
    for _ in range(12):
        x = layer(x, w)
    return x


PROGRAMS: Mapping[str, tuple[Callable[..., torch.Tensor], tuple[int, int]]] = {
    "cond": (branch, (512, 1024)),
    "while_loop": (loop, (512, 1024)),
    "scan": (scanned, (64, 16384)),
    "map": (mapped, (64, 16384)),
    "layers": (layers, (512, 1024)),
}


def measure(name: str, rounds: int) -> dict[str, float]:
    """Returns the median milliseconds of a call, by backend."""
    function, (rows, columns) = PROGRAMS[name]
    torch.manual_seed(0)
    inputs = torch.randn(rows, columns), torch.rand(columns)
    calls: dict[str, Callable[..., Any]] = {}
    for backend in BACKENDS:
        torch._dynamo.reset()
        call = function if backend == "eager" else torch.compile(function, backend=backend)
        try:
            for _ in range(3):
                call(*inputs)
        except Exception as error:  # TorchInductor 2.13 refuses some on the CPU
            print(f"{name}: {backend} fails, {type(error).__name__}: {str(error).splitlines()[0]}", file=sys.stderr)
        else:
            calls[backend] = call
    taken: dict[str, list[float]] = {backend: [] for backend in calls}
    for _ in range(rounds):
        for backend, call in calls.items():
            start = time.process_time()
            call(*inputs)
            taken[backend].append((time.process_time() - start) * 1e3)
    return {backend: statistics.median(times) for backend, times in taken.items()}


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=[*PROGRAMS])
    parser.add_argument("--rounds", type=int, default=20)
    chosen = parser.parse_args()
    print("| program | eager | litz | Inductor | litz / Inductor |\n|---|---|---|---|---|")
    with torch.no_grad():
        for name in chosen.names:
            found = measure(name, chosen.rounds)
            times = " | ".join(f"{found[backend]:.2f}" if backend in found else "fails" for backend in BACKENDS)
            ratio = f"{found['litz'] / found['inductor']:.2f}" if "inductor" in found else ""
            print(f"| {name} | {times} | {ratio} |", flush=True)


if __name__ == "__main__":
    main()
