"""The notation of TilePrograms and Nests: a row for each kind of record, which `tile_text` prints by and
`litz_testing.parse.tile_records` reads by.

A row's pattern is text with fields in it: `{name:form}` is a field, `[...]` is left out where the field in it is as by
default, and `[text?name]` is there where the field is true (`?-name`: false); `{[}` and `{]}` are brackets. A form is
how a value is written: `tile_text.FORMS` prints each, and the reader's table reads each.

A plugin's line (`litz.tiles.program.Other`) has a row of its own: the pattern `notation` of its class, or else one that
follows from its fields, in their order, each with its name in front.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache, cached_property
from typing import Any, TypeAlias

from litz.ir import Buffer
from litz.ir.index import Expr, Symbol, is_placeholder, placeholder_number
from litz.tiles import program as tile
from litz.tiles.program import Axes, Held, Nest, Operand, TileProgram, Value
from litz.tiles.shape import Axis, Tiling

_TOKEN = re.compile(r"\{([\[\]])\}|\{(\w+)(?::(\w+))?(?:=(\d+))?\}|\[((?:\{[\[\]]\}|[^\[\]])*)\]|([^{}\[\]]+)")

Piece: TypeAlias = "str | Field | Group"
Computed: TypeAlias = Callable[[Any, Mapping[str, Any]], Any]
"""What a field is by default, by the scope of the text and the record's other fields."""


@dataclass(frozen=True)
class Field:
    """A field of a record. form: how its value is written, see `litz_tools.tile_text.FORMS`."""

    name: str
    form: str


@dataclass(frozen=True)
class Group:
    """A part that is left out where a field is `default`. holds: of a flag, which has no field in it: is the part there
    where the field is true, or where it is false?"""

    pieces: tuple[Piece, ...]
    name: str
    default: Any
    holds: bool | None = None

    @property
    def form(self) -> str:
        """Returns the form of the field; '' of a flag."""
        return next((each.form for each in self.pieces if isinstance(each, Field)), "")


@dataclass(frozen=True)
class Row:
    """The pattern of a kind of record. where: fields that the pattern stands for. bodies: fields with the lines below
    it; a line with the second name stands in front, if there is one. defaults: of fields, where those of others say."""

    kind: type
    pattern: str
    where: Mapping[str, Any] = field(default_factory=dict)
    bodies: tuple[tuple[str, str], ...] = ()
    defaults: Mapping[str, Computed] = field(default_factory=dict)

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """Returns the pattern's parts."""
        return tuple(_parsed(self, self.pattern))

    @cached_property
    def words(self) -> tuple[str, ...]:
        """Returns the words and marks that every text by the row has."""
        return tuple(word for piece in self.pieces if isinstance(piece, str) and (word := piece.strip()))


LISTS: Mapping[str, str] = {
    "values": "value", "news": "new", "operands": "operand", "masks": "mask", "accesses": "access", "ranges": "range",
    "names": "word", "helds": "held", "exprs": "expr",
}  # fmt: skip
"""Forms of several values, with the form of each; commas divide them."""
EMPTY: Mapping[str, Any] = {
    "axes": frozenset(), "word": "", "string": "", "int": 0, "array": "",
    **dict.fromkeys((*LISTS, "indirect", "at"), ()),
}  # fmt: skip
"""What a field of a form is that is left out, and has no default of its own; None for other forms."""


def _parsed(row: Row, pattern: str) -> Iterator[Piece]:
    at = 0
    own = {each.name: each.default for each in fields(row.kind)}
    for found in _TOKEN.finditer(pattern):
        if found.start() != at:
            raise ValueError(f"{row.kind.__name__}: no pattern is {pattern[at:]!r}")
        at = found.end()
        bracket, name, form, _, group, text = found.groups()
        if group is None:
            yield bracket or text or Field(name, form)
            continue
        flag = re.fullmatch(r"([^?]*)\?(-?)(\w+)", group)
        if flag is not None:
            yield Group((flag[1],), flag[3], bool(flag[2]), not flag[2])
            continue
        inner = tuple(_parsed(row, group))
        (held,) = (each for each in inner if isinstance(each, Field))
        number = re.search(r"=(\d+)\}", group)
        default = own[held.name] if number is None else int(number[1])
        nothing = () if held.form.startswith("parts_") else EMPTY.get(held.form)
        yield Group(inner, held.name, nothing if default is MISSING else default)
    if at != len(pattern):
        raise ValueError(f"{row.kind.__name__}: no pattern is {pattern[at:]!r}")


def _of(name: str, what: str) -> Computed:
    """An attribute of another field."""
    return lambda scope, got: getattr(got[name], what)


