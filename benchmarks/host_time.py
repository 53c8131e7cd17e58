"""Host time per kernel: many tiny kernels that do nothing worth waiting for, none fused.

python -m benchmarks.host_time
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

OPS = 100
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def chain(x: torch.Tensor) -> list[torch.Tensor]:
    """As many kernels as ops, when nothing is fused."""
    outputs = []
    for _ in range(OPS):
        x = x.sin()
        outputs.append(x)
    return outputs


def microseconds(run: Callable[[torch.Tensor], Any]) -> float:
    """Host time per op, the least of several rounds: whatever interrupts only adds."""
    x = torch.ones(64, device=DEVICE)
    best = float("inf")
    with torch.no_grad():
        for _ in range(30):
            run(x)
        for _ in range(30):
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
            run(x)
            best = min(best, time.perf_counter() - start)
    return best / OPS * 1e6


def main(argv: Sequence[str] | None = None) -> None:
    """Print microseconds per op for each peer, allocation of its output included."""
    import torch._inductor.config as inductor_config

    print(f"host time per kernel on {DEVICE}, torch {torch.__version__}")
    print(f"  eager     {microseconds(chain):6.2f} µs")
    with inductor_config.patch(max_fusion_size=1):
        print(f"  inductor  {microseconds(torch.compile(chain)):6.2f} µs")
    torch._dynamo.reset()
    litz = torch.compile(chain, backend="litz", options={"fusion": False})
    print(f"  litz      {microseconds(litz):6.2f} µs")


if __name__ == "__main__":
    main()
