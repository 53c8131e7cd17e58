"""How much of attention a program does at a time. In: a dtype, a head's width, a device's shared memory. Out: `Tiles`.

A program has a tile of queries and walks over tiles of keys. What it holds: the result so far and a tile of scores in
registers, the queries and, for each stage of the pipeline, a tile of keys and one of values in shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from litz.targets.triton.tile_shape import power_of_two

LEAST = 16
"""Elements along each side of a tile that tensor cores multiply."""

LEAST_SECOND = 64
"""Elements of the second part of a head's width, at least. On an H200 (2026-11-22, Triton 3.6, torch 2.11) heads of 96
as 64 and 32 had wrong scores of one key in float16 and bfloat16, as if the second part were not there; gradients of
heads of 80 (64 and 16, 40 keys) were wrong too. 192 as 128 and 64 was right. In Triton's interpreter all are; why is
not known."""


@dataclass(frozen=True)
class Tiles:
    """A tile of rows queries by keys, and the warps and stages (loads under way) of its program."""

    rows: int
    keys: int
    warps: int
    stages: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.keys} {self.warps}w {self.stages}s"


_HALF = {
    64: (Tiles(64, 64, 4, 3), Tiles(64, 128, 4, 2), Tiles(64, 64, 4, 2)),
    128: (Tiles(64, 64, 4, 3), Tiles(128, 128, 8, 3), Tiles(128, 64, 8, 3), Tiles(64, 64, 4, 2)),
    256: (Tiles(128, 64, 8, 2), Tiles(64, 32, 4, 2), Tiles(64, 64, 4, 2)),
}
_FLOAT = {
    64: (Tiles(64, 64, 4, 2), Tiles(64, 32, 4, 2), Tiles(32, 32, 4, 2)),
    128: (Tiles(64, 32, 4, 2), Tiles(32, 32, 4, 2)),
    256: (Tiles(32, 32, 4, 2), Tiles(32, 16, 4, 2)),
}
"""By the width of a head, up to so many elements; the best first. 128 rows are two groups of four warps on Hopper, 64
each, as its matrix units take them.

Measured on an H200 (2026-11-22, Triton 3.6), bfloat16, 4096 queries and keys, TFLOP/s:

| heads of | tiles | causal | no mask | window of 512 | soft cap | ALiBi |
|---|---|---|---|---|---|---|
| 64 | 64x64 4w 3s | 417 | 477 | 310 | 233 | 364 |
| 64 | 64x128 4w 2s | 420 | 448 | 301 | 237 | 371 |
| 128 | 64x64 4w 3s | 454 | 505 | 353 | 343 | 433 |
| 128 | 128x128 8w 3s | 434 | 516 | 320 | 296 | 407 |
| 256 | 128x64 8w 2s | 446 | 499 | 380 | 374 | 428 |
| 256 | 64x32 4w 2s | 370 | - | - | - | - |

Tiles of floats were not measured.
"""


def padded(width: int) -> int:
    """Returns the least power of two that a head of this width fits into."""
    return max(LEAST, power_of_two(width))


def parts(width: int) -> tuple[int, ...]:
    """Returns a head's width as tiles have it: one power of two, or two of them where that is less to multiply (192 as
    128 and 64)."""
    whole = padded(width)
    first = whole // 2
    second = max(LEAST_SECOND, padded(width - first))
    return (first, second) if width > first and second < first else (whole,)


def shared_bytes(tiles: Tiles, widths: tuple[int, int], itemsize: int, read: tuple[int, int] = (0, 0)) -> int:
    """Returns the bytes of shared memory that a program takes. widths: of a key and of a value, padded. read: bytes
    that the bodies read for each score, and for each key: Triton may load those ahead as well."""
    beside = tiles.keys * (tiles.rows * read[0] + read[1])
    return itemsize * (tiles.rows * widths[0] + tiles.stages * tiles.keys * sum(widths)) + tiles.stages * beside


def fitting(
    dtype: torch.dtype, widths: tuple[int, int], most_shared: int, read: tuple[int, int] = (0, 0)
) -> Iterator[Tiles]:
    """Yields the tiles that fit into `most_shared` bytes, best first. widths: padded. read: see `shared_bytes`."""
    table = _FLOAT if dtype.itemsize > 2 else _HALF
    width = next((width for width in table if max(widths) <= width), None)
    for tiles in table[width] if width is not None else ():
        if shared_bytes(tiles, widths, dtype.itemsize, read) <= most_shared:
            yield tiles


__all__ = ["LEAST", "LEAST_SECOND", "Tiles", "fitting", "padded", "parts", "shared_bytes"]
