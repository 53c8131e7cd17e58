"""Tiles of attention's backward. In: how wide the heads are, their type, and how float32 is multiplied. Out: pairs of
tiles, the one thought best first.

The first kernel holds a tile of the query's gradient, the second one of the key's and one of the value's, in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

import torch

from litz.target import Room, figures_of
from litz_plugins import Target

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

    def effort(self, queries: int, keys: int, width: int, limits: BackwardFigures) -> float:
        """Returns how much longer it takes for a block of so many queries and keys than a large tile that fills it.
        width: of a head."""
        tiles, area = ceil(queries / self.queries) * ceil(keys / self.keys), self.queries * self.keys
        filled = queries * keys / (tiles * area)
        reached = limits.narrow_shares if width <= 64 else limits.wide_shares
        return 1 / (filled * next((part for least, part in reached if area >= least), limits.least_share))


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


Quadruple = tuple[int, int, int, int]
Table = tuple[tuple[int, tuple[tuple[Quadruple, Quadruple], ...]], ...]
"""(the greatest width of a head that they are for, pairs of tiles to try)."""


@dataclass(frozen=True)
class BackwardFigures(Room):
    """Pairs of tiles, and what part of a large tile's speed a smaller one has, by its scores:
    `figures/gpu/attention_backward.toml` explains. narrow: of heads of up to 64 elements."""

    table = "attention_backward"
    half_tiles: Table
    tf32_tiles: Table
    single_tiles: Table
    least_share: float
    wide_shares: tuple[tuple[int, float], ...]
    narrow_shares: tuple[tuple[int, float], ...]


def fitting(dtype: torch.dtype, tf32: bool, widths: tuple[int, int], target: Target) -> Iterator[BackwardTiles]:
    """Yields the tiles that fit into a device's shared memory, best first. widths: of a key's and a value's head."""
    limits = figures_of(target, BackwardFigures)
    table = limits.half_tiles if dtype.itemsize == 2 else limits.tf32_tiles if tf32 else limits.single_tiles
    for first, second in next((pairs for width, pairs in table if max(widths) <= width), ()):
        tiles = BackwardTiles(BackwardTile(*first), BackwardTile(*second))
        if tiles.shared_bytes(widths, dtype.itemsize) <= target.shared_bytes:
            yield tiles


__all__ = ["BackwardTile", "BackwardTiles", "fitting"]
