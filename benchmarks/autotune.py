"""litz-autotune against eager and TorchInductor's max-autotune, on matrix products and convolutions.

    python -m benchmarks.autotune [--dtype bf16 fp16] [--only TEXT ...] [--inductor TEXT ...] [--template TEXT ...]
                                  [--minutes N] [--out FILE]

For each shape, plain and with users (bias and gelu, a residual, relu): the time of eager, of litz with
mode="max-autotune-no-cudagraphs", and, for the shapes whose names contain a text of `--template` ("square" by
default) or `--inductor` ("" for all), of the best Triton template alone and of TorchInductor's
max-autotune-no-cudagraphs. All of one row are timed in turns, with cold caches and the host's time hidden
(`litz_autotune.timing`), so they saw the same machine; eager is among them twice, for the noise. Beside them: seconds
of the first call with an empty cache and, for a few, with a filled one. The last lines are the figures that the issue
asks for. Kinds of shapes alternate, so that `--minutes` leaves some of each.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from math import exp, inf, log
from pathlib import Path
from typing import Any

import torch

from benchmarks.record import add_option, recorder
from litz import report as reports
from litz_autotune.measurement import summarize
from litz_autotune.plugin import plugin
from litz_autotune.timing import CudaTimer

F = torch.nn.functional
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
SECONDS = 0.1
"""For the measurement of one peer of a row."""
WARM_ROWS = 6
"""Rows, the first, that are compiled again, to see that nothing is measured and how long it takes."""
TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 5e-3, torch.float32: 5e-3}

# name: batch (0 for a plain matrix), m, n, k
PRODUCTS: dict[str, tuple[int, int, int, int]] = {
    **{f"square {n}": (0, n, n, n) for n in (256, 512, 1024, 2048, 4096, 8192)},
    "odd 777": (0, 777, 777, 777),
    "odd 1000": (0, 1000, 1000, 1000),
    "odd 4097x4095x4100": (0, 4097, 4095, 4100),
    **{f"decode {m}x4096x4096": (0, m, 4096, 4096) for m in (1, 8, 16, 32, 64, 128)},
    "decode 16x11008x4096": (0, 16, 11008, 4096),
    "decode 16x4096x11008": (0, 16, 4096, 11008),
    "tall 65536x64x64": (0, 65536, 64, 64),
    "tall 32768x128x128": (0, 32768, 128, 128),
    "tall 100000x32x256": (0, 100000, 32, 256),
    "wide 64x65536x64": (0, 64, 65536, 64),
    "split 128x128x16384": (0, 128, 128, 16384),
    "split 64x64x65536": (0, 64, 64, 65536),
    "split 256x256x32768": (0, 256, 256, 32768),
    "split 16x1024x16384": (0, 16, 1024, 16384),
    "batch 16x512": (16, 512, 512, 512),
    "batch 64x128x128x64": (64, 128, 128, 64),
    "batch 96x1024x1024x64": (96, 1024, 1024, 64),
    "batch 96x1024x64x1024": (96, 1024, 64, 1024),
    "gpt2 qkv": (0, 8192, 2304, 768),
    "gpt2 out": (0, 8192, 768, 768),
    "gpt2 up": (0, 8192, 3072, 768),
    "gpt2 down": (0, 8192, 768, 3072),
    "gpt2 head": (0, 8192, 50257, 768),
    "llama qkv": (0, 2048, 12288, 4096),
    "llama out": (0, 2048, 4096, 4096),
    "llama gate": (0, 2048, 22016, 4096),
    "llama down": (0, 2048, 4096, 11008),
    "vit qkv": (0, 12608, 2304, 768),
    "vit up": (0, 12608, 3072, 768),
    "vit down": (0, 12608, 768, 3072),
    "mlp 4096x1024x1024": (0, 4096, 1024, 1024),
    "dlrm 8192x512x479": (0, 8192, 512, 479),
}

# name: images, channels in, height = width, channels out, kernel, stride, padding, groups; channels last
CONVOLUTIONS: dict[str, tuple[int, int, int, int, int, int, int, int]] = {
    "conv1x1 64-256 56": (32, 64, 56, 256, 1, 1, 0, 1),
    "conv1x1 1024-256 14": (32, 1024, 14, 256, 1, 1, 0, 1),
    "conv3x3 64 56": (32, 64, 56, 64, 3, 1, 1, 1),
    "conv3x3 256 14": (32, 256, 14, 256, 3, 1, 1, 1),
    "conv3x3 128-128 stride 2": (32, 128, 56, 128, 3, 2, 1, 1),
    "grouped 3x3 256 28": (32, 256, 28, 256, 3, 1, 1, 16),
    "depthwise 3x3 256 28": (32, 256, 28, 256, 3, 1, 1, 256),
    "depthwise 7x7 96 56": (32, 96, 56, 96, 7, 1, 3, 96),
}

# The same for transposed ones: U-Net's and VAE decoders', a GAN's.
TRANSPOSED: dict[str, tuple[int, int, int, int, int, int, int, int]] = {
    "transposed 2x2 512-256 28 stride 2": (16, 512, 28, 256, 2, 2, 0, 1),
    "transposed 4x4 256-128 32 stride 2": (32, 256, 32, 128, 4, 2, 1, 1),
    "transposed 3x3 128-64 56 stride 2": (16, 128, 56, 64, 3, 2, 1, 1),
}

# name: m, n, k, and what makes an operand, or reduces a row; these count as rows with users
OPERANDS: dict[str, tuple[int, int, int, Callable[..., torch.Tensor]]] = {
    "of silu, gpt2 down": (8192, 768, 3072, lambda x, w, w8, w32, s: F.silu(x) @ w),
    "of int8 weights 16x4096x4096": (16, 4096, 4096, lambda x, w, w8, w32, s: x @ (w8.to(x.dtype) * s)),
    "of int8 weights 1x11008x4096": (1, 11008, 4096, lambda x, w, w8, w32, s: x @ (w8.to(x.dtype) * s)),
    "of float32 weights 64x4096x4096": (64, 4096, 4096, lambda x, w, w8, w32, s: x @ w32.to(x.dtype)),
    "softmax of 65536x64x256": (65536, 64, 256, lambda x, w, w8, w32, s: torch.softmax(x @ w, -1)),
    "layer norm of 32768x256x256": (32768, 256, 256, lambda x, w, w8, w32, s: F.layer_norm(x @ w, (256,))),
}

USERS: dict[str, Callable[..., torch.Tensor]] = {
    "": lambda y, bias, other: y,
    "bias+gelu": lambda y, bias, other: F.gelu(y + bias),
    "residual": lambda y, bias, other: y + other,
    "relu": lambda y, bias, other: F.relu(y),
}


@dataclass
class Row:
    """Times in µs, first calls in seconds; `stages` has what of them went into tuning, of litz's also into screening
    and finals, `chosen` what its autotuner chose, `problems` what went wrong, by who."""

    name: str
    users: str
    dtype: str
    us: dict[str, float] = field(default_factory=dict)
    noise: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    stages: dict[str, float] = field(default_factory=dict)
    chosen: str = ""
    races_warm: int = -1
    problems: dict[str, str] = field(default_factory=dict)

    def against(self, who: str, other: str) -> float:
        """How many times as fast `who` is as `other`; nan where one is missing."""
        return self.us[other] / self.us[who] if {who, other} <= set(self.us) else float("nan")


def cases(dtype: torch.dtype) -> Iterator[tuple[str, str, Callable[..., Any], list[torch.Tensor]]]:
    """(name, users, function, arguments)."""

    def randn(*size: int) -> torch.Tensor:
        return torch.randn(*size, device="cuda").to(dtype)

    second = list(USERS)[1:]
    numbered = list(enumerate(PRODUCTS.items()))
    yield from _products(numbered[::3], randn, second)
    yield from _others(randn, dtype)
    yield from _products([*numbered[1::3], *numbered[2::3]], randn, second)


def _products(numbered: Sequence[Any], randn: Callable[..., torch.Tensor], second: Sequence[str]) -> Iterator[Any]:
    for number, (name, (batch, m, n, k)) in numbered:
        lead = (batch,) if batch else ()
        a, b, bias, other = randn(*lead, m, k), randn(*lead, k, n), randn(n), randn(*lead, m, n)
        for users in ("", second[number % len(second)]):
            yield name, users, lambda a, b, bias, other, u=USERS[users]: u(a @ b, bias, other), [a, b, bias, other]


def _others(randn: Callable[..., torch.Tensor], dtype: torch.dtype) -> Iterator[Any]:
    for name, (m, n, k, product) in OPERANDS.items():
        w32 = torch.randn(k, n, device="cuda")
        w8 = (w32 * 30).to(torch.int8)
        yield name, "operand", product, [randn(m, k), w32.to(dtype), w8, w32, randn(n)]
    for name, (images, channels, size, out, kernel, *rest) in (CONVOLUTIONS | TRANSPOSED).items():
        stride, padding, groups = rest
        x = randn(images, channels, size, size).contiguous(memory_format=torch.channels_last)
        weight = (channels, out) if name in TRANSPOSED else (out, channels // groups)
        w = randn(*weight, kernel, kernel).contiguous(memory_format=torch.channels_last)
        options = {"stride": stride, "padding": padding, "groups": groups}
        convolve = partial(F.conv2d, **options)
        if name in TRANSPOSED:
            convolve = partial(F.conv_transpose2d, **options, output_padding=(kernel - 2 * padding) % stride)
        yield name, "", lambda x, w, f=convolve: f(x, w), [x, w]
        yield name, "relu", lambda x, w, f=convolve: F.relu(f(x, w)), [x, w]


def first_call(compiled: Callable[..., Any], args: Sequence[torch.Tensor]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    compiled(*args)
    torch.cuda.synchronize()
    return time.perf_counter() - start


def measure(
    name: str,
    users: str,
    dtype: str,
    fn: Callable[..., Any],
    args: list[torch.Tensor],
    folder: Path,
    inductor: bool = False,
    template: bool = False,
    warm: bool = False,
) -> Row:
    """One row: everyone's first call, a check against eager, and the times, in turns. inductor, template, warm: for
    these too."""
    row = Row(name, users, dtype)
    expected = fn(*args)
    runs: dict[str, Callable[[], Any]] = {"eager": lambda: fn(*args)}

    def add(who: str, compile_: Callable[[], Callable[..., Any]]) -> None:
        torch._dynamo.reset()
        try:
            compiled = compile_()
            row.seconds[who] = first_call(compiled, args)
            error = float((compiled(*args).float() - expected.float()).norm() / expected.float().norm())
            if not error <= TOLERANCE[expected.dtype]:
                row.problems[who] = f"relative error {error:.1e}"
                return
            runs[who] = lambda: compiled(*args)
        except Exception as problem:
            row.problems[who] = f"{type(problem).__name__}: {problem}".splitlines()[0][:200]
            traceback.print_exc(limit=2, file=sys.stderr)

    options = {"mode": "max-autotune-no-cudagraphs", "cache_dir": folder}
    before = vars(plugin.counters).copy()
    parts = ("screen", "final", "tuning")
    with reports.collect() as collected:
        add("litz", lambda: torch.compile(fn, backend="litz", options=options))
    row.stages = {part: vars(plugin.counters)[f"{part}_seconds"] - before[f"{part}_seconds"] for part in parts}
    decisions = [d for report in collected for d in report.decisions if d.plugin == "autotune"]
    row.chosen = "; ".join(dict.fromkeys(decision.chosen for decision in decisions))
    races = plugin.counters.races
    if warm:
        add("litz warm", lambda: torch.compile(fn, backend="litz", options=options))
        runs.pop("litz warm", None)
        row.races_warm = plugin.counters.races - races
    only = {**options, "autotune.backends": ("triton",)}
    if template:
        add("template", lambda: torch.compile(fn, backend="litz", options=only))
    if inductor:
        import torch._inductor.config as config

        before = _inductor_tuning()
        with config.patch(force_disable_caches=True):
            add("inductor", lambda: torch.compile(fn, mode="max-autotune-no-cudagraphs"))
        row.stages["inductor tuning"] = _inductor_tuning() - before
    runs["again"] = lambda: fn(*args)
    samples = CudaTimer().time(runs, torch.device("cuda"), SECONDS * len(runs))
    for who, found in samples.items():
        summary = summarize(found)
        row.us[who], row.noise[who] = summary.us, summary.noise_us
    return row


def _inductor_tuning() -> float:
    """Seconds that Inductor has spent so far on compiling and timing candidates, by its own account."""
    spent = torch._dynamo.utils.compilation_time_metrics
    return sum(sum(spent[name]) for name in spent if name.endswith(("_template_autotuning", "_template_precompiling")))


def geometric_mean(values: Sequence[float]) -> float:
    real = [value for value in values if value == value and 0 < value < inf]
    return exp(statistics.fmean(map(log, real))) if real else float("nan")


def line(row: Row) -> str:
    times = "  ".join(f"{who} {row.us[who]:9.2f}" for who in ("eager", "litz", "template", "inductor") if who in row.us)
    tuned = "  ".join(
        f"{who} {row.seconds[who]:.1f} s" for who in ("litz", "litz warm", "inductor") if who in row.seconds
    )
    problems = "; ".join(f"{who}: {text}" for who, text in row.problems.items())
    label = f"{row.name} {row.users}".strip()
    return f"{row.dtype} {label:32} {times}  x{row.against('litz', 'eager'):.3f}  [{tuned}] {row.chosen} {problems}"


def summary(rows: Sequence[Row]) -> list[str]:
    """The issue's bars."""
    found = []
    for label, chosen in (("plain", [r for r in rows if not r.users]), ("with users", [r for r in rows if r.users])):
        ratios = [row.against("litz", "eager") for row in chosen]
        found.append(f"{label}: litz is {geometric_mean(ratios):.3f} times as fast as eager, {len(chosen)} rows")
    slower = [row for row in rows if row.against("litz", "eager") < 0.98]
    found.append(f"slower than eager by more than 2 %: {len(slower)}")
    found += [f"    {line(row)}" for row in slower]
    for row in rows:
        if row.name == "square 8192" and not row.users:
            found.append(f"8192 cubed, {row.dtype}: the template has {row.against('template', 'eager'):.3f} of cuBLAS")
    tuned = [row for row in rows if {"litz", "inductor"} <= set(row.seconds)]
    shares = [row.seconds["litz"] / row.seconds["inductor"] for row in tuned]
    found.append(
        f"first call, cold: {geometric_mean(shares):.3f} of Inductor's, {len(tuned)} rows, "
        f"worst {max(shares, default=0):.3f}"
    )
    stages = [row.stages for row in rows if row.stages.get("inductor tuning")]
    shares = [stage["tuning"] / stage["inductor tuning"] for stage in stages]
    found.append(
        f"of that, tuning: {geometric_mean(shares):.3f} of Inductor's, {len(shares)} rows, "
        f"worst {max(shares, default=0):.3f}"
    )
    noise = [row.against("again", "eager") for row in rows if "again" in row.us]
    found.append(f"eager against itself: {min(noise, default=1):.3f} to {max(noise, default=1):.3f} times as fast")
    found.append(f"against Inductor: {geometric_mean([r.against('litz', 'inductor') for r in rows]):.3f} times as fast")
    warm = [row for row in rows if row.races_warm >= 0]
    again = sum(row.races_warm > 0 for row in warm)
    found.append(f"rows that measured anything with a filled cache: {again} of {len(warm)}")
    found.append(f"rows with problems: {sum(bool(row.problems) for row in rows)}")
    return found


