"""Host time per kernel: many tiny kernels that do nothing worth waiting for, none fused.

python -m benchmarks.host_time
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.record import add_option, recorder

OPS = 100
CASE = "one of 100 kernels of 64 elements, its allocation included"
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

    parser = argparse.ArgumentParser(prog="python -m benchmarks.host_time", description=(__doc__ or "").splitlines()[0])
    add_option(parser)
    args = parser.parse_args(argv)
    print(f"host time per kernel on {DEVICE}, torch {torch.__version__}")
    us = {"eager": microseconds(chain)}
    with inductor_config.patch(max_fusion_size=1):
        us["inductor"] = microseconds(torch.compile(chain))
    torch._dynamo.reset()
    us["litz"] = microseconds(torch.compile(chain, backend="litz", options={"fusion": False}))
    for peer, each in us.items():
        print(f"  {peer:10}{each:6.2f} µs")
    peers = {peer: {"wall_ms": each / 1e3} for peer, each in us.items()}
    recorder(args.json, "host_time", DEVICE, argv)(task="host", case=CASE, dtype="float32", peers=peers)


if __name__ == "__main__":
    main()
