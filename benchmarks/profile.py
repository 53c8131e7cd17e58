"""Where the time of a model goes: the longest device kernels per peer, and the host's share.

python -m benchmarks.profile --only "gpt2 inference" --peers eager litz
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.models import DEVICE, GPU, MODELS


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table per model and peer: total device time of a step, wall time, and the top kernels."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile")
    parser.add_argument("--only", nargs="*", default=list(MODELS))
    parser.add_argument("--peers", nargs="*", default=["eager", "inductor", "litz"])
    parser.add_argument("--top", type=int, default=12, help="kernels to show")
    args = parser.parse_args(argv)
    for name in args.only:
        for peer in args.peers:
            profile(name, peer, args.top)


def profile(name: str, peer: str, top: int) -> None:
    """One model under one peer."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    make, gpu_dtype, cpu_dtype = MODELS[name]
    model, step = make(gpu_dtype if GPU else cpu_dtype)
    run: Any = model if peer == "eager" else torch.compile(model, backend=peer)
    for _ in range(4):
        step(run)
    wait = torch.cuda.synchronize if GPU else (lambda: None)
    wait()
    start = time.perf_counter()
    for _ in range(5):
        step(run)
    host = (time.perf_counter() - start) / 5 * 1e3
    wait()
    wall = (time.perf_counter() - start) / 5 * 1e3
    kinds = [torch.profiler.ProfilerActivity.CUDA if GPU else torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=kinds) as recorded:
        step(run)
        wait()
    rows = sorted(recorded.key_averages(), key=lambda row: -_time(row))
    total = sum(_time(row) for row in rows) / 1e3
    print(f"\n{name}, {peer} on {DEVICE}: wall {wall:.2f} ms, host {host:.2f} ms, in kernels {total:.2f} ms")
    for row in rows[:top]:
        print(f"  {_time(row) / 1e3:8.3f} ms {row.count:5}x  {row.key[:100]}")


def _time(row: Any) -> float:
    return float(row.self_device_time_total if GPU else row.self_cpu_time_total)


if __name__ == "__main__":
    main()
