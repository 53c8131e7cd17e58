"""Products of many rows and what is done with them: the library's call and a kernel for its users, the library's own
epilogues, and litz's kernels that do both.

    python -m benchmarks.epilogues [--dtype bf16] [--only TEXT ...] [--users NAME ...] [--cases "PRODUCT:USERS" ...]
                                   [--for-table] [--unaligned] [--seconds 0.1] [--jobs N] [--budget S] [--plain]
                                   [--out FILE]

Device microseconds, cold caches, CUDA graphs, all of a row in turn (`litz_autotune.timing`). `eager` is a function as
it is written, `product` its product alone, `library` litz with the library's call (and a kernel for the users), `now`
what litz chooses by its estimates, and then litz's kernels tile by tile, whatever their estimates say. With
--for-table, the cases that `benchmarks.epilogue_table` fills core's table from, the most telling first. --out is
written after each row, and no row begins after --budget seconds. With --jobs, so many processes fill litz's cache of
kernels before. Errors are relative to float64: the norm of the difference.

With --unaligned, results whose rows begin at no multiples of 16 bytes, such as GPT-2's 50257 columns: `eager` is the
library's call on them, `product` the call on operands that were padded before, `library` the padding, that call, and
the copy of the result, as litz does where it has no kernel of its own, and the tiles are those for such rows.

With --plain, what ATen offers: the product alone ("mm"), with a bias ("addmm"), with a matrix to add ("addmm 2d", and
into that matrix: "addmm_"), and `_addmm_activation` with a bias and with beta=0. After those: how many kernels each is,
by torch's profiler.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.autotune import PRODUCTS
from benchmarks.device_time import describe, recorded
from benchmarks.record import add_option, recorder
from litz.schedule import choices
from litz_autotune.measurement import summarize
from litz_autotune.timing import CudaTimer
from litz_contractions.module import Unsuitable
from litz_contractions.products import many_rows
from litz_contractions.products.many_rows import Tile
from litz_plugins import Choice, ChoiceContext
from support.figures import figures_set

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
OPTIONS = {"graph_cache": False, "build_processes": 0}
"""The runs of a row differ by patches that the graph cache's key has no part of."""
CANDIDATES = (
    Tile(128, 256, 3, 8, 1.2),
    Tile(128, 128, 4, 8, 1.2),
    Tile(128, 128, 4, 4, 1.2),
    Tile(64, 256, 4, 4, 1.2),
    Tile(64, 128, 6, 4, 1.2),
)
"""What is timed on Hopper; the shares are guesses."""
UNALIGNED_CANDIDATES = (
    Tile(128, 256, 3, 8, 1.2, apart=True),
    Tile(128, 128, 4, 8, 1.2, apart=True),
    Tile(64, 256, 4, 4, 1.2, apart=True),
    Tile(128, 256, 3, 8, 1.5),
    Tile(128, 128, 4, 8, 1.5),
)
"""What --unaligned times: results whose rows begin anywhere; the shares are guesses, beside the
library's product of padded operands."""
FILLING = 0.4
"""The part of a budget that may go into filling the cache of kernels."""
USERS: Mapping[str, Callable[..., Tensor]] = {
    "alone": lambda a, b, bias, other: a @ b,
    "relu": lambda a, b, bias, other: F.relu(a @ b),
    "residual": lambda a, b, bias, other: a @ b + other,
    "bias+gelu": lambda a, b, bias, other: F.gelu(a @ b + bias),
    "linear+tanh gelu": lambda a, b, bias, other: F.gelu(torch.addmm(bias, a, b), approximate="tanh"),
    "linear+relu": lambda a, b, bias, other: F.relu(torch.addmm(bias, a, b)),
    "linear+residual": lambda a, b, bias, other: torch.addmm(bias, a, b) + other,
}
ACTIVATION = torch.ops.aten._addmm_activation.default
PLAIN: Mapping[str, Callable[..., Tensor]] = {
    "mm": lambda a, b, bias, other: a @ b,
    "addmm": lambda a, b, bias, other: torch.addmm(bias, a, b),
    "addmm 2d": lambda a, b, bias, other: torch.addmm(other, a, b),
    "addmm_": lambda a, b, bias, other: other.addmm_(a, b, beta=0.5),
    "act gelu": lambda a, b, bias, other: ACTIVATION(bias, a, b, use_gelu=True),
    "act relu": lambda a, b, bias, other: ACTIVATION(bias, a, b),
    "act relu beta 0": lambda a, b, bias, other: ACTIVATION(bias, a, b, beta=0),
}
MEANS: Mapping[str, Callable[..., Tensor]] = {
    "act gelu": USERS["linear+tanh gelu"],
    "act relu": USERS["linear+relu"],
    "act relu beta 0": USERS["relu"],
    "addmm 2d": USERS["residual"],
}
"""What a call of `PLAIN` computes, as eager would."""


