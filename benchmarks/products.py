"""Matrix products, plain and with the users that a kernel can take over: eager, litz, and litz tuned.

    python -m benchmarks.products [--json PATH] [--only TEXT ...] [--inductor] [--seconds N]

Microseconds in one run, cold caches, the median of many calls; then what tuning cost. The geometric mean is of eager's
time over tuned litz's. `--inductor` adds TorchInductor's max-autotune, and what its tuning cost.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.gpu_kernels import Timer

SHAPES = (
    (8192, 8192, 8192), (4096, 4096, 4096), (2048, 2048, 2048), (1024, 1024, 1024), (512, 512, 512), (256, 256, 256),
    (8192, 1024, 4096), (8192, 4096, 1024), (16384, 768, 3072), (16384, 3072, 768), (4096, 768, 2304),
    (128, 4096, 4096), (64, 4096, 11008), (32, 8192, 8192), (16, 4096, 14336), (1, 4096, 4096),
    (256, 65536, 256), (64, 32768, 64), (512, 16384, 512), (1000, 1000, 1000), (1023, 513, 2047), (4095, 4097, 513),
)  # fmt: skip
"""(m, k, n): square, as in transformers, few rows, long sums, odd."""
BATCHED = ((96, 512, 64, 512), (64, 128, 1024, 128), (16, 1000, 72, 1000))
"""(batch, m, k, n)."""


@dataclass
class Product:
    """One row: `function(*args)`, and what it took by column, in us; `tuning`: seconds by column."""

    name: str
    function: Callable[..., torch.Tensor]
    args: tuple[torch.Tensor, ...]
    us: dict[str, float] = field(default_factory=dict)
    tuning: dict[str, float] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)


def products(dtype: torch.dtype) -> list[Callable[[], Product]]:
    """Makers of all rows: tensors exist while their row is measured only."""

    def random(*size: int) -> torch.Tensor:
        return torch.randn(size, device="cuda", dtype=dtype)

    def plain(m: int, k: int, n: int) -> Product:
        return Product(f"mm {m}x{k}x{n}", lambda x, w: x @ w, (random(m, k), random(k, n)))

    def gelu(m: int, k: int, n: int) -> Product:
        args = random(m, k), random(n, k), random(n)
        return Product(f"linear+gelu {m}x{k}x{n}", lambda x, w, b: F.gelu(F.linear(x, w, b)), args)

    def batched(b: int, m: int, k: int, n: int) -> Product:
        return Product(f"bmm {b}x{m}x{k}x{n}", torch.bmm, (random(b, m, k), random(b, k, n)))

    makers: list[Callable[[], Product]] = []
    for shape in SHAPES:
        makers += [lambda s=shape: plain(*s), lambda s=shape: gelu(*s)]  # type: ignore[misc]
    return makers + [lambda s=shape: batched(*s) for shape in BATCHED]  # type: ignore[misc]


def measure(row: Product, timer: Timer, inductor: bool) -> None:
    """Fill in the row."""
    columns: dict[str, dict[str, Any] | None] = {
        "eager": None,
        "litz": {"backend": "litz"},
        "tuned": {"backend": "litz", "mode": "max-autotune-no-cudagraphs"},
    }
    if inductor:
        columns["inductor"] = {"backend": "inductor", "mode": "max-autotune-no-cudagraphs"}
    expected = row.function(*row.args)
    scale = float(expected.abs().max())
    for name, settings in columns.items():
        torch._dynamo.reset()
        call = row.function if settings is None else torch.compile(row.function, dynamic=False, **settings)
        try:
            start = time.perf_counter()
            error = float((call(*row.args) - expected).abs().max())
            torch.cuda.synchronize()
            row.tuning[name] = time.perf_counter() - start
            if error > 0.02 * scale:
                row.problems[name] = f"differs from eager by {error / scale:.3f} of the largest element"
            row.us[name] = timer(lambda call=call: call(*row.args))  # type: ignore[misc]
        except Exception as error:  # one column's failure must not cost the others
            row.problems[name] = f"{type(error).__name__}: {str(error)[:200]}"


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table; write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    parser.add_argument("--only", nargs="*", default=[], help="rows whose names hold one of these")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16"))
    parser.add_argument("--inductor", action="store_true", help="TorchInductor's max-autotune as well")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no row after so many")
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA device")
    os.environ["LITZ_CACHE_DIR"] = tempfile.mkdtemp(prefix="litz-benchmark-")
    timer, begun, rows = Timer(), time.perf_counter(), []
    columns = ["eager", "litz", "tuned", *(["inductor"] if options.inductor else [])]
    print(f"{torch.cuda.get_device_name()}, {options.dtype}: us, and seconds until the first result")
    print(
        f"{'':30}" + "".join(f"{name:>10}" for name in columns) + "".join(f"{name + ' s':>12}" for name in columns[1:])
    )
    for make in products(getattr(torch, options.dtype)):
        if time.perf_counter() - begun > options.seconds:
            break
        row = make()
        if options.only and not any(part in row.name for part in options.only):
            continue
        measure(row, timer, options.inductor)
        rows.append(row)
        times = "".join(f"{row.us.get(name, math.nan):10.1f}" for name in columns)
        print(
            f"{row.name:30}{times}" + "".join(f"{row.tuning.get(name, math.nan):12.1f}" for name in columns[1:]),
            flush=True,
        )
        for name, problem in row.problems.items():
            print(f"    {name}: {problem}")
        row.args = ()
    for kind in ("mm", "linear+gelu", "bmm"):
        found = [row for row in rows if row.name.startswith(kind + " ") and {"eager", "tuned"} <= row.us.keys()]
        gains = [row.us["eager"] / row.us["tuned"] for row in found]
        if gains:
            print(f"{kind}: {geometric_mean(gains):.3f}x of eager over {len(gains)}, at worst {min(gains):.3f}x")
    if options.json is not None:
        data = [{"name": r.name, "us": r.us, "tuning": r.tuning, "problems": r.problems} for r in rows]
        options.json.write_text(json.dumps({"device": torch.cuda.get_device_name(), "rows": data}, indent=1))


if __name__ == "__main__":
    main()
