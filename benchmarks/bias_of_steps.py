"""A recurrent network's backward: is the gradient of a bias summed in the kernel of each step, or for many at once?

    python -m benchmarks.bias_of_steps [--steps 16] [--width 512] [--batch 64]

Each step makes the gradients of three gates, adds their sum over the batch to the gradient of the bias, and multiplies
them by a weight for the step before. A line for each peer: the time of all kernels (torch.profiler), the kernels, and
the time and number of those that are no product of the library. "litz, sums apart" has the decision `join_sums` left
out. On an H200 the three take about half a minute, compiling included.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .device_time import describe, kernels

PEERS: dict[str, dict[str, Any]] = {
    "inductor": {"backend": "inductor"},
    "litz": {"backend": "litz"},
    "litz, sums apart": {"backend": "litz", "options": {"veto": ["join_sums"]}},
}
PRODUCTS = ("gemm", "cutlass", "nvjet", "cublas", "splitk", "xmma")
"""Of the names of kernels that multiply matrices."""


def backward(grad: torch.Tensor, saved: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of the first state and of the bias. saved: (steps, batch, width), what the forward kept."""
    total = None
    for gate in saved.unbind(0):
        made = torch.cat([grad * gate * (1 - gate), grad * gate, grad * (1 - gate * gate)], -1)
        each = made.sum(0)
        total = each if total is None else total + each
        grad = made @ weight + grad * gate
    assert total is not None
    return grad, total


def measure(function: Callable[..., Any], args: Sequence[torch.Tensor]) -> str:
    """A line of the table, but for the peer's name."""
    found = kernels(lambda: function(*args), args[0].device, 20)
    own = [kernel for kernel in found if not any(word in kernel.name.lower() for word in PRODUCTS)]
    cells = [sum(each.us for each in found), sum(each.count for each in found)]
    cells += [sum(each.us for each in own), sum(each.count for each in own)]
    return "".join(f"{cell:12.1f}" for cell in cells)


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--batch", type=int, default=64)
    options = parser.parse_args(argv)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    size = (options.batch, options.width)
    grad, saved = torch.randn(size, device=device), torch.rand(options.steps, *size, device=device)
    weight = torch.randn(3 * options.width, options.width, device=device) / (3 * options.width) ** 0.5
    exact = backward(*(each.double() for each in (grad, saved, weight)))
    args = [each.bfloat16() for each in (grad, saved, weight)]
    print(describe(device))
    print(f"{'':20}{'all us':>12}{'kernels':>12}{'others us':>12}{'others':>12}{'error':>12}")
    for name, settings in PEERS.items():
        torch._dynamo.reset()
        with torch.no_grad():
            compiled = torch.compile(backward, dynamic=False, **settings)
            error = max(
                float((mine.double() - want).norm() / want.norm())
                for mine, want in zip(compiled(*args), exact, strict=True)
            )
            print(f"{name:20}{measure(compiled, args)}{error:12.4f}", flush=True)


if __name__ == "__main__":
    main()