TABLE_USERS = ("linear+residual", "bias+gelu", "relu")
TABLE_PRODUCTS = (
    *("gpt2 up", "llama out", "gpt2 down", "square 4096", "mlp 4096x1024x1024", "square 2048", "llama down", "vit up"),
    *("gpt2 out", "square 1024", "gpt2 qkv", "tall 32768x128x128", "vit down", "decode 128x4096x4096", "llama qkv"),
)
FIRST_PRODUCTS = 8
"""So many products come with all users before the others come."""


UNALIGNED: Mapping[str, tuple[int, int, int, int]] = {
    f"{m}x{n}x{k}": (0, m, n, k)
    for m, n, k in (
        *((4096, 50257, 768), (8192, 50257, 768), (512, 50257, 768), (2048, 50257, 1024), (4096, 32001, 4096)),
        *((8192, 1001, 1024), (2048, 30523, 768), (8192, 32001, 1024), (512, 32001, 4096), (2048, 1001, 4096)),
        *((2048, 50257, 4096), (8192, 30523, 1024), (4096, 1001, 768), (512, 30523, 1024), (2048, 32001, 768)),
    )
}
"""Rows, columns and depth; the most telling first."""
SIZES = {**PRODUCTS, **UNALIGNED}


def table_cases() -> list[str]:
    """What `--for-table` measures."""
    parts = TABLE_PRODUCTS[:FIRST_PRODUCTS], TABLE_PRODUCTS[FIRST_PRODUCTS:]
    return [f"{name}:{users}" for part in parts for users in TABLE_USERS for name in part]


@dataclass
class Row:
    """One product with users. us: by who. chosen: the name of what each ran. kernels: how many, by who. sizes: rows,
    columns and depth. tiles: by who, the tile and the parts of its estimate. library: the estimate for the product
    alone, and what is estimated for it with the users at best (`replaced`). rivals: other choices' estimates."""

    name: str
    users: str
    us: dict[str, float] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    chosen: dict[str, str] = field(default_factory=dict)
    kernels: dict[str, int] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)
    tiles: dict[str, dict[str, float]] = field(default_factory=dict)
    library: dict[str, float] = field(default_factory=dict)
    rivals: list[dict[str, Any]] = field(default_factory=list)


class _Taken:
    """In the place of `by_estimate`: the library (None), or the kernel of the tile of a number; notes what estimates
    are made of."""

    def __init__(self, number: int | None, candidates: Sequence[Tile] = CANDIDATES) -> None:
        self.number, self.name, self.candidates = number, "", candidates
        self.tile: dict[str, float] = {}
        self.library: dict[str, float] = {}
        self.rivals: list[dict[str, Any]] = []

    def __call__(self, offered: Sequence[Choice], context: ChoiceContext) -> Choice | None:
        try:
            ways = many_rows.ways(context.operation, context, self.candidates)
        except Unsuitable:
            return None
        own = {way.choice.name: way for way in ways}
        if self.number is None:
            rivals = [each for each in offered if each.kind == "template" and each.name not in own and each.estimate]
            self.rivals = [_rival(each, context) for each in rivals]
            return None
        tile = self.candidates[self.number]
        for choice in offered:
            if choice.name in own and own[choice.name].tile == tile:
                cost, self.name = own[choice.name].cost, choice.name
                self.tile = {**asdict(tile), "filled": cost.filled, "added_us": cost.added_us}
                known = cost.library
                self.library = {"low": known.low_us, "us": known.us, "high": known.high_us}
                self.library["replaced"] = choices._replaced_us(choice, context)
                return choice
        return None


def _rival(choice: Choice, context: ChoiceContext) -> dict[str, Any]:
    assert choice.estimate is not None
    replaced = choices._replaced_us(choice, context)
    return {"name": choice.name, "us": choice.estimate.us, "high": choice.estimate.high_us, "replaced": replaced}


def operands(name: str, dtype: torch.dtype) -> list[Tensor]:
    """The matrices, a bias and a matrix to add; results are of size 1 about."""
    _, m, n, k = SIZES[name]

    def made(*size: int) -> Tensor:
        return torch.randn(*size, device="cuda")

    weight = made(n, k).t() if n % 8 else made(k, n)  # a linear layer's, where rows of n would be unaligned
    return [each.to(dtype) for each in (made(m, k), weight / k**0.5, made(n), made(m, n))]


