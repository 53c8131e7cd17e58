"""Kernels as litz works them out, as its search tunes them, and as TorchInductor's `max_autotune_pointwise` does: ten.

    python -m benchmarks.tuned_kernels [--dtype bf16] [--only NAME ...] [--seconds S] [--out FILE] [--accounts]

Printed are µs of a call, in turns, with cold caches and the host's time hidden (`litz_autotune.timing`), the standard
error of each, the settings that won, and how long compiling took with the search (a fresh cache). `--accounts` prints
what was measured of each kernel. Each function is one kernel, or a few where a reduction is cut.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from litz import report as reports
from litz_autotune.kernels import ATTACHMENT
from litz_autotune.measurement import summarize
from litz_autotune.timing import CudaTimer

F = torch.nn.functional
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
Maker = Callable[[Callable[..., torch.Tensor]], tuple[Callable[..., Any], tuple[torch.Tensor, ...]]]


def _norm(width: int) -> Maker:
    return lambda make: (
        lambda x, w, b: F.layer_norm(x, (width,), w, b),
        (make((1 << 25) // width, width), make(width), make(width)),
    )


KERNELS: dict[str, Maker] = {
    "add 100 x 100": lambda make: (torch.add, (make(100, 100), make(100, 100))),
    "bias + gelu": lambda make: (lambda x, b: F.gelu(x + b), (make(8192, 4096), make(4096))),
    "silu * gate": lambda make: (lambda x, y: F.silu(x) * y, (make(4096, 11008), make(4096, 11008))),
    "transpose + add": lambda make: (lambda x, y: x.t() + y, (make(4096, 8192), make(8192, 4096))),
    "softmax 1000": lambda make: (lambda x: torch.softmax(x, -1), (make(32768, 1000),)),
    "softmax 50257": lambda make: (lambda x: torch.softmax(x, -1), (make(1024, 50257),)),
    "layer norm 768": _norm(768),
    "layer norm 8192": _norm(8192),
    "column sum": lambda make: (lambda x: x.float().sum(0), (make(16384, 2048),)),
    "sum of squares": lambda make: (lambda x: x.float().square().sum(-1), (make(16384, 2048),)),
}


def measure(name: str, dtype: torch.dtype, seconds: float, accounts: bool) -> dict[str, Any]:
    """The row of one kernel."""
    generator = torch.Generator("cuda").manual_seed(0)

    def make(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator, device="cuda").to(dtype)

    fn, args = KERNELS[name](make)
    ways: dict[str, dict[str, Any]] = {
        "untuned": {"backend": "litz", "options": {}},
        "tuned": {"backend": "litz", "options": {"max_autotune_pointwise": True}},
        "inductor": {"options": {"max_autotune_pointwise": True}},
        "inductor, descent": {"options": {"max_autotune_pointwise": True, "coordinate_descent_tuning": True}},
    }
    calls, compiling, won = {}, {}, ""
    exact = fn(*(arg.double() for arg in args))
    torch._dynamo.reset()
    for way, given in ways.items():
        with tempfile.TemporaryDirectory() as folder, reports.collect() as collected:
            if given.get("backend"):
                given["options"] |= {"cache_dir": folder, "graph_cache": False}
            call = torch.compile(fn, dynamic=False, **given)
            begin = time.monotonic()
            result = call(*args)
            compiling[way] = time.monotonic() - begin
        error = float((result.double() - exact).norm() / exact.norm())
        assert error < 2e-2, f"{name}, {way}: off by {error:.1e}"
        calls[way] = partial(call, *args)
        if way == "tuned":
            text = "\n".join(report.attachments.get(ATTACHMENT, "") for report in collected)
            settings = [d.chosen for report in collected for d in report.decisions if "kernel_settings" in d.key]
            won = "; ".join(settings) or "as worked out"
            if accounts:
                print(text)
    del exact
    times = CudaTimer().time(calls, torch.device("cuda"), seconds)
    found = {way: summarize(samples) for way, samples in times.items()}
    return {
        "name": name,
        "us": {way: each.us for way, each in found.items()},
        "noise_us": {way: each.noise_us for way, each in found.items()},
        "compile_s": compiling,
        "settings": won,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--only", nargs="*", default=[], help="parts of names")
    parser.add_argument("--seconds", type=float, default=1.0, help="of measuring, for each kernel")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--accounts", action="store_true")
    asked = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {asked.dtype}")
    print(f"{'':18}{'untuned':>17}{'tuned':>17}{'inductor':>17}{'its descent':>17}{'gain':>7}{'s':>6}  settings")
    rows = []
    for name in KERNELS:
        if asked.only and not any(part in name for part in asked.only):
            continue
        row = measure(name, DTYPES[asked.dtype], asked.seconds, asked.accounts)
        rows.append(row)
        columns = "".join(f"{us:10.2f} ±{row['noise_us'][way]:5.2f}" for way, us in row["us"].items())
        gain = row["us"]["untuned"] / row["us"]["tuned"]
        print(f"{name:18}{columns}{gain:7.3f}{row['compile_s']['tuned']:6.1f}  {row['settings']}", flush=True)
    if rows:
        for other in ("untuned", "inductor", "inductor, descent"):
            mean = statistics.geometric_mean(row["us"][other] / row["us"]["tuned"] for row in rows)
            print(f"tuned is {mean:.3f} times as fast as {other} (geometric mean)")
    if asked.out is not None:
        asked.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
