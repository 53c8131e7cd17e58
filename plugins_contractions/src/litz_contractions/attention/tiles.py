"""How much of attention a program does at a time. In: a dtype, a head's width, a device's shared memory. Out: `Tiles`.

A program has a tile of queries and walks over tiles of keys. What it holds: the result so far and a tile of scores in
registers, the queries and, for each stage of the pipeline, a tile of keys and one of values in shared memory.
The backward's first kernel holds a tile of the query's gradient, the second one of the key's and one of the value's, in
float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

import torch

from litz.target import Room, figures_of
from litz.targets.triton.tile_shape import power_of_two
from litz_plugins import Target

LEAST = 16
"""Elements along each side of a tile that tensor cores multiply."""

LEAST_SECOND = 64
"""Elements of the second part of a head's width, at least: a workaround for ptxas 12.8.93, which Triton 3.6 and 3.7
bring. Of heads of 96 as 64 and 32, where one tile has all keys, ptxas reads two uniform registers that nothing wrote.
They are the descriptor of keys for the second 16 elements of the second part: scores were wrong on an H200
(2026-11-22). Gradients of heads of 80 (64 and 16, 40 keys) were wrong there, too. 192 as 128 and 64 is right, and so is
the same PTX by ptxas 12.9.86 or with -O0. A test fails once ptxas is right (`test_attention_second_part`)."""


@dataclass(frozen=True)
class Tiles:
    """A tile of scores, and its program. rows: queries of the tile; with parts, of all heads that share a key's.
    warps: of the program. stages: loads under way. parts: of the keys, of which each program has one; 0 where each
    program looks at all keys."""

    rows: int
    keys: int
    warps: int
    stages: int
    parts: int = 0

    def __str__(self) -> str:
        if not self.parts:
            return f"{self.rows}x{self.keys} {self.warps}w {self.stages}s"
        parts = f"{self.parts} part{'s' if self.parts > 1 else ''}"
        return f"{parts}, {self.rows}x{self.keys}, {self.stages} stages, {self.warps} warps"


Table = tuple[tuple[int, tuple[tuple[int, int, int, int], ...]], ...]
"""(width of a head, tiles)."""


@dataclass(frozen=True)
class TileFigures(Room):
    """Tiles by the width of a head, the best first: `figures/gpu/attention_tiles.toml` explains."""

    table = "attention_tiles"
    half_tiles: Table
    float_tiles: Table


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
    dtype: torch.dtype, widths: tuple[int, int], target: Target, read: tuple[int, int] = (0, 0)
) -> Iterator[Tiles]:
    """Yields the tiles that fit into a device's shared memory, best first. widths: padded. read: see `shared_bytes`."""
    limits = figures_of(target, TileFigures)
    table = limits.float_tiles if dtype.itemsize > 2 else limits.half_tiles
    for each in next((tiles for width, tiles in table if max(widths) <= width), ()):
        tiles = Tiles(*each)
        if shared_bytes(tiles, widths, dtype.itemsize, read) <= target.shared_bytes:
            yield tiles


def copies(tiles: Tiles) -> int:
    """Returns how many tiles of what is walked are in shared memory. What tensor cores do not take from there (of less
    than 64 rows) goes through it on its way."""
    return tiles.stages if min(tiles.rows, tiles.keys) >= 64 else max(2, tiles.stages)


def effort(tiles: Tiles, block: tuple[int, int], width: int, limits: BackwardFigures) -> float:
    """Returns how much longer it takes for a block of so many queries and keys than a large tile that fills it. width:
    of a head."""
    count, area = ceil(block[0] / tiles.rows) * ceil(block[1] / tiles.keys), tiles.rows * tiles.keys
    filled = block[0] * block[1] / (count * area)
    reached = limits.narrow_shares if width <= 64 else limits.wide_shares
    return 1 / (filled * next((part for least, part in reached if area >= least), limits.least_share))


@dataclass(frozen=True)
class BackwardTiles:
    """The tiles of two kernels. first: for the query's gradient. second: for the gradients of key and value."""

    first: Tiles
    second: Tiles

    def __str__(self) -> str:
        return f"{self.first}, {self.second}"

    def shared_bytes(self, widths: tuple[int, int], itemsize: int) -> int:
        """Returns the bytes of shared memory that a program of either kernel takes: its own tiles, and those on their
        way. widths: of a key and of a value."""
        first, second = self.first, self.second
        rows = first.rows + copies(first) * first.keys, second.keys + copies(second) * second.rows
        return max(rows) * sum(map(padded, widths)) * itemsize + 2048


Quadruple = tuple[int, int, int, int]
PairTable = tuple[tuple[int, tuple[tuple[Quadruple, Quadruple], ...]], ...]
"""(the greatest width of a head that they are for, pairs of tiles to try)."""


@dataclass(frozen=True)
class BackwardFigures(Room):
    """Pairs of tiles, and what part of a large tile's speed a smaller one has, by its scores:
    `figures/gpu/attention_backward.toml` explains. narrow: of heads of up to 64 elements."""

    table = "attention_backward"
    half_tiles: PairTable
    tf32_tiles: PairTable
    single_tiles: PairTable
    least_share: float
    wide_shares: tuple[tuple[int, float], ...]
    narrow_shares: tuple[tuple[int, float], ...]


def fitting_pairs(dtype: torch.dtype, tf32: bool, widths: tuple[int, int], target: Target) -> Iterator[BackwardTiles]:
    """Yields the tiles that fit into a device's shared memory, best first. widths: of a key's and a value's head."""
    limits = figures_of(target, BackwardFigures)
    table = limits.half_tiles if dtype.itemsize == 2 else limits.tf32_tiles if tf32 else limits.single_tiles
    for first, second in next((pairs for width, pairs in table if max(widths) <= width), ()):
        tiles = BackwardTiles(Tiles(*first), Tiles(*second))
        if tiles.shared_bytes(widths, dtype.itemsize) <= target.shared_bytes:
            yield tiles
