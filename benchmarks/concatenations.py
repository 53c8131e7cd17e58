"""Concatenations whose segments share values: the gradients of a gate, the gradients of an LSTM's gates, a rotation.

    python -m benchmarks.concatenations [--dtype float32] [--device cuda] [--peers eager litz] [CASE ...]

The table is that of `benchmarks.function_cases`. The GPU's cases have the sizes of a layer of a large model, the CPU's
of a small one. On one core of a CPU all cases take two minutes with compiling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from .function_cases import Case, print_table


def geglu(x: Tensor) -> Tensor:
    h, g = x.chunk(2, -1)
    return h * F.gelu(g)


def swiglu(x: Tensor) -> Tensor:
    h, g = x.chunk(2, -1)
    return h * F.silu(g)


def biased_geglu(x: Tensor, bias: Tensor) -> Tensor:
    return geglu(x + bias)


def rotation(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def cell(x: Tensor, state: Tensor) -> Tensor:
    i, f, z, o = x.chunk(4, -1)
    return o.sigmoid() * (f.sigmoid() * state + i.sigmoid() * z.tanh()).tanh()


def _rotated(size: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Sizes of the queries, and of the cosines and sines of their positions."""
    return [size, size[-2:], size[-2:]]


CASES: Mapping[str, Case] = {
    "geglu": Case(geglu, [(32768, 6144)], [(4096, 1536)]),
    "swiglu": Case(swiglu, [(16384, 16384)], [(4096, 2048)]),
    "geglu of a bias": Case(biased_geglu, [(32768, 6144), (6144,)], [(4096, 1536), (1536,)], differentiated=2),
    "rotation": Case(rotation, _rotated((8, 32, 2048, 128)), _rotated((4, 16, 512, 128))),
    "rotation of 32": Case(rotation, _rotated((8, 32, 8192, 32)), _rotated((8, 16, 512, 32))),
    "LSTM": Case(cell, [(16384, 8192), (16384, 2048)], [(1024, 2048), (1024, 512)]),
}


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    print_table("concatenations", (__doc__ or "").splitlines()[0], CASES, argv)


if __name__ == "__main__":
    main()
