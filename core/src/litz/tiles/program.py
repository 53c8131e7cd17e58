"""TileProgram: what one program of a kernel does with blocks of elements (tiles), as data that no language shows in.

A tile is a named value with a type and with named axes; ops broadcast by the names. `x` and `y` are the axes that
programs share out, `r` is that of a row that is reduced, and `g` that of groups of neighbours in a row. What holds of
an axis as a whole, its positions, its loop variables (`x0`) and its mask, follows from the program's `Tiling` and has
no line. Lines are made once, in order, by `litz.tiles.make`; a target's printer writes its language.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import torch

from litz.ir import Buffer
from litz.ir.index import Expr, Symbol
from litz.ir.scalars import Scalar

from .names import Names
from .shape import Tiling

Axes: TypeAlias = frozenset[str]

# ------------------------------------------------------------------------------------------------------------ operands


@dataclass(frozen=True, slots=True)
class Value:
    """A tile by its name. A half type's tile holds float32 numbers that are rounded to the type."""

    text: str
    dtype: torch.dtype
    axes: Axes = frozenset()


@dataclass(frozen=True, slots=True)
class Const:
    """A constant. axes: along which it is repeated."""

    value: Scalar
    dtype: torch.dtype
    axes: Axes = frozenset()


@dataclass(frozen=True, slots=True)
class Position:
    """An index expression, in the type of positions in place of int64. narrow: 32 bits have room for it."""

    expr: Expr
    axes: Axes
    narrow: bool = True
    dtype: torch.dtype = torch.int64


@dataclass(frozen=True, slots=True)
class Places:
    """The position along the row of each element. dtype: int32, or int64. converted: from another type?"""

    dtype: torch.dtype
    axes: Axes
    converted: bool = False


@dataclass(frozen=True, slots=True)
class Counts:
    """The count of the row's elements that each lane of accumulators has seen after the walk."""

    dtype: torch.dtype
    axes: Axes


@dataclass(frozen=True, slots=True)
class Spread:
    """An operand, repeated along all axes."""

    of: Operand
    axes: Axes
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class _Made:
    """An operand that is made of another one where it is used, and varies along the same axes."""

    of: Operand

    @property
    def axes(self) -> Axes:
        """Returns the axes of the elements."""
        return self.of.axes


@dataclass(frozen=True, slots=True)
class Filled(_Made):
    """An operand with a constant in lanes outside of the row."""

    outside: Const
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Coded(_Made):
    """The bits of a float8 that a value is rounded to. as_type: the float8."""

    as_type: torch.dtype
    dtype: torch.dtype = torch.uint8


@dataclass(frozen=True, slots=True)
class As(_Made):
    """An operand in another type: of bool, whether the operand is not 0."""

    dtype: torch.dtype


Operand: TypeAlias = Value | Const | Position | Places | Counts | Spread | Filled | Coded | As


@dataclass(frozen=True, slots=True)
class Inside:
    """A mask: where an axis's positions lie in its ranges; for `rload` where a frame's lanes are read."""

    axis: str


@dataclass(frozen=True, slots=True)
class Positive:
    """A mask: is the size above 0?"""

    size: Expr


@dataclass(frozen=True, slots=True)
class Below:
    """A mask of an access in a frame: is what lies `rest` behind a lane below `end`?"""

    rest: Expr
    end: int


Mask: TypeAlias = Value | Const | Inside | Positive | Below


@dataclass(frozen=True, slots=True)
class Access:
    """Elements of a buffer. offset: of an element, over loop variables, sizes and placeholders for `indirect`. axes:
    that the elements vary along. spread: are there more of them than offsets? framed: in whole groups of a frame's
    lanes; the offset is then that behind the row."""

    buffer: str
    offset: Expr
    indirect: tuple[Operand, ...]
    axes: Axes
    spread: bool = False
    framed: bool = False


# --------------------------------------------------------------------------------------------------------------- lines


