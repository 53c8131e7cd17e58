"""A TileProgram as text, which `litz explain --tiles` shows and `litz_testing.parse.parse_tiles` reads back
(docs/tiles.md): by the rows of `notation`. Here are the forms of fields, and what stands in front of the lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from sympy import preorder_traversal
from sympy.core.parameters import distribute

from litz.ir import Range
from litz.ir.dtypes import short
from litz.ir.index import Expr, Symbol, is_canonical, loop_var, placeholder
from litz.ir.printer import argument_text, assumptions, buffer_text, size_text, word
from litz.tiles.program import Axes, Held, Line, Mask, Nest, Operand, Other, TileProgram, Value
from litz.tiles.shape import Axis, Tiling

from .notation import LISTS, ROWS, Field, Group, Piece, Row, Scope, row_of

OWN = "own."
"""In front of a symbol that has no name in a kernel, where something else has the symbol's name there."""
LAST = "then, by the last program of its outputs,"
"""What stands in front of a program that finishes the outputs of another."""
_ORDER = "yxrgkwd"
"""The axes of tiles, in the order in which a text names them."""


def program_text(program: TileProgram) -> str:
    """Returns the text of a TileProgram, and of those that finish its outputs."""
    return "\n".join(_program("tiles", program, None))


class Text(Scope):
    """The text of lines, with the names of a program. unnamed: symbols that the text has by their own names."""

    def __init__(self, program: TileProgram | Nest) -> None:
        super().__init__(program)
        self.unnamed: dict[Symbol, None] = {}
        self._made: list[Value] = []
        self._told: Mapping[Symbol, str] = {}

    # ---------------------------------------------------------------------------------------------------------- rows

    def record(self, record: Any) -> str:
        """Returns a record as its row says."""
        for row in _rows(record):
            if all(getattr(record, name) == value for name, value in row.where.items()):
                return self._pieces(row, row.pieces, record).strip()
        raise TypeError(f"no notation of {record}")

    def _pieces(self, row: Row, pieces: Sequence[Piece], record: Any) -> str:
        return "".join(self._piece(row, piece, record) for piece in pieces)

    def _piece(self, row: Row, piece: Piece, record: Any) -> str:
        if isinstance(piece, str):
            return piece
        value = getattr(record, piece.name)
        if isinstance(piece, Field):
            return self.form(piece.form, value)
        said = value is piece.holds if piece.holds is not None else value != self._default(row, piece, record)
        return self._pieces(row, piece.pieces, record) if said else ""

    def _default(self, row: Row, piece: Group, record: Any) -> Any:
        if piece.form == "tiling":
            self._told = getattr(record, "variables", self.variables)
        elif piece.form == "variables":
            along = {r.var for axis in record.tiling.axes for r in axis.ranges}
            return {**self.variables, **{s: name for s, name in record.variables.items() if s in along}}
        elif piece.form == "extents":
            return self.extents
        elif piece.name in row.defaults:
            return row.defaults[piece.name](self, {each.name: getattr(record, each.name) for each in fields(record)})
        return piece.default

    def form(self, form: str, value: Any) -> str:
        """Returns a field's value as text."""
        if form in LISTS:
            return ", ".join(self.form(LISTS[form], each) for each in value)
        if form.startswith("part"):  # of a plugin's
            return ", ".join(f"({self.record(each)})" for each in (value if form.startswith("parts") else [value]))
        return FORMS[form](self, value)

    def line(self, line: Line) -> str:
        """Returns the text of one line without its bodies."""
        self._made = []
        text = self.record(line)
        self.note(line, self._made)
        return text

    def lines(self, lines: Sequence[Line], indent: str) -> Iterator[str]:
        """Yields the text of lines; bodies are indented."""
        for line in lines:
            yield indent + self.line(line)
            with self.inside(line):
                for name, head in _rows(line)[0].bodies:
                    body, deeper = getattr(line, name), indent + "  "
                    if body and head:
                        yield deeper + head
                        deeper += "  "
                    yield from self.lines(body, deeper)

    # --------------------------------------------------------------------------------------------------------- forms

    def expr(self, expr: Any) -> str:
        """Returns an expression with the names of the kernel."""
        if isinstance(expr, int):
            return str(expr)
        names = {symbol: self.name_of(symbol) for symbol in expr.free_symbols}
        renamed = {s: Symbol(name, **s._assumptions.generator) for s, name in names.items() if name != s.name}
        if not any(each.is_Mul and any(arg.is_Add for arg in each.args) for each in preorder_traversal(expr)):
            return argument_text(expr.xreplace(renamed), iter(()))
        with distribute(False):  # a number in front of a sum stays there
            return argument_text(expr.xreplace(renamed), iter(()))

    def name_of(self, symbol: Symbol) -> str:
        """Returns what a symbol is called in the kernel; its own name, if the kernel has none for it."""
        name = self.variables.get(symbol) or self.sizes.get(symbol)
        if name is not None:
            return name
        if not is_canonical(symbol):
            self.unnamed[symbol] = None
        taken = symbol.name in {*self.variables.values(), *self.sizes.values()}
        return f"{OWN}{symbol.name}" if taken else str(symbol.name)

    def named(self, symbol: Symbol, size: Expr | None, name: str | None) -> str:
        """Returns a loop variable with its size and its name in the kernel: `i0<8 as x0`."""
        known = Symbol(symbol.name, **loop_var(0)._assumptions.generator)
        text = symbol.name if symbol == known else f"{symbol.name} ({', '.join(assumptions(symbol))})"
        text += "" if size is None else f"<{self.expr(size)}"
        return f"{text} unnamed" if name is None else text if name == symbol.name else f"{text} as {name}"

    def all_named(self, variables: Mapping[Symbol, str | None], sizes: Mapping[Symbol, Expr]) -> str:
        """Returns loop variables, each with its size and its name."""
        return ", ".join(self.named(symbol, sizes.get(symbol), name) for symbol, name in variables.items())

    def ranges(self, ranges: Sequence[Range], names: Mapping[Symbol, str]) -> str:
        """Returns ranges of the loop, each with its name."""
        return ", ".join(self.named(r.var, r.size, names.get(r.var)) for r in ranges)

    def axis(self, axis: Axis, names: Mapping[Symbol, str], by: str) -> str:
        """Returns an axis: the ranges along it, and its block. by: what stands before the block."""
        ranges = self.ranges(axis.ranges, names)
        further = f" as {self.record(axis)}" if type(axis) is not Axis else ""
        return f"{axis.name} = {ranges} {by} {axis.block}{f' of every {axis.step}' if axis.step > 1 else ''}{further}"

    def new(self, value: Value) -> str:
        """Returns a value that a line makes, with its type."""
        self._made.append(value)
        return f"{value.text}: {_type(value)}"

    def value(self, value: Value) -> str:
        """Returns a value by its name, and by what the line that made the value does not say."""
        known = self.values.get(value.text)
        if known == value:
            return value.text
        alike = known is not None and (known.axes, known.narrow) == (value.axes, value.narrow)
        return f"{value.text} as {short(value.dtype) if alike else _type(value)}"

    def held(self, held: Held) -> str:
        """Returns what a reduction holds, by its first name."""
        name = held.names[0] + held.suffix
        if self.holders.get(name) != held:
            return f"({self.record(held)})"
        return f"{name}[{held.lane[0]} - {held.lane[1]}]" if held.lane else name

    def tiling(self, tiling: Tiling) -> str:
        """Returns the axes of lines that have axes of their own, and what else is not as around the lines."""
        warps = "" if tiling.num_warps == self.num_warps else f" on {tiling.num_warps} warps"
        own = "" if tiling.pieces == self.pieces else f" pieces {self.ranges(tiling.pieces, self._told) or 'none'}"
        return " and ".join(self.axis(axis, self._told, "by") for axis in tiling.axes) + warps + own

    def tensor(self, tensor: Any) -> str:
        """Returns a buffer with a layout."""
        layout = tensor.layout
        self.unnamed.update(dict.fromkeys(layout.free_symbols - self.sizes.keys()))
        return f"{word(tensor.buffer)}{layout}"

    # ------------------------------------------------------------------------------------------------------- headers

    def arguments(self, starts: Mapping[str, int]) -> Iterator[str]:
        """Yields the lines of sizes and buffers. starts: the element that accesses of a buffer count from."""
        for size, name in self.sizes.items():
            yield f"  size {name} = {size_text(size, {})}"
        for name, buffer in self.buffers.items():
            kind = "buffer" if buffer.kind == "temporary" else buffer.kind
            pointer = f"{self.pointers[name]} = " if name in self.pointers else ""
            start = f", from element {starts[name]}" if name in starts else ""
            yield f"  {kind} {pointer}{buffer_text(buffer)}{start}"
            self.unnamed.update(dict.fromkeys(buffer.layout.free_symbols - self.sizes.keys()))

    def further(self, along: Sequence[Range]) -> Iterator[str]:
        """Yields a line of the variables that the axes do not name, or name otherwise. along: the axes' ranges."""
        known = {r.var: r.size for r in along}
        every = {s: None for s in (*known, *self.variables, *self.extents)}
        own = [s for s in every if s not in known or self.extents.get(s) != known[s]]
        if own:
            yield f"  variables {self.all_named({s: self.variables.get(s) for s in own}, self.extents)}"

    def symbols(self) -> Iterator[str]:
        """Yields the lines of symbols that the text has by their own names."""
        others = sorted(self.unnamed, key=lambda symbol: str(symbol.name))
        known = {*self.variables, *self.extents, *self.sizes}
        yield from (f"  symbol {size_text(s, {})}" for s in others if s not in known and not is_canonical(s))


