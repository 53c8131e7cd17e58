"""Equal layers as a region: what the first call and later calls take where the region is kept, and where it is inlined.

    python -m benchmarks.kept_regions
    python -m benchmarks.kept_regions --layers 2 48 --tasks inference --ways kept inlined

The model is transformer blocks of width 64, each a call of one `nested_compile_region`. A row is a process of its own
with an empty cache: processor seconds of the first call (of the process and of the compilers that it starts), of which
litz's own stages have taken so many, and the median processor milliseconds of later calls by one thread.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

WAYS = ("kept", "inlined", "inductor")
OPTIONS: dict[str, dict[str, Any]] = {
    "kept": {"prefer": [f"keep_region/subgraph_{number}=yes" for number in range(3)]},
    "inlined": {"veto": ["keep_region"]},
}


def processor_seconds() -> float:
    """Returns what this process and those that it has waited for have taken."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def measure(layers: int, task: str, way: str, rounds: int) -> None:
    """Prints the row of one case."""
    import torch
    from torch.nn import functional

    from litz import report as reports

    torch.set_num_threads(1)
    torch.manual_seed(0)

    class Block(torch.nn.Module):
        def __init__(self, width: int = 64, heads: int = 4) -> None:
            super().__init__()
            self.heads, self.before, self.between = heads, torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
            self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
            self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

        @torch.compiler.nested_compile_region
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            batch, tokens, _ = x.shape
            parts = self.qkv(self.before(x)).chunk(3, -1)
            q, k, v = (part.view(batch, tokens, self.heads, -1).transpose(1, 2) for part in parts)
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
            return x + self.down(functional.gelu(self.up(self.between(x))))

    backend: dict[str, Any] = {"backend": "inductor" if way == "inductor" else "litz", "options": OPTIONS.get(way)}
    other = torch.compile(lambda x: (x.sin() @ x).sum(), backend=backend["backend"])
    other(torch.randn(8, 8, requires_grad=True)).backward()  # imports, and what is built once on a machine
    model = torch.nn.Sequential(*(Block() for _ in range(layers)))
    compiled = torch.compile(model, **backend)
    x = torch.randn(4, 32, 64)

    def step() -> None:
        if task == "training":
            compiled(x).square().mean().backward()
        else:
            with torch.no_grad():
                compiled(x)

    begun = processor_seconds()
    with reports.collect() as found:
        step()
    first = processor_seconds() - begun
    own = sum(sum(report.stage_seconds.values()) for report in found)
    times = []
    for _ in range(rounds):
        start = time.process_time()
        step()
        times.append((time.process_time() - start) * 1e3)
    print(f"| {layers} | {task} | {way} | {first:.2f} | {own:.2f} | {statistics.median(times):.2f} |", flush=True)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 12, 48])
    parser.add_argument("--tasks", nargs="+", default=["inference", "training"])
    parser.add_argument("--ways", nargs="+", default=[*WAYS], choices=WAYS)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--one", action="store_true", help="measure in this process, for a single case")
    chosen = parser.parse_args()
    cases = [(layers, task, way) for task in chosen.tasks for layers in chosen.layers for way in chosen.ways]
    if chosen.one:
        measure(*cases[0], chosen.rounds)
        return
    print("| layers | task | way | first call, processor s | stages, s | later calls, ms |\n|---|---|---|---|---|---|")
    for layers, task, way in cases:
        with tempfile.TemporaryDirectory() as folder:
            names = ("LITZ_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
            environ = {**os.environ, **{name: os.path.join(folder, name) for name in names}, "OMP_NUM_THREADS": "1"}
            case = ["--layers", str(layers), "--tasks", task, "--ways", way, "--rounds", str(chosen.rounds)]
            command = [sys.executable, "-m", "benchmarks.kept_regions", "--one", *case]
            subprocess.run(command, env=environ, check=True)


if __name__ == "__main__":
    main()