_IN_WALKS = "[ by {groups:int}][ of halves?half][ inside?masked][ through {fresh:names}]"
_DOT = "dot of {left:value}, {right:value}[ in {precision:word}]"
_HELD = "{kind:word} of {dtype:dtype}[ suffix {suffix:word}][ by few?few][ in double?wide][ for {lane:lane}]"
_MOVED = "[ in blocks {blocks:names}][ below {size:expr}][ by {step:expr} swapped][ side {side:int}]"
_BODY = (("body", ""),)

LINES: tuple[Row, ...] = (
    Row(tile.Load, "{value:new} = load {access:access}[ if {masks:masks}][ else 0?zero][ keep {hint:word}]"),
    Row(
        tile.Store,
        "store {mode:word} {access:access}[ along {axes:axes}] = {value:operand}[ if {masks:masks}]",
        defaults={"axes": _of("access", "axes")},
    ),
    Row(
        tile.Check,
        "{held:new}, {value:new} = check {position:operand} < {size:expr}[ of {what:string}][ if {masks:masks}]",
    ),
    Row(tile.Join, "{state:values} = join {kind:word} {form:word} {args:operands}" + _IN_WALKS),
    Row(tile.Reduce, "{values:news} = reduce {kind:word} {form:word} {args:operands}"),
    Row(
        tile.Moments,
        "{mean:new}, {apart:new}[, {m2:new}] = moments {arg:operand}[ inside?masked][ near mean?near]",
    ),
    Row(
        tile.Scan,
        "{values:news} = scan {kind:word} {form:word} {args:operands}[ after {carry:values}]"
        "[ outside {outside:operand}][ through {fresh:names}]",
    ),
    Row(tile.Dot, "{into:new} = " + _DOT, {"new": True}),
    Row(tile.Dot, "{into:value} = " + _DOT + " into it", {"new": False}),
    Row(tile.Walk, "walk r[ back?back][ in {stages:int=1} stages]", bodies=_BODY),
    Row(
        tile.Whole,
        "whole in the first {blocks:int} programs",
        bodies=(("inside", "inside"), ("others", "others")),
    ),
    # Of processors.
    Row(
        tile.Each,
        "each {axis:word}<{size:expr}[ in blocks of {step:int}][ within {within:word}][ by {flat:int} as one]"
        "[ shared by threads{shared:more}][ as they come?uneven][ in lanes?vector][ apart?apart]"
        "[ unrolled {unroll:int}][ checks?checks][ merges {merged:helds}]",
        bodies=_BODY,
    ),
    Row(tile.If, "if something is lost in {odd:held}", {"lost": True}, _BODY),
    Row(tile.If, "if nothing is lost in {odd:held}", {"lost": False}, _BODY),
    Row(tile.Room, "room {name:word}: {dtype:dtype}[ as stored?stored] {[}{count:expr}{]}"),
    *(
        Row(tile.Move, f"{how} {{access:access}} {preposition} {{room:word}}" + _MOVED, {"how": how})
        for how, preposition in (("widen", "into"), ("narrow", "from"), ("load", "into"), ("store", "from"))
    ),
    Row(tile.Copy, "{name:word} = {block:word} + {number:int} below {size:expr}[ whole?whole]"),
    Row(tile.Leave, "leave {code:int} if no {empty:exprs}[ and some {some:exprs}]"),
    Row(tile.Fold, "{held:record}", {"step": "make"}),
    Row(tile.Put, "{place:operand} = {value:operand}"),
    Row(tile.Op, "{value:new} = {op:word}[ {args:operands}][ near {near:word}]"),
    Row(
        tile.Fold,
        "{held:held} {step:word}[ shared?shared][ {args:operands}][ of {other:held}][ from {array:array}]"
        "[ block {block:word}][ times {times:int=1}][ below {size:expr}][ named {name:word}][ at {at:place}]",
    ),
)

