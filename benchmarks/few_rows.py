"""Products of few rows: the library's call (eager) and litz's kernel, with weights multiplied as they are stored.

    python -m benchmarks.few_rows [--rows 1 4 16] [--dtype bf16] [--stored int8 e4m3fn ...] [--only TEXT ...]
                                  [--out FILE]

Every call reads other weights, so that none comes out of the L2; microseconds a call in a CUDA graph of many, one
compiled function, the median of 20 replays. `together` is several products of one activation, `gated` two and silu(one)
times the other. The kernel is taken whatever its estimate says; `share` is its part of the copy bandwidth, `litz/eager`
below 1 where the kernel is quicker. `error` is the largest difference from the product in float64, of the largest
result, eager's and litz's. With `--stored`, weights are of those types and are converted to the activation's, which
eager does in a kernel of its own.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.device_time import copy_speed, describe, recorded
from litz.schedule import choices
from litz_plugins import Choice, ChoiceContext

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
STORED = {
    "int8": torch.int8,
    **{name: getattr(torch, f"float8_{name}") for name in ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz")},
}
"""Types that weights may be converted from."""
COLD = 4 * 10**8
"""Bytes of all weights together, several times an L2."""
Call = Callable[..., Sequence[Tensor]]


def linear(x: Tensor, *weights: Tensor) -> list[Tensor]:
    """Weights (columns, depth), as a linear layer has them."""
    return [F.linear(x, weight.to(x.dtype)) for weight in weights]


def product(x: Tensor, *weights: Tensor) -> list[Tensor]:
    """Weights (depth, columns), as a linear layer's backward multiplies them."""
    return [x @ weight.to(x.dtype).t() for weight in weights]


def gated(x: Tensor, *weights: Tensor) -> list[Tensor]:
    """A gate and what it lets through, as SwiGLU has them."""
    gate, up = (F.linear(x, weight.to(x.dtype)) for weight in weights)
    return [F.silu(gate) * up]


SHAPES: Mapping[str, tuple[Call, tuple[int, ...], int]] = {
    "4096 x 4096": (linear, (4096,), 4096),
    "1024 x 4096": (linear, (1024,), 4096),
    "14336 x 4096": (linear, (14336,), 4096),
    "4096 x 14336": (linear, (4096,), 14336),
    "2048 x 2048": (linear, (2048,), 2048),
    "768 x 768": (linear, (768,), 768),
    "3072 x 768": (linear, (3072,), 768),
    "1000 x 2048": (linear, (1000,), 2048),
    "1001 x 999": (linear, (1001,), 999),
    "50257 x 768": (linear, (50257,), 768),
    "2048 x 1000, transposed": (product, (2048,), 1000),
    "4096 x 4096, transposed": (product, (4096,), 4096),
    "together 4096 + 2 of 1024": (linear, (4096, 1024, 1024), 4096),
    "together 2 of 14336": (linear, (14336, 14336), 4096),
    "gated 2 of 14336": (gated, (14336, 14336), 4096),
}


@dataclass
class Row:
    """One shape. stored: the weights' type. eager_us, litz_us: of a call. share: of a copy's bandwidth."""

    shape: str
    stored: str
    rows: int
    eager_us: float
    litz_us: float
    share: float
    eager_error: float
    litz_error: float


def measure(shape: str, count: int, dtype: torch.dtype, peak: float, stored: str | None = None) -> Row:
    """Both in turn, on the same weights. stored: of `STORED`; None where weights are of `dtype`."""
    call, columns, depth = SHAPES[shape]
    kind = dtype if stored is None else STORED[stored]
    nbytes = sum(columns) * depth * kind.itemsize

    def weight(n: int) -> Tensor:
        made = torch.randn(n, depth, device="cuda") * (depth**-0.5 if stored is None else 16)
        return (made if call is not product else made.t().contiguous().t()).to(kind)

    sets = [[weight(n) for n in columns] for _ in range(min(96, max(6, ceil(COLD / nbytes))))]
    given = [(torch.randn(count, depth, device="cuda").to(dtype), *each) for each in sets]  # or they would run together
    exact = call(*(one.double() for one in given[0]))

    def run(given: Sequence[Sequence[Tensor]]) -> list[Sequence[Tensor]]:
        return [call(*one) for one in given]

    torch._dynamo.reset()
    with mock.patch.object(choices, "by_estimate", _kernel):
        compiled = torch.compile(run, backend="litz", dynamic=False)
        error = {name: _error(how(given)[0], exact) for name, how in (("eager", run), ("litz", compiled))}
    steps = {name: recorded(lambda how=how: how(given)) for name, how in (("eager", run), ("litz", compiled))}
    us = {name: _median(step) / len(sets) for name, step in steps.items()}
    share = nbytes / us["litz"] * 1e6 / peak
    return Row(shape, stored or str(dtype)[6:], count, us["eager"], us["litz"], share, error["eager"], error["litz"])


def _kernel(offered: Sequence[Choice], context: ChoiceContext) -> Choice | None:
    """The kernel, whatever its estimate says."""
    return next((choice for choice in offered if choice.kind == "template"), None)


def _error(found: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    return max(float((a.double() - b).abs().max() / b.abs().max()) for a, b in zip(found, exact, strict=True))


def _median(step: Callable[[], object]) -> float:
    samples = []
    for _ in range(22):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        step()
        end.record()
        torch.cuda.synchronize()
        samples.append(start.elapsed_time(end) * 1e3)
    return statistics.median(samples[2:])


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table; write JSON to --out."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.few_rows", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 4, 16])
    parser.add_argument("--dtype", choices=list(DTYPES), default="bf16")
    parser.add_argument("--stored", nargs="+", choices=list(STORED), help="types that weights are converted from")
    parser.add_argument("--only", nargs="+", default=[""], help="shapes whose name has one of these texts in it")
    parser.add_argument("--out", help="write the figures to this file, as JSON")
    args = parser.parse_args(argv)
    device = torch.device("cuda")
    peak = copy_speed(device)
    print(f"{describe(device)}; copy {peak / 1e9:.0f} GB/s; {args.dtype}")
    print(
        f"{'columns x depth':28}{'stored':>9}{'rows':>5}{'eager us':>10}{'litz us':>9}{'litz/eager':>11}"
        f"{'share':>7}{'errors':>17}"
    )
    found: list[Row] = []
    with torch.no_grad():
        for shape in (name for name in SHAPES if any(text in name for text in args.only)):
            for stored, count in itertools.product(args.stored or [None], args.rows):
                row = measure(shape, count, DTYPES[args.dtype], peak, stored)
                found.append(row)
                print(
                    f"{shape:28}{row.stored:>9}{count:>5}{row.eager_us:10.2f}{row.litz_us:9.2f}"
                    f"{row.litz_us / row.eager_us:11.2f}{row.share:7.2f}{row.eager_error:9.1e}{row.litz_error:8.1e}",
                    flush=True,
                )
                if args.out:
                    facts = {"where": describe(device), "copy_bytes_per_second": peak, "dtype": args.dtype}
                    Path(args.out).write_text(json.dumps({**facts, "rows": [asdict(one) for one in found]}, indent=1))


if __name__ == "__main__":
    main()