def as_record(row: Row) -> dict[str, Any]:
    """What a line of benchmarks/results has of a row's first calls (`benchmarks.record`)."""
    peers = {
        who: {"cold_s": seconds, "kernel_ms": row.us[who] / 1e3 if who in row.us else None}
        for who, seconds in row.seconds.items()
    }
    case = ", ".join(filter(None, (row.name, row.users, row.dtype)))
    found = {"task": "first_calls", "case": case, "mode": "max-autotune", "peers": peers}
    return found | {"dtype": str(DTYPES[row.dtype]).removeprefix("torch."), "problems": row.problems}


def announced() -> bool:
    """Print what is measured on. Returns whether there is a device."""
    there = torch.cuda.is_available()
    where = f"{torch.cuda.get_device_name()} torch {torch.__version__}" if there else "no CUDA device"
    print(where if there else f"{where}: nothing to measure")
    return there


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print. Returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dtype", nargs="+", choices=tuple(DTYPES), default=["bf16"])
    parser.add_argument("--only", nargs="+", default=[""], help="shapes whose names contain one of these texts")
    parser.add_argument("--inductor", nargs="+", default=[], help='shapes that Inductor gets too, likewise; "" for all')
    parser.add_argument(
        "--template", nargs="+", default=["square"], help="shapes that the template runs alone, likewise"
    )
    parser.add_argument("--minutes", type=float, default=inf, help="stop after so many, and sum up what there is")
    parser.add_argument("--out", help="write the figures to this file, as JSON")
    add_option(parser)
    args = parser.parse_args(argv)
    if not announced():
        return 1
    stop = time.monotonic() + 60 * args.minutes
    rows, record = list[Row](), recorder(args.json, "autotune", "cuda", argv)
    for dtype in args.dtype:
        for name, users, fn, tensors in cases(DTYPES[dtype]):
            if not any(text in name for text in args.only):
                continue
            if time.monotonic() > stop:
                print("out of time")
                break
            inductor, template = (any(text in name for text in texts) for texts in (args.inductor, args.template))
            with tempfile.TemporaryDirectory() as folder:  # cold: nothing built, nothing measured
                warm = len(rows) < WARM_ROWS
                row = measure(name, users, dtype, fn, tensors, Path(folder), inductor, template, warm)
            rows.append(row)
            print(line(row), flush=True)
            if row.seconds:
                record(**as_record(row))
    print("\n".join(summary(rows)))
    if args.out:
        Path(args.out).write_text(json.dumps([asdict(row) for row in rows], indent=1))
    plugin.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
