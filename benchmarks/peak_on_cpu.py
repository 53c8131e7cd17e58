"""How much memory a training step or a call takes on a CPU: eager, TorchInductor and litz, measured and planned.

    python -m benchmarks.peak_on_cpu [--only NAME ...] [--peers eager inductor litz] [--inference]

The most bytes that torch's CPU allocator has given out at a time during a step, by its profiler, with the parameters,
buffers and the batch, in MiB. litz runs without its memory pool, which has an allocator of its own that the profiler
does not see; a pool's tensors are as large. Planned: the larger of the planned peaks of litz's forward and backward,
and eager's planned peak, as `litz memory` has them. ms: the least of five steps.
"""

from __future__ import annotations

import argparse
import gc
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from benchmarks.small_models import MORE, SMALL, Small
from litz import report as reports
from litz_tools.held import memory_of

MIB = 2**20
OPTIONS: dict[str, Any] = {"litz": {"options": {"memory_pool": False, "graph_cache": False}}}
os.environ.setdefault("KINETO_LOG_LEVEL", "5")


def peak_bytes(step: Callable[[], None]) -> int:
    """Returns the most bytes that are allocated at a time while a step runs, beside what there was before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    events = profiler.profiler.kineto_results.events()  # type: ignore[union-attr]
    now = most = 0
    for _, nbytes in sorted((each.start_ns(), each.nbytes()) for each in events if each.name() == "[memory]"):
        now += nbytes
        most = max(most, now)
    return most


def peak_mib(model: nn.Module, x: torch.Tensor, step: Callable[[], None]) -> float:
    """Returns the peak of a step without gradients from before, in MiB, with the model's tensors and the batch `x`."""
    model.zero_grad(set_to_none=True)
    gc.collect()
    there = sum(each.nbytes for each in (*model.parameters(), *model.buffers(), x))
    return (there + peak_bytes(step)) / MIB


def measure(small: Small, peer: str, inference: bool = False) -> tuple[float, float, tuple[float, float] | None]:
    """Returns (measured peak in MiB, ms of a step, planned peaks in MiB of litz and of eager)."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    model, x = small.make(), small.input()
    run: Any = model if peer == "eager" else torch.compile(model, backend=peer, **OPTIONS.get(peer, {}))

    def step() -> None:
        if inference:
            with torch.no_grad():
                run(x)
        else:
            run(x).square().sum().backward()  # nobody holds the result

    with reports.collect() as found:
        step()
    seconds = []
    for _ in range(5):
        model.zero_grad(set_to_none=True)
        begun = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begun)
    graphs = memory_of(found)
    planned = (max(each["peak_bytes"] for each in graphs) / MIB, graphs[0]["eager_bytes"] / MIB) if graphs else None
    return peak_mib(model, x, step), min(seconds) * 1000, planned


def main(argv: Sequence[str] | None = None) -> None:
    """Prints a line for each model and peer, as soon as it is measured."""
    models = {**SMALL, **MORE}
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peak_on_cpu", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=list(models), choices=list(models))
    parser.add_argument("--peers", nargs="*", default=["eager", "inductor", "litz"])
    parser.add_argument("--inference", action="store_true", help="calls without gradients")
    args = parser.parse_args(argv)
    measure(Small(lambda: nn.Linear(8, 8), (4, 8)), "eager")  # what torch allocates once
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; MiB")
    print("| model | peer | measured | planned | eager's plan | ms |")
    print("|---|---|---|---|---|---|")
    for name in args.only:
        for peer in args.peers:
            peak, ms, planned = measure(models[name], peer, args.inference)
            plans = ("", "") if planned is None else (f"{each:.2f}" for each in planned)
            print(f"| {' | '.join((name, peer, f'{peak:.2f}', *plans, f'{ms:.1f}'))} |", flush=True)


if __name__ == "__main__":
    main()
