"""How much of attention a program does at a time. In: a dtype, a head's width, a device's shared memory. Out: `Tiles`.

A program has a tile of queries and walks over tiles of keys. What it holds: the result so far and a tile of scores in
registers, the queries and, for each stage of the pipeline, a tile of keys and one of values in shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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
    """A tile of rows queries by keys, and the warps and stages (loads under way) of its program."""

    rows: int
    keys: int
    warps: int
    stages: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.keys} {self.warps}w {self.stages}s"


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


__all__ = ["LEAST", "LEAST_SECOND", "Tiles", "fitting", "padded", "parts", "shared_bytes"]