def product_of(users: str) -> Callable[..., Tensor]:
    """The library's call without what is done with its result."""
    if users.startswith("linear"):
        return lambda a, b, bias, other: torch.addmm(bias, a, b)
    return USERS["alone"]


def measure(name: str, users: str, dtype: torch.dtype, seconds: float) -> Row:
    """Eager, the library, what is chosen, and each kernel that is offered. seconds: 0 to compile only."""
    row, fn, given = Row(name, users, sizes=list(SIZES[name][1:])), USERS[users], operands(name, dtype)
    candidates = UNALIGNED_CANDIDATES if name in UNALIGNED else CANDIDATES
    exact = fn(*(each.double() for each in given)) if seconds else None
    runs: dict[str, Callable[[], Any]] = {}

    def add(who: str, how: Callable[..., Tensor], same: bool = True) -> bool:
        try:
            found = how(*given)
            if exact is not None:
                row.errors |= {who: _error(found, exact)} if same else {}
                # A graph of its own: dynamo compiles anew after the next reset.
                runs[who] = recorded(lambda: how(*given))
        except Exception as problem:
            row.problems[who] = f"{type(problem).__name__}: {problem}".splitlines()[0][:200]
        return who not in row.problems

    def compiled() -> Callable[..., Tensor]:
        torch._dynamo.reset()
        return torch.compile(lambda *args: fn(*args), backend="litz", dynamic=False, options=OPTIONS)

    add("eager", fn)
    wide = F.pad(given[1].t(), (0, 0, 0, -given[1].shape[1] % 64)).t()
    add("product", (lambda a, b, bias, other: a @ wide) if name in UNALIGNED else product_of(users), same=False)
    numbers: list[int | None] = [None, *range(len(candidates))]
    for number in numbers:
        who, taken = "library" if number is None else f"tile {number}", _Taken(number, candidates)
        tiles = figures_set(many_rows__tiles=candidates, many_rows__unaligned_tiles=candidates)
        with mock.patch.object(choices, "by_estimate", taken), tiles:
            added = add(who, compiled())
        if number is None:
            row.rivals = taken.rivals
        elif taken.name:
            row.tiles[who], row.library = taken.tile, taken.library
            row.chosen |= {who: taken.name} if added else {}
        else:  # the library's call ran
            runs.pop(who, None)
            row.errors.pop(who, None)
    add("now", compiled())
    if seconds:
        _time(row, runs, seconds)
    return row


def measure_plain(name: str, dtype: torch.dtype, seconds: float) -> Row:
    """What ATen offers, and how many kernels each is."""
    row, given = Row(name, "plain"), operands(name, dtype)
    runs: dict[str, Callable[[], Any]] = {}
    for who, call in PLAIN.items():
        try:
            result = call(*given)
        except Exception as problem:
            row.problems[who] = f"{type(problem).__name__}: {problem}".splitlines()[0][:200]
            continue
        if who.startswith("act"):
            odd = given[0].clone()
            odd[0, 0] = float("nan")
            row.chosen[f"NaN of {who}"] = "kept" if call(odd, *given[1:])[0].isnan().all() else "lost"
        if who in MEANS:
            exact = MEANS[who](*(each.double() for each in given))
            row.errors[who] = _error(result, exact)
            row.errors[f"{who}, eager"] = _error(MEANS[who](*given), exact)
        row.kernels[who] = _kernels(lambda call=call: call(*given))
        runs[who] = lambda call=call: call(*given)
    _time(row, runs, seconds)
    return row


