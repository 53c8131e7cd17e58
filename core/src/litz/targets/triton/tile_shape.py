"""The data of a tiling: its axes, which ranges lie along each, how many elements a block has, and warps."""

from __future__ import annotations

from dataclasses import dataclass, field

from litz.ir import Range
from litz.ir.index import Expr, product

from .frame import Frame
from .warps import THREADS


@dataclass(frozen=True)
class Axis:
    """One axis of the tile. `ranges` are walked together as one index, the last fastest.

    `masked`: does the last block reach beyond the end? Known not to only for constant extents. `step`: a program's
    positions are so far apart, and programs beside each other take what lies between.
    """

    name: str
    ranges: tuple[Range, ...]
    block: int
    step: int = field(default=1, kw_only=True)

    @property
    def size(self) -> Expr:
        """Returns how many elements the axis has: the product of its ranges."""
        return product(r.size for r in self.ranges)

    @property
    def masked(self) -> bool:
        """Returns whether the last block may reach beyond the end. It cannot for a constant size that the block
        divides."""
        size = self.size
        return not (size.is_Integer and int(size) > 0 and int(size) % (self.block * self.step) == 0)


@dataclass(frozen=True)
class Tiling:
    """`axes` in the order of the tile's dimensions: (x), (y, x) or (x, r). `persistent`: the r axis in one block.

    `pieces` are output ranges along which every step has programs of its own: within a program they do not vary.
    `together`: in a loop over r, so many neighbouring elements of a thread are reduced before they meet an accumulator.
    `stages`: blocks along r that are on their way at a time; 1 leaves that to the hardware. `frame`: of rows that are
    not aligned, which need a few lanes more than they have elements. `whole`: in a pointwise loop, programs whose block
    lies in the range have code of their own, without a mask.
    """

    axes: tuple[Axis, ...]
    num_warps: int
    persistent: bool = False
    pieces: tuple[Range, ...] = ()
    together: int = 1
    stages: int = 1
    frame: Frame | None = None
    whole: bool = False

    @property
    def grid_axes(self) -> tuple[Axis, ...]:
        """Returns the axes that programs are numbered along; the last one varies fastest."""
        return tuple(axis for axis in self.axes if axis.name != "r")

    @property
    def begins_alike(self) -> bool:
        """Returns whether all rows of a program have a frame and begin at the same of its lanes."""
        x = self.axis("x")
        return self.frame is not None and x is not None and bool(self.frame.period) and x.step % self.frame.period == 0

    def axis(self, name: str) -> Axis | None:
        """Returns the axis "x", "y" or "r", None if the tile does not have it."""
        return next((axis for axis in self.axes if axis.name == name), None)


SIXTEEN_WARPS = 16 * 32 * 64
"""The most elements of a program of 16 warps, 64 in each thread."""

Blocks = tuple[int, int, int, bool]
"""The tile of a reduction: its extents along x and along r, the warps, and whether a row is in one block."""


def power_of_two(value: int) -> int:
    """Returns the least power of two that is not below `value`; 1 for 0."""
    return 1 << max(0, value - 1).bit_length()


def clamp(value: int, low: int, high: int) -> int:
    """Returns the value, or the nearer of `low` and `high` if it lies outside of them; `low` where they cross."""
    return max(low, min(value, high))


def warps_for(elements: int) -> int:
    """Returns the warps of a program of so many elements: 8 in each thread, 16 where there are many."""
    return clamp(elements // (THREADS * (8 if elements <= 2048 else 16)), 1, 16 if elements <= SIXTEEN_WARPS else 32)