def _rows(record: Any) -> tuple[Row, ...]:
    return ROWS.get(type(record)) or (row_of(type(record)),)


def _type(value: Value) -> str:
    return f"{'narrow ' * value.narrow}{short(value.dtype)}{_axes(value.axes)}"


def _axes(axes: Axes) -> str:
    return f"[{', '.join(sorted(axes, key=lambda name: (_ORDER.find(name) if name in _ORDER else 99, name)))}]"


def _operand(text: Text, operand: Operand | Mask) -> str:
    return text.value(operand) if isinstance(operand, Value) else text.record(operand)


def _place(text: Text, expr: Expr, start: str, times: int) -> str:
    return f"{text.expr(expr)}{f' from {word(start)}' if start else ''}{f' by {times}' if times != 1 else ''}"


FORMS: Mapping[str, Callable[[Text, Any], str]] = {
    "new": Text.new,
    "value": Text.value,
    "operand": _operand,
    "mask": _operand,
    "access": Text.record,
    "record": Text.record,
    "place": Text.record,
    "held": Text.held,
    "expr": Text.expr,
    "tiling": Text.tiling,
    "axis": lambda text, axis: text.axis(axis, text.variables, "by"),
    "tensor": Text.tensor,
    "range": lambda text, r: f"{text.name_of(r.var)}<{text.expr(r.size)}",
    "axes": lambda text, axes: _axes(axes),
    "dtype": lambda text, dtype: short(dtype),
    "word": lambda text, name: word(name),
    "string": lambda text, said: json.dumps(said, ensure_ascii=False),
    "int": lambda text, number: str(number),
    "number": lambda text, number: repr(number),
    "bool": lambda text, holds: "yes" if holds else "no",
    "more": lambda text, loops: f" with {loops - 1} more" if loops > 1 else "",
    "content": lambda text, stored: "memory" if stored else "values",
    "pointer": lambda text, buffer: word(text.pointers.get(buffer, buffer)),
    "indirect": lambda text, args: ", ".join(f"{placeholder(n)} = {_operand(text, a)}" for n, a in enumerate(args)),
    "at": lambda text, at: ", ".join(f"{text.name_of(symbol)} = {word(name)}" for symbol, name in at),
    "places": lambda text, at: f"[{', '.join(_place(text, *each) for each in at)}]",
    "array": lambda text, array: word(array) if isinstance(array, str) else text.record(array),
    "lane": lambda text, lane: f"{lane[2]} lanes {word(lane[0])} of {word(lane[1])}",
    "variables": lambda text, names: text.all_named(names, {}),
    "extents": lambda text, sizes: text.all_named({symbol: symbol.name for symbol in sizes}, sizes),
    "other": lambda text, value: f"`{value!r}`",
}
"""How the value of a field is printed, by the form of the field; `litz_testing.parse.tile_records` has how it is
read."""


