"""What plugins cost a compile that they do nothing to: processor time with three idle plugins against none.

    python -m benchmarks.hook_overhead [--rounds 9] [--layers 4]

Each idle plugin has every hook and a pass of each stage, and no opinion: what is measured is the asking, the wrapper
around each call, the snapshots of nouns, the checks and the ledger. Kernels come from the cache, so that a compile is
Python alone and the share is the largest there is. The two are compiled in turn, a training step each time; the figure
is the difference of the medians, and of the least, in processor time, as wall time on a busy machine says nothing. How
many functions are called, C ones included, does not depend on the machine at all: cProfile counts one more compile of
each. A third line has what the three plugins of litz's own take, by the ledger, whose work is more than asking.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import statistics
import time
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from litz import report as reports
from litz.driver.builtin import builtin_plugins
from litz.pipeline import compile_backend
from litz_plugins import Pass, Plugins, hookimpl, make_plugins
from litz_plugins.validate import HOOKS

STAGES = ("graph", "program", "schedule")
WIDTH, HEADS, ROWS = 64, 4, 16


def idle_plugin(name: str) -> tuple[str, object]:
    """A plugin with every hook that is called in a compile, and a pass of each stage, which change nothing."""

    def hook(names: tuple[str, ...], result: Any) -> Any:
        scope: dict[str, Any] = {"result": result}
        exec(f"def implementation({', '.join(names)}):\n    return result", scope)
        return hookimpl(scope["implementation"])

    passes = [Pass(f"{name}_{stage}", stage, lambda noun, context: noun) for stage in STAGES]
    results = {"litz_register_passes": passes}
    return name, SimpleNamespace(**{hook_: hook(names, results.get(hook_)) for hook_, names in HOOKS.items()})


def plugins_of(count: int) -> Plugins:
    """Core's plugins, and so many idle ones."""
    return make_plugins(builtin_plugins(), extra=[idle_plugin(f"idle{n}") for n in range(count)], entry_points=())


class Model(torch.nn.Module):
    """Layers of a transformer."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        one = partial(torch.nn.TransformerEncoderLayer, WIDTH, HEADS, 4 * WIDTH, 0.0, batch_first=True)
        self.layers = torch.nn.ModuleList(one() for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


def compile_once(model: Model, x: torch.Tensor, plugins: Plugins | None) -> tuple[float, float, float]:
    """Processor seconds of litz's stages, of everything in a first step, and what plugins took by the ledger."""
    torch._dynamo.reset()
    gc.collect()
    backend = partial(compile_backend, options={"graph_cache": False}, plugins=plugins)
    begun = time.process_time()
    with reports.collect() as collected:
        torch.compile(model, backend=backend)(x).backward()
    whole = time.process_time() - begun
    own = sum(report.compile_seconds for report in collected)
    ledger = sum(
        row.seconds for report in collected for row in report.calls if row.plugin not in dict(builtin_plugins())
    )
    return own, whole, ledger


def count_calls(model: Model, x: torch.Tensor, plugins: Plugins | None) -> int:
    """How many functions a first step calls."""
    profile = cProfile.Profile()
    profile.enable()
    compile_once(model, x, plugins)
    profile.disable()
    return sum(entry.callcount for entry in profile.getstats())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--layers", type=int, default=4)
    arguments = parser.parse_args()
    import litz.report.log as log

    log.clock = time.process_time  # stages are timed in processor time
    torch.manual_seed(0)
    model, x = Model(arguments.layers), torch.randn(2, ROWS, WIDTH)
    kinds = {"none": lambda: plugins_of(0), "three idle": lambda: plugins_of(3), "litz's own four": lambda: None}
    for make in kinds.values():
        compile_once(model, x, make())  # builds kernels, imports modules
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in kinds}
    for _ in range(arguments.rounds):
        for name, make in kinds.items():
            found[name].append(compile_once(model, x, make()))
    least, medians = (
        {name: [f(v) for v in zip(*runs)] for name, runs in found.items()} for f in (min, statistics.median)
    )
    calls = {name: count_calls(model, x, make()) for name, make in kinds.items()}
    what = f"a training step of {arguments.layers} layers, kernels cached"
    print(f"{what}; processor seconds of {arguments.rounds} rounds, and function calls")
    for name in kinds:
        parts = []
        for kind, values in (("least", least), ("median", medians)):
            (own, whole, ledger), base = values[name], values["none"]
            parts.append(
                f"{kind}: litz's stages {own:.3f} ({own / base[0] - 1:+.1%}), with torch's {whole:.3f} "
                f"({whole / base[1] - 1:+.1%}; litz's part {(own - base[0]) / base[1]:+.1%}), in plugins {ledger:.3f}"
            )
        parts.append(f"calls {calls[name]:,} ({calls[name] / calls['none'] - 1:+.2%})")
        print(f"{name:<18}", "\n                   ".join(parts))


if __name__ == "__main__":
    main()
