"""Tiles of attention's backward. In: how wide the heads are, their type, and how float32 is multiplied. Out: pairs of
tiles, the one thought best first.

The table is for Hopper: what fits into 255 registers a thread and 227 KiB of shared memory, as Triton 3.7 compiles it
for sm_90. The first kernel holds a tile of the query's gradient, the second one of the key's and one of the value's, in
float32.

Measured on an H200 (2026-11-22, Triton 3.6, bfloat16, causal, 4096 queries and keys), in TFLOP/s:

| heads of | the first kernel | the second |
|---|---|---|
| 64 | 64x64 4w 3s 532, 64x32 4w 3s 522 | 128x64 4w 2s 492, 32x64 4w 3s 477 |
| 128 | 128x64 8w 3s 570, 64x64 4w 2s 525 | 64x64 4w 2s 559, 32x64 4w 3s 506 |
| 256 | 128x64 8w 1s 421, 128x32 8w 2s 392 | 64x64 8w 2s 279, 32x64 8w 2s 215 |

Others are up to five times as slow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil

import torch

from .tiles import padded


@dataclass(frozen=True)
class BackwardTile:
    """A tile of queries by keys scores, and its program's warps and stages (loads under way)."""

    queries: int
    keys: int
    warps: int
    stages: int

    def __str__(self) -> str:
        return f"{self.queries}x{self.keys} {self.warps}w {self.stages}s"

    @property
    def copies(self) -> int:
        """Returns how many tiles of what is walked are in shared memory. What tensor cores do not take from there (of
        less than 64 rows) goes through it on its way."""
        return self.stages if min(self.queries, self.keys) >= 64 else max(2, self.stages)

    def effort(self, queries: int, keys: int, width: int) -> float:
        """Returns how much longer it takes for a block of so many queries and keys than a large tile that fills it.
        width: of a head."""
        tiles, area = ceil(queries / self.queries) * ceil(keys / self.keys), self.queries * self.keys
        filled = queries * keys / (tiles * area)
        reached = _NARROW if width <= 64 else _WIDE
        return 1 / (filled * next((part for least, part in reached.items() if area >= least), 0.25))


_WIDE = {8192: 1.0, 4096: 0.85, 2048: 0.65, 1024: 0.45}
"""What part of a large tile's speed a smaller one has, by its scores: it loads more for each product, and below 64 rows
Hopper's tensor cores are not fully used. An estimate; see `benchmarks.attention_backward_tiles`."""
_NARROW = {2048: 1.0, 1024: 0.55}
"""The same for heads of up to 64 elements. From 2048 scores on size gains nothing, as was measured; the order of the
table decides. Below it is an estimate."""


@dataclass(frozen=True)
class BackwardTiles:
    """The tiles of two kernels. first: for the query's gradient. second: for the gradients of key and value."""

    first: BackwardTile
    second: BackwardTile

    def __str__(self) -> str:
        return f"{self.first}, {self.second}"

    def shared_bytes(self, widths: tuple[int, int], itemsize: int) -> int:
        """Returns the bytes of shared memory that a program of either kernel takes: its own tiles, and those on their
        way. widths: of a key and of a value."""
        first, second = self.first, self.second
        rows = first.queries + first.copies * first.keys, second.keys + second.copies * second.queries
        return max(rows) * sum(map(padded, widths)) * itemsize + 2048


def _pair(first: tuple[int, int, int, int], second: tuple[int, int, int, int]) -> BackwardTiles:
    return BackwardTiles(BackwardTile(*first), BackwardTile(*second))


_HALF = {
    64: (
        _pair((64, 64, 4, 3), (128, 64, 4, 2)),
        _pair((64, 64, 4, 3), (32, 64, 4, 3)),
        _pair((128, 64, 8, 3), (64, 128, 8, 3)),
        _pair((64, 64, 4, 3), (64, 64, 4, 3)),
        _pair((64, 32, 4, 2), (32, 64, 4, 2)),
        _pair((32, 32, 4, 2), (32, 32, 4, 2)),
    ),
    128: (
        _pair((128, 64, 8, 3), (64, 64, 4, 2)),
        _pair((64, 64, 4, 2), (64, 64, 4, 2)),
        _pair((64, 32, 4, 3), (32, 64, 4, 3)),
        _pair((32, 32, 4, 2), (32, 32, 4, 2)),
    ),
    256: (
        _pair((128, 64, 8, 1), (64, 64, 8, 2)),
        _pair((128, 32, 8, 2), (32, 64, 8, 2)),
        _pair((64, 32, 4, 2), (32, 64, 8, 2)),
        _pair((32, 32, 4, 1), (16, 32, 4, 1)),
    ),
}
_TF32 = {
    64: (_pair((64, 64, 8, 2), (64, 64, 8, 2)), _pair((64, 32, 4, 2), (32, 64, 4, 2))),
    128: (_pair((64, 32, 8, 2), (32, 64, 8, 2)), _pair((32, 32, 4, 1), (32, 32, 4, 1))),
    256: (_pair((32, 16, 8, 1), (16, 32, 8, 1)),),
}
_SINGLE = {
    64: (_pair((64, 32, 8, 2), (32, 32, 8, 2)), _pair((32, 32, 4, 2), (32, 32, 8, 2))),
    128: (_pair((32, 16, 8, 2), (16, 32, 8, 2)),),
    256: (_pair((16, 16, 8, 1), (16, 16, 8, 1)),),
}
Table = Mapping[int, tuple[BackwardTiles, ...]]
"""The tiles to try, by the greatest width of a head that they are for."""


def fitting(dtype: torch.dtype, tf32: bool, widths: tuple[int, int], most_shared: int) -> Iterator[BackwardTiles]:
    """Yields the tiles that fit into `most_shared` bytes, best first. widths: of a key's and a value's head."""
    table: Table = _HALF if dtype.itemsize == 2 else _TF32 if tf32 else _SINGLE
    width = next((width for width in table if max(widths) <= width), None)
    for tiles in table[width] if width is not None else ():
        if tiles.shared_bytes(widths, dtype.itemsize) <= most_shared:
            yield tiles


__all__ = ["BackwardTile", "BackwardTiles", "fitting"]