OPERANDS: tuple[Row, ...] = (
    Row(tile.Const, "{value:number}:{dtype:dtype}[{axes:axes}]"),
    Row(tile.Position, "([wide ?-narrow]{expr:expr})[:{dtype:dtype}][{axes:axes}][ at {at:at}]"),
    Row(tile.Places, "places[ converted?converted]:{dtype:dtype}[{axes:axes}]"),
    Row(tile.Counts, "counts:{dtype:dtype}[{axes:axes}]"),
    Row(
        tile.Spread,
        "spread({of:operand})[:{dtype:dtype}][{axes:axes}]",
        defaults={"dtype": _of("of", "dtype")},
    ),
    Row(
        tile.Filled,
        "filled({of:operand}, {outside:operand})[:{dtype:dtype}]",
        defaults={"dtype": _of("of", "dtype")},
    ),
    Row(tile.Coded, "bits({of:operand}, {as_type:dtype})[:{dtype:dtype}]"),
    Row(
        tile.Again,
        "again {access:access}[:{dtype:dtype}][ along {axes:axes}]",
        defaults={
            "dtype": lambda scope, got: scope.buffers[got["access"].buffer].dtype,
            "axes": _of("access", "axes"),
        },
    ),
    Row(tile.Result, "{kind:word}({held:held}):{dtype:dtype}[{axes:axes}]"),
    Row(tile.As, "{dtype:dtype}({of:operand})"),
    Row(
        tile.Element,
        "{room:word}{at:places}[:{dtype:dtype}][ holding {stored:content}][ along {axes:axes}]",
        defaults={
            "dtype": lambda scope, got: scope.room(got["room"]).dtype,
            "stored": lambda scope, got: scope.room(got["room"]).stored,
            "axes": lambda scope, got: scope.axes_of([expr for expr, _, _ in got["at"]]),
        },
    ),
)

MASKS: tuple[Row, ...] = (
    Row(tile.Inside, "in {axis:word}"),
    Row(tile.Positive, "some {size:expr}"),
    Row(tile.Below, "below {end:int} at {rest:expr}"),
)

ACCESS = Row(
    tile.Access,
    "{buffer:pointer}{[}{offset:expr}[, {indirect:indirect}]{]}[{axes:axes}][ framed?framed][ spread?spread]"
    "[ narrow?narrow][ at {at:at}]",
    defaults={"axes": lambda scope, got: scope.axes_of([got["offset"]], got["indirect"], dict(got["at"]))},
)
HELD = (
    Row(tile.Held, "{names:names} = reduce " + _HELD, {"scans": False}),
    Row(tile.Held, "{names:names} = scan " + _HELD, {"scans": True}),
)

# ------------------------------------------------------------------------------------------------------ plugins' lines

_FORMS: Mapping[str, str] = {
    "Value": "value", "Const": "operand", "Operand": "operand", "Mask": "mask", "Inside": "mask", "Access": "access",
    "Expr": "expr", "Symbol": "expr", "Range": "range", "Tiling": "tiling", "Axis": "axis", "Held": "held",
    "TensorRef": "tensor", "str": "word", "int": "int", "float": "number", "Scalar": "number", "torch.dtype": "dtype",
    "Axes": "axes", "Mapping[Symbol, str]": "variables", "Mapping[Symbol, Expr]": "extents", "str | Access": "array",
    "Operand | Inside": "mask",
}  # fmt: skip
"""How a field of a plugin's line is written, by its annotation; `other` for what is not here."""
_LIST_OF = {each: several for several, each in LISTS.items() if several != "news"} | {"part": "parts"}
PARTS: dict[str, type] = {}
"""Records of a plugin's that are fields of its lines, by the form of these fields."""


def row_of(kind: type) -> Row:
    """Returns how a plugin's line or mask, or what it makes of one of core's, is written: as its class says in
    `notation`, or by its fields."""
    return _derived(kind)


@cache
def _derived(kind: type) -> Row:
    told = {each.name: str(each.type).removesuffix(" | None") for each in fields(kind)}
    bodies = sorted((name for name, said in told.items() if said == "tuple[Line, ...]"), key="body".__eq__)
    below = tuple((name, "" if name == "body" else name) for name in bodies)
    given = getattr(kind, "notation", None)
    if given is not None:
        return Row(kind, given, bodies=below)
    made = {"value": "[{value:new} = ]", "values": "[{values:news} = ]"} if issubclass(kind, tile.Other) else {}
    if issubclass(kind, Axis):  # the rest is written as every axis has it
        told = {name: said for name, said in told.items() if name not in {each.name for each in fields(Axis)}}
    parts = [*(made[name] for name in told if name in made), kind.__name__.lower()]
    for name, said in told.items():
        if said == "bool":
            parts.append(f"[ {name}?{name}]")
        elif name not in made and name not in bodies:
            parts.append(f"[ {name} {{{name}:{_form(kind, said)}}}]")
    return Row(kind, "".join(parts), bodies=below)


def _form(kind: type, said: str) -> str:
    """The form of a field, by its annotation."""
    several = re.fullmatch(r"tuple\[([^,]*)(?:, (?:\.\.\.|\1))+\]", said)
    if several is not None:
        first, mark, name = _form(kind, several[1]).partition("_")
        return f"{_LIST_OF.get(first, 'other')}{mark}{name}"
    found = vars(sys.modules[kind.__module__]).get(said)
    if said not in _FORMS and isinstance(found, type) and is_dataclass(found):
        PARTS[f"part_{said}"] = found
        return f"part_{said}"
    return _FORMS.get(said, "other")