@dataclass(frozen=True, slots=True)
class Op:
    """An op of `litz.ir.ops`, `cast`, `bitcast`, `index` (a position as int64); or `same` (the argument), `decode` (a
    float8 of its bits), `byte` (a byte's bits as uint8), `softmax_total` (the sum in the state of `online`). near: a
    less exact form of it, by the target's name."""

    value: Value
    op: str
    args: tuple[Operand, ...]
    near: str = ""


@dataclass(frozen=True, slots=True)
class Load:
    """Elements where all masks hold, elsewhere anything; zeros if `zero`. hint: what the cache is asked to do."""

    value: Value
    access: Access
    masks: tuple[Mask, ...]
    zero: bool = False
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """A position, asserted to be in [0, size) where all masks hold, and 0 where it is not. held: is it? what: it
    counts, for the message."""

    value: Value
    held: Value
    position: Operand
    size: Expr
    masks: tuple[Mask, ...]
    what: str = ""


@dataclass(frozen=True, slots=True)
class Join:
    """One block's values join what a walk carries, lane by lane, where they lie in the row. kind: of the reduction, or
    `online`. form: see `Reduce`. groups: so many neighbours are reduced first. fresh: names for what is carried, before
    lanes outside are left as they were."""

    state: tuple[Value, ...]
    kind: str
    form: str
    args: tuple[Operand, ...]
    masked: bool = False
    groups: int = 1
    half: bool = False
    fresh: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reduce:
    """States merged along the row. kind: of the reduction. form: `plain` (one part, by the dialect), `place`,
    `welford`, `online`, `combined`, or
    `row` (by the row of `litz.ir.reductions`)."""

    values: tuple[Value, ...]
    kind: str
    form: str
    args: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Moments:
    """The mean of a row in one block, its differences from the mean (0 outside of the row), and the sum of their
    squares. near: by the reciprocal of the row's length."""

    mean: Value
    apart: Value
    m2: Value | None
    arg: Operand
    masked: bool
    near: bool = False


@dataclass(frozen=True, slots=True)
class Scan:
    """An inclusive scan along the row. carry: what the blocks before came to, and this one joins; nothing for a row in
    one block. outside: what changes nothing, where the block has lanes outside of the row. form: see `Reduce`; or
    `function` (`litz.ir.combined`), which has as many values as parts, and no state of no values: the first block is as
    it is, and `fresh` has names for the others joined with what is carried."""

    values: tuple[Value, ...]
    kind: str
    form: str
    args: tuple[Operand, ...]
    carry: tuple[Value, ...] = ()
    outside: Const | None = None
    fresh: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Walk:
    """The body, for one block of the row after the other. back: from the last to the first."""

    stages: int
    back: bool
    body: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Whole:
    """The body of programs whose block lies in the range, the first `blocks` ones, and that of the others."""

    blocks: int
    inside: tuple[Line, ...]
    others: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Store:
    """Elements where all masks hold. mode: `set`, or how a value joins what is there, in one step of memory. axes: of
    the points that store."""

    access: Access
    value: Operand
    masks: tuple[Mask, ...]
    mode: str
    axes: Axes


Line: TypeAlias = Op | Load | Check | Join | Reduce | Moments | Scan | Walk | Whole | Store


@dataclass(frozen=True)
class TileProgram:
    """The lines of one program. buffers: that the lines may touch. names: of buffers, variables and sizes in texts.
    extents: of the loop variables. positions: the type of positions, "i32", "i64" or "INDEX" where the launcher chooses
    by `limits`: sizes that 32 bits must have room for. finish: what the last program of its outputs does then."""

    tiling: Tiling
    buffers: Mapping[str, Buffer]
    names: Names
    extents: Mapping[Symbol, Expr]
    positions: str
    lines: tuple[Line, ...]
    limits: tuple[Expr, ...] = ()
    finish: tuple[TileProgram, ...] = field(default=())
