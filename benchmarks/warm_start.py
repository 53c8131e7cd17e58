"""What litz itself takes of a warm first call: python -m benchmarks.warm_start [--processes N] [--profile | --imports].

The processes are forks of one that has imported torch and dynamo, and nothing of litz's. The first fills the caches.
Then, in turns, processes make the same first call with backend="litz", which finds all in the caches, and with
backend="eager", where dynamo works alone. The table has the fewest milliseconds of each, and how many modules of litz's
the call imported. `--profile` prints where a warm call with litz takes its time instead.
`--imports` has the fewest processor milliseconds of the imports alone, which other programs disturb less.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import importlib
import json
import os
import pstats
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch._dynamo
from torch import nn

CASES = ("conv", "conv train", "transformer", "transformer train")


def convolutional() -> tuple[nn.Module, torch.Tensor]:
    """A small network with convolutions and a batch norm, and its input."""
    first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
    second = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(first, second, nn.Linear(16, 10)), torch.ones(2, 3, 16, 16)


def transformer() -> tuple[nn.Module, torch.Tensor]:
    """Two layers of an encoder, and their input."""
    layer = [nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True) for _ in range(2)]
    return nn.Sequential(*layer), torch.ones(2, 8, 32)


def measure(case: str, backend: str, profile: bool) -> dict[str, Any]:
    """The first call's milliseconds, in this process."""
    torch.manual_seed(0)
    model, x = (convolutional if case.startswith("conv") else transformer)()
    train = case.endswith("train")
    model.train(train)
    model(x).sum().backward()  # what torch itself does once
    before = set(sys.modules)
    run = torch.compile(model, backend=backend)
    profiler = cProfile.Profile()
    if profile:
        profiler.enable()
    start, cpu = time.perf_counter(), time.process_time()
    with torch.set_grad_enabled(train):
        found = run(x)
    if train:
        found.sum().backward()
    took, took_cpu = time.perf_counter() - start, time.process_time() - cpu
    if profile:
        profiler.disable()
        for order in ("cumulative", "tottime"):
            pstats.Stats(profiler, stream=sys.stderr).sort_stats(order).print_stats(100)
    own = [name for name in set(sys.modules) - before if name.startswith("litz")]
    hits = torch._dynamo.utils.counters["aot_autograd"]["autograd_cache_hit"]
    return {"ms": took * 1e3, "cpu": took_cpu * 1e3, "modules": len(own), "hits": hits}


def imports() -> dict[str, float]:
    """The processor's milliseconds for the plugin API, for what a found graph needs, and for plugins and options."""
    gc.disable()
    took, last = {}, time.process_time()

    def lap(name: str) -> None:
        nonlocal last
        took[name], last = (time.process_time() - last) * 1e3, time.process_time()

    importlib.import_module("litz_plugins.manager")
    lap("litz_plugins")
    entry = importlib.import_module("litz.driver.entry")
    lap("litz.driver.entry")
    entry.make_compiler(None, None, None)
    lap("make_compiler")
    return took


def in_fork(measured: Callable[[], Mapping[str, Any]], folder: str) -> dict[str, Any]:
    """What a copy of this process measures, with caches in `folder`."""
    out, into = os.pipe()
    if not (child := os.fork()):
        try:
            os.environ.update(TORCHINDUCTOR_CACHE_DIR=f"{folder}/torch", LITZ_CACHE_DIR=f"{folder}/litz")
            os.write(into, json.dumps(measured()).encode())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(into)
    os.waitpid(child, 0)
    with open(out, encoding="utf-8") as said:
        return dict(json.load(said))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=CASES, nargs="*", default=CASES)
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--imports", action="store_true")
    asked = parser.parse_args()
    if asked.imports:
        importlib.import_module("torch._functorch.aot_autograd")
        with tempfile.TemporaryDirectory() as folder:
            several = [in_fork(imports, folder) for _ in range(asked.processes)]
        print({name: round(min(row[name] for row in several), 1) for name in several[0]})
        return
    print("| first call | eager ms | litz ms | litz's part ms | of processor | modules |")
    print("|---|---|---|---|---|---|")
    for case in asked.only:
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(2):  # the second writes what the first knew too late
                in_fork(partial(measure, case, "litz", False), folder)
            if asked.profile:
                in_fork(partial(measure, case, "litz", True), folder)
                continue
            found: dict[str, list[dict[str, Any]]] = {"eager": [], "litz": []}
            for _ in range(asked.processes):
                for backend, rows in found.items():
                    rows.append(in_fork(partial(measure, case, backend, False), folder))
        assert all(row["hits"] == 1 for row in found["litz"]), found
        least = {(name, key): min(row[key] for row in found[name]) for name in found for key in ("ms", "cpu")}
        parts = [least["litz", key] - least["eager", key] for key in ("ms", "cpu")]
        figures = [least["eager", "ms"], least["litz", "ms"], *parts]
        figures.append(found["litz"][0]["modules"])
        print("|", " | ".join([case, *(f"{figure:.0f}" for figure in figures)]), "|", flush=True)


if __name__ == "__main__":
    main()