def own_rows() -> tuple[Row, ...]:
    """Returns the rows of the lines and masks of plugins that are imported."""
    return _rows_below(tile.Other, *(row.kind for row in MASKS))


def axis_rows() -> tuple[Row, ...]:
    """Returns the rows of the axes of plugins that are imported: of what an axis has besides that of core's."""
    return _rows_below(Axis)


def _rows_below(*above: type) -> tuple[Row, ...]:
    """The rows of the subclasses of some classes."""
    found, kinds = dict[tuple[str, str], type](), list(above)
    while kinds:
        own: list[type] = kinds.pop(0).__subclasses__()
        kinds += own
        # One that has slots is made twice, and the second counts.
        found |= {(kind.__module__, kind.__qualname__): kind for kind in own if is_dataclass(kind)}
    return tuple(map(_derived, found.values()))


# --------------------------------------------------------------------------------------------------------------- scopes


@dataclass(frozen=True)
class _Nothing:
    """The knowledge of a room that no line has made."""

    dtype: None = None
    stored: None = None


class Scope:
    """The meaning of names at a place in a text: of buffers, of loop variables and sizes, of axes, and of what earlier
    lines have made."""

    def __init__(self, program: TileProgram | Nest) -> None:
        self.buffers: Mapping[str, Buffer] = program.buffers
        self.pointers: Mapping[str, str] = program.names.buffers
        self.sizes: Mapping[Symbol, str] = program.names.sizes
        self.values: dict[str, Value] = {}
        self.holders: dict[str, Held] = {}
        self.rooms: dict[str, tile.Room] = {}
        self.enter({}, {}, None)

    def enter(self, variables: Mapping[Symbol, str], extents: Mapping[Symbol, Expr], tiling: Tiling | None) -> None:
        """Takes the variables of a program, or of lines with axes of their own. tiling: None where each variable is an
        axis."""
        self.variables, self.extents = variables, extents
        self.num_warps = 1 if tiling is None else tiling.num_warps
        self.pieces = () if tiling is None else tiling.pieces
        axes = () if tiling is None else tiling.axes
        self.axis_names = variables if tiling is None else {r.var: axis.name for axis in axes for r in axis.ranges}

    @contextmanager
    def inside(self, line: Any) -> Iterator[None]:
        """Is in the bodies of a line: a plugin's may have axes of its own."""
        outer = self.variables, self.extents, self.num_warps, self.pieces, self.axis_names
        if isinstance(line, tile.Other) and hasattr(line, "tiling"):
            variables, extents = getattr(line, "variables", self.variables), getattr(line, "extents", self.extents)
            self.enter(variables, extents, line.tiling)
        yield
        self.variables, self.extents, self.num_warps, self.pieces, self.axis_names = outer

    def axes_of(self, exprs: Iterable[Expr], operands: Sequence[Operand] = (), at: Mapping[Symbol, str] = {}) -> Axes:
        """Returns the axes that expressions vary along, with operands in place of their placeholders. at: other names
        of some variables."""
        symbols = {symbol for expr in exprs for symbol in expr.free_symbols}
        found = {at.get(s) or self.axis_names.get(s, "") for s in symbols} - {""}
        numbers = {placeholder_number(s) for s in symbols if is_placeholder(s)}
        return frozenset(found.union(*(each.axes for n, each in enumerate(operands) if n in numbers)))

    def room(self, name: str) -> Any:
        """Returns the line that made a room, or what is known of one that none has made."""
        return self.rooms.get(name, _Nothing())

    def note(self, line: Any, values: Iterable[Value]) -> None:
        """Notes what a line has made. values: that it gives names to."""
        self.values.update((value.text, value) for value in values)
        if isinstance(line, tile.Room):
            self.rooms[line.name] = line
        elif isinstance(line, tile.Fold) and line.step == "make":
            self.holders[line.held.names[0] + line.held.suffix] = line.held


ROWS: Mapping[type, tuple[Row, ...]] = {
    kind: tuple(row for row in (*LINES, *OPERANDS, *MASKS, *HELD, ACCESS) if row.kind is kind)
    for kind in {row.kind for row in (*LINES, *OPERANDS, *MASKS, *HELD, ACCESS)}
}
"""The rows of each kind of record of core's."""

__all__ = [
    "ACCESS", "EMPTY", "HELD", "LINES", "LISTS", "MASKS", "OPERANDS", "PARTS", "ROWS", "Field", "Group", "Piece", "Row",
    "Scope", "axis_rows", "own_rows", "row_of",
]  # fmt: skip