def fill_cache(cases: Sequence[str], dtype: str, jobs: int, most_s: float | None = None) -> None:
    """Compile what will be measured, in processes side by side, which end after `most_s` seconds if not before."""
    command = [sys.executable, "-m", "benchmarks.epilogues", "--dtype", dtype, "--seconds", "0", "--cases"]
    shares = [cases[number::jobs] for number in range(min(jobs, len(cases)))]
    begun = time.monotonic()
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "LITZ_BUILD_WORKERS": "1"}
    started = [subprocess.Popen([*command, *share], stdout=subprocess.DEVNULL, env=environ) for share in shares]
    for process in started:
        try:
            process.wait(None if most_s is None else max(0.0, begun + most_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    print(f"{len(started)} processes filled the cache of kernels in {time.monotonic() - begun:.1f} s", flush=True)


def _time(row: Row, runs: Mapping[str, Callable[[], Any]], seconds: float) -> None:
    samples = CudaTimer().time(runs, torch.device("cuda", 0), seconds * len(runs))
    row.us = {who: summarize(found).us for who, found in samples.items()}


def _error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


def _kernels(run: Callable[[], Any]) -> int:
    run()
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        run()
        torch.cuda.synchronize()
    return sum(event.count for event in profile.key_averages() if event.self_device_time_total > 0)


def _lines(row: Row, plain: bool) -> list[str]:
    """A row as text; errors where they are asked for, or worse than eager's."""
    worse = max(row.errors.values(), default=0.0) > 1.1 * row.errors.get("eager", 1.0)
    parts: list[tuple[str, Mapping[str, object]]] = [("kernels", row.kernels), ("ran", row.chosen)]
    parts += [("errors", {who: f"{error:.2e}" for who, error in row.errors.items()})] if plain or worse else []
    lines = [f"{row.name}; {row.users}: " + ", ".join(f"{who} {us:.2f}" for who, us in row.us.items())]
    for title, values in (*parts, ("problems", row.problems)):
        if values:
            lines.append(f"    {title}: " + ", ".join(f"{who} {value}" for who, value in values.items()))
    return lines


def as_record(row: Row, dtype: torch.dtype) -> dict[str, Any]:
    """What a line of benchmarks/results has of a row (`benchmarks.record`)."""
    peers = {
        who: {"kernel_ms": us / 1e3, "kernels": row.kernels.get(who), "error": row.errors.get(who)}
        for who, us in row.us.items()
    }
    case = f"{' x '.join(map(str, row.sizes)) or row.name}, {row.users or 'alone'}"
    return {"task": "products", "case": case, "dtype": str(dtype)[6:], "peers": peers, "problems": row.problems}


def main(argv: Sequence[str] | None = None) -> None:
    """Print a line per product and users; write JSON to --out."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.epilogues", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dtype", choices=list(DTYPES), default="bf16")
    parser.add_argument("--only", nargs="+", default=[""], help="products whose name has one of these texts in it")
    parser.add_argument("--users", nargs="+", default=list(USERS), choices=list(USERS))
    parser.add_argument("--cases", nargs="+", help="instead of both: a product's name, a colon, and users")
    parser.add_argument("--for-table", action="store_true", help="the cases that core's table of tiles is made from")
    parser.add_argument("--unaligned", action="store_true", help="the cases that core's table for unaligned rows needs")
    parser.add_argument("--budget", type=float, help="seconds in all, after which no other row begins")
    parser.add_argument("--seconds", type=float, default=0.1, help="to time each run of a row; 0: compile only")
    parser.add_argument("--jobs", type=int, default=0, help="processes that compile before")
    parser.add_argument("--plain", action="store_true", help="what ATen offers instead")
    parser.add_argument("--out", help="write the figures to this file, as JSON")
    add_option(parser)
    args = parser.parse_args(argv)
    print(f"{describe(torch.device('cuda'))}; {args.dtype}", flush=True)
    begun = time.monotonic()
    names = [name for name, shape in PRODUCTS.items() if not shape[0] and any(text in name for text in args.only)]
    asked = [f"{name}:{users}" for name in names for users in ([""] if args.plain else args.users)]
    if args.unaligned:
        asked = [f"{name}:alone" for name in UNALIGNED]
    cases = args.cases or (table_cases() if args.for_table else asked)
    if args.jobs and not args.plain:
        fill_cache(cases, args.dtype, args.jobs, args.budget and FILLING * args.budget)
    record = recorder(args.json, "epilogues", "cuda", argv, {"eager": "eager", "now": "litz"})
    found: list[Row] = []
    for case in cases:
        if args.budget and time.monotonic() - begun > args.budget:
            print(f"{len(cases) - len(found)} of {len(cases)} rows are left out: the time is over", flush=True)
            break
        name, _, users = case.partition(":")
        with torch.no_grad():
            if args.plain:
                row = measure_plain(name, DTYPES[args.dtype], args.seconds)
            else:
                row = measure(name, users, DTYPES[args.dtype], args.seconds)
        found.append(row)
        record(**as_record(row, DTYPES[args.dtype]))
        for line in _lines(row, args.plain):
            print(line, flush=True)
        if args.out:
            major, minor = torch.cuda.get_device_capability()
            facts = {"where": describe(torch.device("cuda")), "capability": 10 * major + minor, "dtype": args.dtype}
            _write(Path(args.out), {**facts, "rows": [asdict(one) for one in found]})


def _write(out: Path, data: object) -> None:
    """All of a file or nothing, so that who is cut off leaves the rows before."""
    part = out.with_suffix(".part")
    part.write_text(json.dumps(data, indent=1))
    part.replace(out)


if __name__ == "__main__":
    main()
