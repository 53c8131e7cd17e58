"""The lines of a product's TileProgram that core's lines do not say (`litz.tiles.program`): which block a program has,
the walk along k, and tiles of operands, which have axes of their own. `print.py` has their text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from litz.ir import Range
from litz.ir.index import Expr, Symbol, product
from litz.tiles.program import Access, Line, Mask, Operand, Other, Value
from litz.tiles.shape import Tiling


@dataclass(frozen=True)
class Between(Other):
    """A mask: is 0 <= expr < size?"""

    expr: Expr
    size: Expr


@dataclass(frozen=True)
class Blocks(Other):
    """The body, for a block of the result, or of each of a batch. group: rows of blocks that are walked together.
    split: programs that share a block, each with a part of the depth. programs: that take block after block; 0 where
    each has one. units: blocks begin where a row's memory is aligned to so many elements, 1 for anywhere; rows lie
    `apart` elements apart then."""

    batch: tuple[Range, ...]
    group: int
    split: int
    programs: int
    units: int
    apart: int
    body: tuple[Line, ...]


@dataclass(frozen=True)
class Steps(Other):
    """Sums that begin as zeros (`values`), and the body, for block after block of the ranges, along an axis k. before:
    lines without a k. uniform: ranges that have one value in a block."""

    values: tuple[Value, ...]
    ranges: tuple[Range, ...]
    block: int
    uniform: tuple[Range, ...]
    before: tuple[Line, ...]
    body: tuple[Line, ...]

    @property
    def whole(self) -> bool:
        """Returns whether each block lies within the ranges."""
        size = product(r.size for r in self.ranges)
        return bool(size.is_Integer) and int(size) % self.block == 0


@dataclass(frozen=True)
class Side(Other):
    """Lines over tiles with axes of their own. variables: their names, of this operand. opens: positions along k are
    given anew. lane: of an operand that lies in memory, which of the products with its sum that are walked together it
    is of; -1 for others. halves: half types are held as such."""

    name: str
    tiling: Tiling
    variables: Mapping[Symbol, str]
    extents: Mapping[Symbol, Expr]
    body: tuple[Line, ...]
    opens: bool = True
    lane: int = -1
    halves: bool = False


@dataclass(frozen=True)
class Panel(Other):
    """An operand that was made, in the type that is multiplied. masked: 0 outside of the ranges that are walked."""

    value: Value
    of: Operand
    masked: bool


@dataclass(frozen=True)
class Lanes(Other):
    """Of n values each n-th place of a tile along the axis w, from the first, the second, ... on."""

    values: tuple[Value, ...]
    of: Value


@dataclass(frozen=True)
class Planes(Other):
    """Numbers of a half type that bytes are made of: `nibbles` (2**n + the low and the high 4 bits), `signed`,
    `unsigned`, or a float8. of: the bytes; else a `word` of two bytes is loaded for each element, whose numbers follow
    each other."""

    values: tuple[Value, ...]
    kind: str
    of: Value | None
    word: str = ""
    access: Access | None = None
    masks: tuple[Mask, ...] = ()


@dataclass(frozen=True)
class Scaled(Other):
    """A sum over one block is added to `into`, times a factor."""

    into: Value
    of: Value
    by: Operand


@dataclass(frozen=True)
class Parts(Other):
    """A program's sum is stored as a part of its block's; the last of these programs adds them up, in order, and runs
    the body."""

    buffer: str
    into: Value
    split: int
    body: tuple[Line, ...]
