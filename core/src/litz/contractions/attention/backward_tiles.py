"""Tiles of attention's backward. In: how wide the heads are, their type and the device. Out: pairs of tiles, the one
thought best first, and how long a backward with them takes.

The table is for Hopper: what fits into 255 registers a thread and 227 KiB of shared memory. The first kernel holds a
tile of the query's gradient, the second one of the key's and one of the value's, in float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

import torch

from litz.ir.index import Expr
from litz.target.describe import rate_kind
from litz_plugins import Estimate, Target

LEAST = 16
"""The shortest side of what tensor cores multiply."""
MOST = 256
"""The widest head there are tiles for."""


@dataclass(frozen=True)
class BackwardTile:
    """queries, keys: edges of a tile of scores. warps: of a program. stages: of loads under way."""

    queries: int
    keys: int
    warps: int
    stages: int

    def __str__(self) -> str:
        return f"{self.queries}x{self.keys}, {self.warps} warps, {self.stages} stages"


Pair = tuple[BackwardTile, BackwardTile]
"""Of the kernel of the query's gradient, and of that of the gradients of key and value."""

_HALF: Mapping[int, tuple[Pair, ...]] = {
    64: (
        (BackwardTile(128, 64, 8, 3), BackwardTile(64, 128, 8, 3)),
        (BackwardTile(64, 64, 4, 3), BackwardTile(64, 64, 4, 3)),
        (BackwardTile(64, 128, 8, 2), BackwardTile(128, 64, 8, 2)),
    ),
    128: (
        (BackwardTile(128, 64, 8, 2), BackwardTile(64, 128, 8, 2)),
        (BackwardTile(64, 64, 4, 2), BackwardTile(64, 64, 8, 2)),
        (BackwardTile(64, 64, 8, 3), BackwardTile(32, 64, 4, 2)),
    ),
    256: ((BackwardTile(64, 32, 8, 2), BackwardTile(32, 64, 8, 1)),),
}
_SINGLE: Mapping[int, tuple[Pair, ...]] = {
    64: (
        (BackwardTile(64, 32, 4, 2), BackwardTile(32, 64, 4, 2)),
        (BackwardTile(64, 64, 8, 2), BackwardTile(64, 64, 8, 2)),
    ),
    128: ((BackwardTile(32, 32, 4, 2), BackwardTile(32, 32, 4, 2)),),
    256: ((BackwardTile(32, 16, 8, 1), BackwardTile(16, 32, 8, 1)),),
}
_TABLES = {torch.float16: _HALF, torch.bfloat16: _HALF, torch.float32: _SINGLE}
"""Pairs for heads up to a width, by the operands' type."""


def padded(width: int | Expr) -> int:
    """The power of two, 16 at least, that a head's width is padded to."""
    return max(LEAST, 1 << (int(width) - 1).bit_length())


def tiles_for(width: int, dtype: torch.dtype) -> tuple[Pair, ...]:
    """What is worth measuring for heads of a width; () if nothing fits."""
    table = _TABLES.get(dtype, {})
    return next((pairs for most, pairs in table.items() if width <= most), ())


_REACHED: Mapping[int, float] = {64: 0.4, 128: 0.4, 256: 0.25}
"""What part of the tensor cores' peak a kernel reaches, by the width of the heads. Taken from published figures of the
backward of FlashAttention-2 on Hopper (Shah et al., 2024: about 400 of 989 TFLOP/s), which also computes scores anew."""
SPREAD = 2.0
"""The truth lies within this factor of the estimate."""


def estimate(heads: int, queries: int, keys: int, widths: tuple[int, int], dtype: torch.dtype, target: Target,
             share: float, tf32: bool) -> Estimate:  # fmt: skip
    """The expected time of both kernels, in µs. heads: of the query, in all batches. share: of the scores, that are
    looked at: of five products the second kernel does four, and the first two of them again and its own."""
    depth, width = widths
    kind = "tf32" if tf32 else rate_kind(dtype)
    peak, _ = target.matrix_rate(kind)
    flops = 2.0 * heads * queries * keys * share * (2 * depth + width + 2 * depth + 2 * width)
    reached = next((part for most, part in _REACHED.items() if max(widths) <= most), 0.25)
    programs = heads * ceil(max(queries, keys) / 64)
    busy = min(1.0, programs / target.units)
    us = flops / (peak * reached * busy)
    moved = heads * (queries * 3 + keys * 2) * (depth + width) * dtype.itemsize
    us = max(us, moved / target.bandwidth) + 2 * target.launch_us
    why = "arithmetic of two kernels" if flops / (peak * reached) * 2 > us else "memory traffic and launches"
    return Estimate(us, us / SPREAD, us * SPREAD, why)


__all__ = ["BackwardTile", "estimate", "padded", "tiles_for"]
