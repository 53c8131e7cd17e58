"""One code for all sizes against code for several: linear layers with a dynamic number of rows, on a GPU.

    python -m benchmarks.autotune_sizes [--sizes 16,128,1024,8192] [--first 512] [--dtype bf16] [--out FILE]

For each layer and number of rows, tuned sizes and sizes between them: the time of eager, of litz tuned for the rows
first seen ("one"), and of litz with the option `sizes` ("by size"), in turns, with cold caches and the host's time
hidden. Below them, for each layer, what was decided for which rows, and the host's time of a call of either.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from math import exp, log
from pathlib import Path
from typing import Any

import torch

from benchmarks.autotune import DTYPES, announced
from litz import report as reports
from litz_autotune.measurement import summarize
from litz_autotune.plugin import plugin
from litz_autotune.timing import CudaTimer

F = torch.nn.functional
LAYERS: dict[str, tuple[int, int, Callable[..., torch.Tensor]]] = {
    "4096 -> 4096": (4096, 4096, lambda x, w, b: F.linear(x, w)),
    "4096 -> 11008, gelu": (4096, 11008, lambda x, w, b: F.gelu(F.linear(x, w, b))),
    "1024 -> 1024, relu": (1024, 1024, lambda x, w, b: F.relu(F.linear(x, w, b))),
    "512 -> 64, softmax": (512, 64, lambda x, w, b: torch.softmax(F.linear(x, w, b), -1)),
}
ROWS = (16, 48, 128, 384, 512, 1024, 3072, 8192)
SECONDS = 0.3
CALLS = 2000


def compiled(fn: Callable[..., Any], folder: Path, x: torch.Tensor, *rest: torch.Tensor, **options: Any) -> Any:
    """`fn`, compiled for any number of rows by a call with `x`, and its report."""
    torch._dynamo.mark_dynamic(x, 0)
    call = torch.compile(
        fn, backend="litz", options={"mode": "max-autotune-no-cudagraphs", "cache_dir": folder, **options}
    )
    with reports.collect() as collected:
        call(x, *rest)
    return call, collected[-1]


def host_us(call: Callable[..., Any], *args: torch.Tensor) -> float:
    """The host's time of a call, µs, the device never waited for: so few rows that it keeps up."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(CALLS):
        call(*args)
    spent = time.perf_counter() - start
    torch.cuda.synchronize()
    return spent / CALLS * 1e6


def measure(name: str, dtype: torch.dtype, first: int, sizes: str, folder: Path) -> list[dict[str, Any]]:
    """The rows of the table for one layer; prints them."""
    k, n, fn = LAYERS[name]
    w, b = torch.randn(n, k, device="cuda").to(dtype), torch.randn(n, device="cuda").to(dtype)
    inputs = {m: torch.randn(m, k, device="cuda").to(dtype) for m in ROWS}
    x = torch.randn(first, k, device="cuda").to(dtype)
    torch._dynamo.reset()
    one, _ = compiled(fn, folder, x, w, b)
    # A function of its own: what dynamo compiled for the other must stay.
    by_size, report = compiled(lambda x, w, b: fn(x, w, b), folder, x.clone(), w, b, sizes=sizes)
    found = []
    callables = {"eager": fn, "one": one, "by size": by_size}
    for m, given in inputs.items():
        runs = {who: partial(call, given, w, b) for who, call in callables.items()}
        for run in runs.values():
            torch.testing.assert_close(run(), runs["eager"](), atol=0.1, rtol=0.1)
        samples = CudaTimer().time(runs, torch.device("cuda"), SECONDS)
        us = {who: summarize(times).us for who, times in samples.items()}
        found.append({"layer": name, "rows": m, **us})
        gain = us["one"] / us["by size"]
        print(
            f"{name:22} {m:6} rows  " + "  ".join(f"{w} {t:8.2f}" for w, t in us.items()) + f"  x{gain:.3f}", flush=True
        )
    print(f"    host: one {host_us(one, inputs[16], w, b):.1f} us, by size {host_us(by_size, inputs[16], w, b):.1f} us")
    for decision in report.decisions:
        if "by size" in decision.chosen or decision.chosen == "one code for all sizes":
            print(f"    {decision.chosen}: {decision.reason}")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print. Returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", default="16,128,1024,8192", help="the option sizes")
    parser.add_argument("--first", type=int, default=512, help="rows of the first call")
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="bf16")
    parser.add_argument("--out", help="write the figures to this file, as JSON")
    args = parser.parse_args(argv)
    if not announced():
        return 1
    rows: list[dict[str, Any]] = []
    torch._dynamo.config.error_on_recompile = True  # one compile for all rows, or the figures mean nothing
    with tempfile.TemporaryDirectory() as folder:
        for name in LAYERS:
            rows += measure(name, DTYPES[args.dtype], args.first, args.sizes, Path(folder))
    for who in ("eager", "one"):
        ratios = [row[who] / row["by size"] for row in rows]
        mean = exp(statistics.fmean(map(log, ratios)))
        print(f"against {who}: {mean:.3f} times as fast, worst {min(ratios):.3f}, best {max(ratios):.3f}")
    if args.out:
        Path(args.out).write_text(json.dumps(rows, indent=1))
    plugin.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
