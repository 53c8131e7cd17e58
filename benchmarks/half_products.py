"""Products and convolutions of half types on a CPU: as torch has them, and in float32 with conversions.

    python -m benchmarks.half_products [--seconds 0.2] [CASE ...]

Microseconds of eager's call in bfloat16 and float16, and of the same call in float32 between conversions by eager.
litz takes the second way where torch's library has no kernels of the type for the processor (the first line says so),
and the conversions then fuse with other operations. The figures of `wide_products` (litz-passes) come from this table.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from litz_passes.processor import without_kernels

from .single_ops import least

Sizes = Sequence[tuple[int, ...]]
SHAPES = ((1, 512, 512), (4, 512, 512), (8, 8, 8), (32, 512, 512), (256, 64, 64), (64, 1024, 1024), (512, 512, 512))
CASES: dict[str, tuple[Callable[..., Tensor], Sizes]] = {
    **{f"mm {m}x{k}x{n}": (torch.mm, ((m, k), (k, n))) for m, k, n in SHAPES},
    **{f"linear {m}x{k}x{n}": (F.linear, ((m, k), (n, k))) for m, k, n in SHAPES},
    "bmm 16 of 128x64x128": (torch.bmm, ((16, 128, 64), (16, 64, 128))),
    "bmm 96 of 49x32x49": (torch.bmm, ((96, 49, 32), (96, 32, 49))),
    "bmm 1000 of 3x3x3": (torch.bmm, ((1000, 3, 3), (1000, 3, 3))),
    "conv 3x3, 64 channels": (lambda x, w: F.conv2d(x, w, padding=1), ((2, 64, 32, 32), (64, 64, 3, 3))),
    "conv 1x1, 64 to 128": (F.conv2d, ((2, 64, 32, 32), (128, 64, 1, 1))),
    "depthwise 7x7": (lambda x, w: F.conv2d(x, w, padding=3, groups=96), ((2, 96, 32, 32), (96, 1, 7, 7))),
    "patches of 16": (lambda x, w: F.conv2d(x, w, stride=16), ((2, 3, 224, 224), (192, 3, 16, 16))),
}


def as_it_is(function: Callable[..., Tensor], operands: Sequence[Tensor]) -> Tensor:
    """Returns the call's result."""
    return function(*operands)


def in_float32(function: Callable[..., Tensor], operands: Sequence[Tensor]) -> Tensor:
    """Returns the call's result, computed in float32."""
    return function(*(each.float() for each in operands)).to(operands[0].dtype)


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help="parts of the names of cases; all without one")
    parser.add_argument("--seconds", type=float, default=0.2, help="for each figure")
    given = parser.parse_args(argv)
    missing = ", ".join(sorted(map(str, without_kernels()))) or "none"
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; types without products: {missing}")
    print(f"{'':24}{'bfloat16':>12}{'in float32':>12}{'float16':>12}{'in float32':>12}  us")
    for name, (function, sizes) in CASES.items():
        if given.cases and not any(part in name for part in given.cases):
            continue
        row = list[float]()
        for dtype in (torch.bfloat16, torch.float16):
            half = [torch.randn(size).to(dtype) for size in sizes]
            ways = {way.__name__: partial(way, function, half) for way in (as_it_is, in_float32)}
            row += least(ways, given.seconds).values()
        print(f"{name:24}" + "".join(f"{each:12.0f}" for each in row))


if __name__ == "__main__":
    main()
