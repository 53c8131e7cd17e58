"""The lines of attention's TilePrograms that core's lines do not say: which tile of which head a program has, the walks
along the keys, and the softmax on its way. `print.py` has their text.

A tile of scores has the axis y, that of a program's own rows, and the axis x, along which the program walks. An operand
is a `Side` as those of products are: one load, of a tile whose other axis is that of a head's elements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import sympy

from litz.ir import TensorRef
from litz.ir.index import ONE, Expr, Min, Symbol, floordiv
from litz.tiles.program import Access, Const, Inside, Line, Operand, Other, Value
from litz.tiles.shape import Axis, Tiling

LOG2E = 1 / math.log(2)
"""Weights are powers of two, which the hardware has: exp(x) = exp2(x * LOG2E)."""
PART, SHARED = (Symbol(name, integer=True, nonnegative=True) for name in ("part", "shared"))
"""Which part of the keys a program has, and which head of the key."""
ROWS, TILE = frozenset("y"), frozenset("yx")
"""The axes of a number for each row, and of a tile of scores."""


@dataclass(frozen=True)
class Part(Axis):
    """Some of the elements of a key or value, from `start` on."""

    start: int = field(default=0, kw_only=True)

    @property
    def number(self) -> int:
        """Returns the number of the part, which its name ends with."""
        return int(self.name[1:])

    @property
    def end(self) -> int:
        """Returns the place behind its last element."""
        return self.start + int(self.size)

    @property
    def var(self) -> Symbol:
        """Returns the variable of its positions in the key or value."""
        return self.ranges[0].var


@dataclass(frozen=True)
class Cut(Axis):
    """The rows that a program has a tile of, or what these meet, tile after tile. grain: elements of a block of the
    block mask along it, None without one. inner: is the tile known to lie inside?"""

    grain: Expr | None = None
    inner: bool = False

    @property
    def is_cut(self) -> bool:
        """Returns whether blocks of the mask may end within tiles."""
        if self.grain is None or self._divides(self.block, self.grain):
            return False
        return not (self.grain.is_Integer and self.size.is_Integer and self.size <= self.grain)

    @property
    def masked(self) -> bool:
        """Returns whether a tile may reach beyond the end of this side, or of a block of the mask."""
        if self.inner:
            return False
        if self.is_cut or not self._divides(self.block, self.size):
            return True
        return self.grain is not None and not (self._divides(self.grain, self.size) or self.size <= self.grain)

    @property
    def parts(self) -> Expr:
        """Returns the number of tiles of a block of the mask, or of all there is, where a block is longer than that: a
        tile that lies wholly beyond the end has no mask (`masked`). A short block of an unknown size is walked to its
        end, masked."""
        assert self.grain is not None
        short = self.grain.is_Integer and int(self.grain) <= SHORT  # so that there are several for sure, or as good as
        return self._tiles(self.grain if short and not self.size.is_Integer else Min(self.grain, self.size))

    @property
    def tiles(self) -> Expr:
        """Returns how many tiles there are along the range."""
        if not self.is_cut:
            return self._tiles(self.size)
        assert self.grain is not None
        return floordiv(self.size + self.grain - 1, self.grain) * self.parts

    def _tiles(self, size: Expr) -> Expr:
        return floordiv(size + self.block - 1, sympy.Integer(self.block))

    @staticmethod
    def _divides(divisor: int | Expr, size: Expr) -> bool:
        known = size.is_Integer and (isinstance(divisor, int) or divisor.is_Integer)
        return bool(known) and int(size) > 0 and int(size) % int(divisor) == 0


SHORT = 4096
"""Elements of a block of a mask that need not be compared with how many there are."""


@dataclass(frozen=True)
class InBlock(Inside):
    """A mask: where an axis's positions lie in the block of the mask too."""


@dataclass(frozen=True)
class Programs(Other):
    """The body, for a tile of rows of one head: `heads` are those that programs share out, of the query or of the key,
    which `group` heads of the query share. back: the last tile first. parts: for all rows of a head of the key, and one
    of so many parts of the keys."""

    body: tuple[Line, ...]
    heads: Expr
    group: Expr = ONE
    back: bool = False
    parts: int = 0
    shares_out: ClassVar[str] = "y"


@dataclass(frozen=True)
class Begin(Other):
    """A number everywhere, with which a walk begins that carries the tile."""

    value: Value
    number: float = 0.0


@dataclass(frozen=True)
class Limits(Other):
    """The limits say where walks begin and end. lower, upper: over the row's position, of what it looks at. how: `all`
    (there are no such limits), `parts` (each program has a part), `between` the limits, or `seen`: beyond an upper
    limit too, where some row has seen nothing before it. exact: does a row look at all between its limits? hides: a
    constant length from ptxas, which unrolls loops of known length for seconds."""

    how: str
    lower: tuple[Expr, ...] = ()
    upper: tuple[Expr, ...] = ()
    exact: bool = False
    hides: bool = False


@dataclass(frozen=True)
class Over(Other):
    """The body, for tile after tile along x. which: of the tiles that `Limits` tells apart: `whole` ones and the `rest`
    of them all; those `within` the limits; of these, those that the least limits `enter`, that all `open`, and that
    they `leave`; those up to the last that is `seen`, and those behind it where a row of `state` has `unseen` ones; or
    those of the blocks that a mask has `listed`: `counts` of `indices`. apart: where elements lie within a tile is
    worked out before the walk."""

    walks: ClassVar[str] = "x"

    which: str
    tiling: Tiling
    body: tuple[Line, ...]
    state: tuple[Value, ...] = ()
    counts: TensorRef | None = None
    indices: TensorRef | None = None
    apart: bool = False


@dataclass(frozen=True)
class Turns(Other):
    """The body, for each head of the query that shares the program's head of the key. batches: and for each of so many
    batches, where all share one of keys."""

    group: Expr
    batches: Expr
    body: tuple[Line, ...]


@dataclass(frozen=True)
class Begins(Other):
    """The place where a matrix, or a row of numbers, of the program's batch and head begins. name: of the operand."""

    name: str
    access: Access


@dataclass(frozen=True)
class Numbers(Other):
    """A number for each query, as float32, and `number` where there is no query. opposite: of an infinite number that
    is not `number` too. along: the axis of the queries."""

    value: Value
    access: Access
    masks: tuple[Inside, ...]
    number: float
    along: str
    opposite: bool = False


@dataclass(frozen=True)
class Next(Other):
    """A tile is another one from here on."""

    into: Value
    of: Operand


@dataclass(frozen=True)
class Hidden(Other):
    """A tile keeps what all masks show, and is a number elsewhere."""

    into: Value
    masks: tuple[Operand | Inside, ...]
    number: Const


@dataclass(frozen=True)
class Weights(Other):
    """A block of scores joins the state (greatest score, sum of weights) of `weighted_softmax`. values: the greatest so
    far, the weights, which are powers of 2 of `factor` times scores, and what weighs less than before does so by.
    first: the greatest score is subtracted before the factor; else rows whose scores are not finite when they count so
    weigh nothing."""

    values: tuple[Value, Value, Value]
    of: Value
    state: tuple[Value, Value]
    factor: float
    first: bool = False


@dataclass(frozen=True)
class RowProduct(Other):
    """The sum of the products of two tiles' elements, for each row."""

    value: Value
    of: Value
    by: Value


@dataclass(frozen=True)
class Merge(Other):
    """The last program of a head of the key puts together what the programs of its parts have stored: results, and the
    base-2 logarithms of their sums. rows, across: of a part's result."""

    result: Access
    sums: Access
    out: Access
    rows: Axis
    across: Axis
