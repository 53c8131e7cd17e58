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
from litz.ir.index import ZERO, Expr, Symbol
from litz.ir.scalars import Scalar

from .names import Names
from .shape import Tiling

Axes: TypeAlias = frozenset[str]
At: TypeAlias = tuple[tuple[Symbol, str], ...]
Lane: TypeAlias = tuple[str, str, int]

# ------------------------------------------------------------------------------------------------------------ operands


@dataclass(frozen=True, slots=True)
class Value:
    """A tile by its name. A half type's tile holds float32 numbers that are rounded to the type. narrow: 32 bits have
    room for an int64."""

    text: str
    dtype: torch.dtype
    axes: Axes = frozenset()
    narrow: bool = False


@dataclass(frozen=True, slots=True)
class Const:
    """A constant. axes: along which it is repeated."""

    value: Scalar
    dtype: torch.dtype
    axes: Axes = frozenset()


@dataclass(frozen=True, slots=True)
class Position:
    """An index expression, in the type of positions in place of int64. narrow: 32 bits have room for it. at: other
    names of some of its variables."""

    expr: Expr
    axes: Axes
    narrow: bool = True
    dtype: torch.dtype = torch.int64
    at: At = ()


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


@dataclass(frozen=True, slots=True)
class Element:
    """An element of a `Room`. at: for each dimension a position, the block that it is counted from ("" for none) and
    how many elements one step is. stored: the room holds what memory does."""

    room: str
    at: tuple[tuple[Expr, str, int], ...]
    dtype: torch.dtype
    axes: Axes
    stored: bool = False


@dataclass(frozen=True, slots=True)
class Again:
    """An element that this program has stored, read where it is used."""

    access: Access
    dtype: torch.dtype
    axes: Axes


@dataclass(frozen=True, slots=True)
class Held:
    """The variables of a reduction or a scan on its way. kind: of the reduction. dtype: of its values. few: in the form
    for a few values. wide: sums in double. lane: of variables with an element for each position of a block, the axis,
    the block, and how many there are."""

    kind: str
    dtype: torch.dtype
    names: tuple[str, ...]
    suffix: str = ""
    few: bool = False
    wide: bool = False
    scans: bool = False
    lane: Lane | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """The result `kind` of what is held."""

    held: Held
    kind: str
    dtype: torch.dtype
    axes: Axes


_Own: TypeAlias = Value | Const | Position | Element | Again | Result
Operand: TypeAlias = _Own | Places | Counts | Spread | Filled | Coded | As


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


class Other:
    """A line of a plugin's, which gives the printer its text (`Printer.texts`), or a mask. A frozen dataclass: `value`
    or `values` are the tiles that it makes, `body` and `before` its lines, and what else is an operand it takes."""

    __slots__ = ()


Mask: TypeAlias = Value | Const | Inside | Positive | Below | Other


@dataclass(frozen=True, slots=True)
class Access:
    """Elements of a buffer. offset: of an element, over loop variables, sizes and placeholders for `indirect`. axes:
    that the elements vary along. spread: are there more of them than offsets? framed: in whole groups of a frame's
    lanes; the offset is then that behind the row. narrow: is the offset computed, and have 32 bits room for it? at:
    other names of some variables."""

    buffer: str
    offset: Expr
    indirect: tuple[Operand, ...]
    axes: Axes
    spread: bool = False
    framed: bool = False
    narrow: bool = False
    at: At = ()


# --------------------------------------------------------------------------------------------------------------- lines