def _walked(lines: Sequence[Line]) -> Iterator[str]:
    """Yields the axes that plugins' lines walk along."""
    for line in lines:
        if isinstance(line, Other):
            yield getattr(line, "walks", "")
            yield from _walked(getattr(line, "body", ()))


def _program(word: str, program: TileProgram, around: TileProgram | None) -> Iterator[str]:
    """Yields the lines of a program. around: whose arguments the program has as well."""
    text, tiling = Text(program), program.tiling
    text.enter(program.names.variables, program.extents, tiling)
    row = tiling.axis("r") is not None
    yield (
        f"{word} on {program.positions}, {tiling.num_warps} warps"
        + f", {tiling.stages} stages" * (tiling.stages != 1)
        + ", whole blocks apart" * tiling.whole
        + ", persistent" * (tiling.persistent and not row)
        + f", groups of {tiling.together}" * (tiling.together > 1 and not row)
    )
    lines: list[str] = []
    if around is None or (around.buffers, around.names.buffers, around.names.sizes) != (
        program.buffers,
        program.names.buffers,
        program.names.sizes,
    ):
        lines += text.arguments({})
    if tiling.pieces:
        lines.append(
            f"  pieces {', '.join(text.named(r.var, r.size, text.variables.get(r.var)) for r in tiling.pieces)}"
        )
    walked = {"r", *_walked(program.lines)}
    for axis in tiling.axes:
        way = "over programs" if axis.name not in walked else "whole" if tiling.persistent else "walked"
        groups = f" in groups of {tiling.together}" if axis.name == "r" and tiling.together > 1 else ""
        lines.append(f"  axis {text.axis(axis, text.variables, 'in blocks of')} {way}{groups}")
    lines += text.further([r for axis in tiling.axes for r in axis.ranges] + list(tiling.pieces))
    if tiling.frame is not None:
        frame = tiling.frame
        buffers = ", ".join(text.form("pointer", name) for name in program.buffers if name in frame.buffers)
        alike = "" if frame.slope is None else f" and {frame.slope} rows + {frame.first} of them"
        where = f"{text.expr(frame.start)} along {text.name_of(frame.var)}"
        lines.append(f"  frame of lanes {frame.lanes} below {where}{alike}{f' in {buffers}' if buffers else ''}")
    lines += [f"  limit {text.expr(limit)}" for limit in program.limits]
    lines += text.lines(program.lines, "  ")
    yield from text.symbols()
    yield from lines
    for last in program.finish:
        yield from (f"  {line}" for line in _program(LAST, last, program))
