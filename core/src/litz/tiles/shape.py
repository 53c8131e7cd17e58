"""How a kernel's tile lies on a loop: its axes, which ranges lie along each, how many elements a block has, and warps.

Rows that begin anywhere have a `Frame`: blocks along a row that begin where 16-byte accesses may, however the row lies.
A row of 50257 elements of two bytes begins at any even address, and no access to it may be wider than an element. So a
block begins at the last multiple of `lanes` elements that is not behind the row's first one: `lead` lanes before the
row, and those behind its end, belong to other rows. What they load is not used; the element that a thread needs and the
rest of the 16 bytes around it are read together, never more than that. Stores may not touch them: groups of lanes that
lie in the row are stored 16 bytes at a time, and what is left of it at both ends an element at a time.

Rows of 1001 elements begin at lane 0, 1, ... 7 of 8, and then at 0 again: a program whose rows are 8 apart needs one
`lead` for all, one mask, and one load of what all rows share (`Frame.period`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import gcd

from litz.ir import Node, Range, Store
from litz.ir.index import Expr, Symbol, product

VECTOR = 16
"""Bytes of the widest access of a thread."""


@dataclass(frozen=True)
class Frame:
    """start: the offset of a row's first element, by the output ranges' variables. var: that of the row. lanes: a power
    of two, to whose multiples blocks are aligned. buffers: those whose memory begins at a multiple of 16 bytes. slope,
    first: row n, numbered along the loop's ranges, begins at `slope * n + first` modulo `lanes`; slope is None where it
    does not."""

    start: Expr
    var: Symbol
    lanes: int
    buffers: frozenset[str]
    slope: int | None = None
    first: int = 0

    @property
    def period(self) -> int:
        """Returns how many rows further a row begins at the same lane; 0 if not known."""
        return 0 if self.slope is None else self.lanes // gcd(self.slope, self.lanes)

    def __str__(self) -> str:
        return f"from multiples of {self.lanes} below {self.start}"

    def rest(self, buffer: str, offset: Expr) -> Expr | None:
        """Returns how far an access lies from the row, a multiple of `lanes`. None if the distance is no such multiple,
        or if the buffer's memory may begin elsewhere than at a multiple of 16 bytes."""
        rest = offset - self.var - self.start
        return rest if buffer in self.buffers and is_multiple(rest, self.lanes) else None

    def holds(self, site: Node | Store, buffer: str, offset: Expr, masked: bool) -> bool:
        """Returns whether the access is made in whole groups of lanes."""
        return not masked and not site.indirect and self.rest(buffer, offset) is not None


def terms(expr: Expr) -> Iterator[tuple[int, Expr]]:
    """The coefficients of a sum, and what they are coefficients of; 0 for what is no integer's multiple."""
    for term in expr.expand().as_ordered_terms() if expr != 0 else ():
        coefficient, rest = term.as_coeff_Mul()
        yield (int(coefficient) if coefficient.is_Integer else 0), rest


def is_multiple(expr: Expr, of: int) -> bool:
    """Returns whether a sum is a multiple of a number, term by term."""
    return all(coefficient and coefficient % of == 0 for coefficient, _ in terms(expr))


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
        """Returns whether the last block may reach beyond the end: not for a constant size that the block
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
