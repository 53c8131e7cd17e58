"""Quantising to float8, and products of float8: eager, TorchInductor and litz in one process, in turn.

    python -m benchmarks.float8 [--rows 4096] [--width 4096] [--device cuda] [--seconds 1]

Quantising is by rows and of the whole tensor (amax, scale, cast), and after a gated activation; products are
`_scaled_mm` of an activation that is quantised before, and linear layers of one and of eight rows with weights in
float8 that are not. ms is a median; under CUDA graphs on a GPU. `share` is the bytes that must be read and written
once over the time, of a copy's speed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.device_time import copy_speed, describe, in_turn, recorded

E4M3 = torch.float8_e4m3fn
BACKENDS = ("eager", "inductor", "litz")


def by_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.abs().amax(-1, keepdim=True).float() / 448
    return (x.float() / scale).clamp(-448, 448).to(E4M3), scale


def by_tensor(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.abs().amax().float() / 448
    return (x.float() / scale).clamp(-448, 448).to(E4M3), scale


def gated(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return by_rows(F.silu(x) * y)


def product(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    q, scale = by_rows(x)
    return torch._scaled_mm(q, w.t(), scale, s.t(), out_dtype=x.dtype)


def stored(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    return F.linear(x, w.to(x.dtype)) * s.squeeze(-1).to(x.dtype)


def cases(rows: int, width: int, device: torch.device) -> dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]]:
    x, y = (torch.randn(rows, width, device=device).bfloat16() for _ in range(2))
    weight = by_rows(torch.randn(width, width, device=device) / width**0.5)
    return {
        "rows": (by_rows, (x,)),
        "tensor": (by_tensor, (x,)),
        "gated": (gated, (x, y)),
        "back": (lambda q: q.to(torch.bfloat16), (weight[0],)),
        "scaled_mm": (product, (x, *weight)),
        "scaled_mm, 16 rows": (product, (x[:16], *weight)),
        "linear, 1 row": (stored, (x[:1], *weight)),
        "linear, 8 rows": (stored, (x[:8], *weight)),
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.float8", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=1.0, help="of measuring per case")
    args = parser.parse_args(argv)
    device = torch.device(args.device)
    with torch.no_grad():
        speed = copy_speed(device)
        print(f"{describe(device)}; copy {speed / 1e9:.0f} GB/s")
        print(f"{'case':20}" + "".join(f"{name + ' ms':>13}{'share':>7}" for name in BACKENDS))
        for name, (fn, given) in cases(args.rows, args.width, device).items():
            torch._dynamo.reset()
            steps = {}
            for backend in BACKENDS:
                run = fn if backend == "eager" else torch.compile(fn, backend=backend, dynamic=False)
                step = partial(run, *given)
                for _ in range(3):
                    found = step()
                steps[backend] = recorded(step) if device.type == "cuda" else step
            results = found if isinstance(found, tuple) else (found,)
            moved = sum(t.nbytes for t in (*given, *results))
            times = in_turn(steps, device, args.seconds)
            shares = (f"{times[each]:13.4f}{moved / (times[each] * 1e-3) / speed:7.3f}" for each in BACKENDS)
            print(f"{name:20}" + "".join(shares), flush=True)


if __name__ == "__main__":
    main()