@dataclass(frozen=True, slots=True)
class Op:
    """An op of `litz.ir.ops`, `cast`, `bitcast`, `index` (a position as int64); or `same` (the argument), `opaque` (the
    argument, hidden from compilers), `decode` (a float8 of its bits), `byte` (a byte's bits as uint8), `softmax_total`
    (the sum in the state of `online`). near: a less exact form of the op, by the target's name."""

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
    `welford`, `online`, `combined`, or `row` (by the row of `litz.ir.reductions`)."""

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


@dataclass(frozen=True, slots=True)
class Dot:
    """The matrix product of two tiles along the axis k, which is a new value or is added to `into`. precision: of
    float32 ("tf32", "ieee")."""

    into: Value
    left: Value
    right: Value
    precision: str = ""
    new: bool = False


# Lines of processors, whose programs are nests of loops. The innermost one with `vector` has the lanes.


@dataclass(frozen=True, slots=True)
class Each:
    """The body for each position of an axis. step: for each block of so many positions, from `axis` to `axis_end`.
    within: for those of one block. flat: the block counts blocks of so many positions, which are numbered from 0.
    shared: so many loops, this one and those inside, are shared by the threads. uneven: an iteration may take longer
    than another. vector: iterations are lanes, of any width; the compiler makes the tail. merged: what lanes hold apart
    until the end. checks: is a check inside? unroll: at most so often. apart: nothing around the loop is a vector."""

    axis: str
    size: Expr
    body: tuple[Line, ...] = ()
    step: int = 0
    within: str = ""
    flat: int = 0
    shared: int = 0
    vector: bool = False
    merged: tuple[Held, ...] = ()
    checks: bool = False
    unroll: int = 0
    apart: bool = False
    uneven: bool = False


@dataclass(frozen=True, slots=True)
class If:
    """The body where some lane has lost what the type of its state cannot hold, which is rare; or where none has, if
    not `lost`. odd: an `any` of the lanes before, that says so."""

    odd: Held
    body: tuple[Line, ...] = ()
    lost: bool = True


@dataclass(frozen=True, slots=True)
class Room:
    """An array in the nearest cache. stored: of elements as memory holds them, else of values."""

    name: str
    dtype: torch.dtype
    count: Expr | int
    stored: bool = False


@dataclass(frozen=True, slots=True)
class Put:
    """An element of a room is given a value."""

    place: Element
    value: Operand


@dataclass(frozen=True, slots=True)
class Move:
    """A block between memory and a room, element by element from the block's first: `widen` and `narrow` (float16 to
    float32 and back), `load` and `store` with two blocks and the dimensions swapped. step: of the second in memory.
    size: of the axis, where the block is all of it."""

    how: str
    access: Access
    room: str
    blocks: tuple[str, ...]
    size: Expr | None = None
    step: Expr | None = None
    side: int = 0


@dataclass(frozen=True, slots=True)
class Copy:
    """A name for a position: the `number`-th of a block, or the axis's last one where the block ends before."""

    name: str
    block: str
    number: int
    size: Expr
    whole: bool


@dataclass(frozen=True, slots=True)
class Leave:
    """The kernel ends, and returns `code`, if any of the sizes `empty` is 0 and none of `some` is."""

    empty: tuple[Expr, ...]
    some: tuple[Expr, ...] = ()
    code: int = 0


@dataclass(frozen=True, slots=True)
class Fold:
    """A step of a reduction. `make` (the variables), `start` (the state of no values), `before` (a value joins), `join`
    (a value), `joint` (before `merge`), `merge` (what `other` holds), `total` (what is
    the same for all lanes), `lost` (`other` notes that something is), `finish` (all is in), `block` (the values of a
    block, from `array`), `group` (what each `times` neighbouring lanes of `block` hold becomes one, and all have it).
    at: the place of the value along the row."""

    step: str
    held: Held
    args: tuple[Operand, ...] = ()
    other: Held | None = None
    at: Position | None = None
    array: str | Access = ""
    block: str = ""
    times: int = 1
    size: Expr | None = None
    shared: bool = False
    name: str = ""


NestLine: TypeAlias = Each | If | Room | Put | Move | Copy | Leave | Fold
Line: TypeAlias = Op | Load | Check | Join | Reduce | Moments | Scan | Walk | Whole | Store | Dot | Other | NestLine


@dataclass(frozen=True)
class Nest:
    """The lines of a kernel for a processor. extents: of the loop variables. starts: the element that a buffer's
    accesses count from. checks: what positions are checked against. atomic: other threads may combine with the same
    elements. work: element operations, by which a kernel of symbolic sizes decides about threads. parts: nests one
    after the other, in place of lines."""

    buffers: Mapping[str, Buffer]
    names: Names
    extents: Mapping[Symbol, Expr]
    lines: tuple[Line, ...]
    starts: Mapping[str, int] = field(default_factory=dict)
    checks: tuple[tuple[Expr, str], ...] = ()
    atomic: bool = False
    threaded: bool = False
    work: Expr = ZERO
    parts: tuple[Nest, ...] = ()


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
