"""Lines of TilePrograms and Nests, and what is in them, from their text, by the rows that `litz_tools.tile_text` prints
by. `tiles` reads whole programs.

Of rows that a line may be of, the first that reads the whole line counts; where none does, the one that came furthest
says what it expected.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from litz.ir import Range, TensorRef
from litz.ir.index import ZERO, Expr, Symbol, canonical, loop_var
from litz.ir.node import intern
from litz.tiles import program as tile
from litz.tiles.program import Access, Axes, Held, Value
from litz.tiles.shape import Axis, Tiling
from litz_tools.notation import (
    ACCESS,
    HELD,
    LINES,
    LISTS,
    MASKS,
    OPERANDS,
    PARTS,
    Field,
    Group,
    Piece,
    Row,
    Scope,
    axis_rows,
    own_rows,
    row_of,
)
from litz_tools.tile_text import OWN

from .cursor import WORD, Cursor, Lines, ParseError
from .expressions import Expressions
from .loops import LoopParser, constant

_NUMBER = re.compile(r"-?(?:inf|nan|\d+(?:\.\d*)?(?:e[+-]?\d+)?j?)\b|True\b|False\b|\(-?[\w.]+(?:[+-][\w.]+)*j\)")
_QUOTED = re.compile(r"`[^`]*`")
_VARIABLE = re.compile(r"[^\W\d]\w*(?:\.\w+)*")


class RecordParser(LoopParser):
    """A parser of lines that knows what names stand for: `scope`."""

    def __init__(self, scope: Scope) -> None:
        super().__init__()
        self.scope = scope
        self.kernel = Expressions(self.symbol_in_kernel)
        """Reads expressions over the names of the kernel; `expressions` reads those over the names of the graph."""
        self.own, self.own_axes = own_rows(), axis_rows()
        self._made: list[Value] = []
        self._named: dict[Symbol, str] = {}
        """Variables that the axes in this line name."""
        self._far: ParseError | None = None
        """What stopped a part of this line that may be left out, at the column that came furthest."""

    def named_variable(self, line: Cursor) -> tuple[Symbol, Expr | None, str | None]:
        """Reads `i0<8 as x0`."""
        name = line.find(WORD)
        if name is None:
            line.fail("a loop's variable")
        if line.takes("("):
            symbol = Symbol(name, **dict(line.inside(")", lambda: self._assumption(line))))
        else:
            symbol = canonical(name) or Symbol(name, **loop_var(0)._assumptions.generator)
        if canonical(name) != symbol:
            self.symbols[name] = symbol
        size = self.kernel.sum(line) if line.takes("<") else None
        if line.takes("unnamed"):
            return symbol, size, None
        return symbol, size, line.name("a name") if line.takes("as") else name

    def axis(self, line: Cursor, by: str) -> tuple[Axis, dict[Symbol, str]]:
        """Reads an axis, and the names of its variables."""
        axis, ranges, names = line.name("the name of an axis"), list[Range](), dict[Symbol, str]()
        line.take("=")
        if not line.sees(by):
            for symbol, size, name in line.listed(lambda: self.named_variable(line)):
                ranges.append(Range(symbol, ZERO if size is None else size))
                names |= {} if name is None else {symbol: name}
        line.take(by)
        block = line.integer("the size of a block")
        step = line.integer() if line.takes("of every") else 1
        row, got = self._first(line, self.own_axes) if line.takes("as") else (None, {})
        kind = Axis if row is None else row.kind
        return kind(name=axis, ranges=tuple(ranges), block=block, step=step, **got), names

    def symbol_in_kernel(self, name: str) -> Symbol | None:
        """Returns the symbol that a name of the kernel stands for; None if there is none."""
        for names in (self.scope.variables, self.scope.sizes):
            found = next((symbol for symbol, own in names.items() if own == name), None)
            if found is not None:
                return found
        name = name.removeprefix(OWN)
        return self.symbols.get(name) or canonical(name)

    def _symbol(self, line: Cursor) -> Symbol:
        start = line.at
        found = self.symbol_in_kernel(line.find(_VARIABLE) or "")
        return line.fail("a loop's variable or a size", start) if found is None else found

    def pointer(self, line: Cursor) -> str:
        """Reads what the kernel calls a buffer."""
        start, pointer = line.at, line.name("an argument")
        found = next((name for name, own in self.scope.pointers.items() if own == pointer), None)
        if found is None and pointer not in self.scope.buffers:
            line.fail("an argument of the kernel", start)
        return pointer if found is None else found

    def lines(self, lines: Lines, last: str) -> tuple[Any, ...]:
        """Reads lines, up to one that begins with `last`."""
        found = []
        while (line := lines.next) is not None and not (last and line.sees(last)):
            lines.take("")
            found.append(self._line(line, lines.block(line)))
        return tuple(found)

    def _line(self, line: Cursor, below: Lines) -> Any:
        row, got = self._first(line, (*LINES[:-3], *self.own, *LINES[-3:]), whole=True)
        made, bodies = list(self._made), dict[str, Any]()
        if row.bodies:
            for name, _ in row.bodies:
                got[name] = ()
            head = row.kind(**got)
            self.scope.note(head, made)
            with self.scope.inside(head):
                for name, word in row.bodies:
                    bodies[name] = self._body(below, word)
            below.finish()
            return replace(head, **bodies)
        below.finish()
        found = row.kind(**got)
        self.scope.note(found, made)
        return found

    def _body(self, below: Lines, word: str) -> tuple[Any, ...]:
        """The lines of a body; those behind a line with a word, if it has one."""
        if not word:
            return self.lines(below, "")
        line = below.next
        if line is None or line.whole[line.indent : line.end].strip() != word:
            return ()
        below.take("")
        return self.lines(below.block(line), "")

    def _first(self, line: Cursor, rows: Sequence[Row], whole: bool = False) -> tuple[Row, dict[str, Any]]:
        """The first row that a line goes on by, and the fields. whole: up to its end. The line is read up to there."""
        start, furthest = line.at, ParseError("a line of a TileProgram or a Nest", line.number, line.at + 1, line.whole)
        if whole:
            self._far = None
        rest = line.whole[start : line.end]
        for row in rows:
            if whole and not all(word in rest for word in row.words):
                continue
            line.at, made = start, list(self._made)
            if whole:
                self._made, self._named = [], {}
            try:
                got = self._fields(line, row)
                if whole:
                    line.finish()
                return row, got
            except ParseError as error:
                self._made = made
                furthest = error if error.column > furthest.column else furthest
        line.at = start
        raise self._far if self._far is not None and self._far.column > furthest.column else furthest

    def _fields(self, line: Cursor, row: Row) -> dict[str, Any]:
        """The fields of a record by its row."""
        got: dict[str, Any] = dict(row.where)
        absent: list[Group] = []
        for piece in row.pieces:
            self._piece(line, piece, got, absent)
        for piece in sorted(absent, key=lambda piece: piece.name in row.defaults):
            got[piece.name] = self._default(row, piece, got)
        return got

    def _piece(self, line: Cursor, piece: Piece, got: dict[str, Any], absent: list[Group]) -> None:
        if isinstance(piece, str):
            if piece.strip():
                line.take(piece.strip())
        elif isinstance(piece, Field):
            got[piece.name] = self.form(line, piece.form)
        elif piece.holds is not None:
            (text,) = piece.pieces
            assert isinstance(text, str)
            got[piece.name] = line.takes(text.strip()) is piece.holds
        else:
            start, made = line.at, len(self._made)
            first = piece.pieces[0]
            if isinstance(first, str) and first.strip() and not line.sees(first.strip()):
                absent.append(piece)
                return
            try:
                for each in piece.pieces:
                    self._piece(line, each, got, absent)
            except ParseError as error:
                self._far = error if self._far is None or error.column > self._far.column else self._far
                line.at = start
                del self._made[made:]
                got.pop(piece.name, None)
                absent.append(piece)

    def _default(self, row: Row, piece: Group, got: Mapping[str, Any]) -> Any:
        if piece.form == "variables":
            return {**self.scope.variables, **self._named}
        if piece.form == "extents":
            return self.scope.extents
        if piece.name in row.defaults:
            return row.defaults[piece.name](self.scope, got)
        return piece.default

    def record(self, line: Cursor, rows: Sequence[Row]) -> Any:
        """Reads a record by the first of some rows that fits."""
        start = line.at
        row, got = self._first(line, rows)
        if row.kind is tile.Element and got["dtype"] is None:
            line.fail("a room that an earlier line makes", start)
        if row.kind is tile.Const:  # what is not a number is one object there
            got["value"] = intern("const", got["dtype"], (), (got["value"],)).attrs[0]
        return row.kind(**got)

    def form(self, line: Cursor, form: str) -> Any:
        """Reads a field's value."""
        if form in LISTS:
            return tuple(line.listed(lambda: self.form(line, LISTS[form])))
        if form.startswith("parts_"):
            return tuple(line.listed(lambda: self.form(line, form.replace("parts_", "part_", 1))))
        if form.startswith("part_"):
            line.take("(")
            found = self.record(line, (row_of(PARTS[form]),))
            line.take(")")
            return found
        return READ[form](self, line)

    def new(self, line: Cursor) -> Value:
        """Reads a value that a line makes."""
        name = line.find(WORD)
        if name is None:
            line.fail("the name of a value")
        line.take(":")
        found = self._typed(line, name, None)
        self._made.append(found)
        return found

    def _typed(self, line: Cursor, name: str, known: Value | None) -> Value:
        narrow, dtype = line.takes("narrow"), self.dtype(line)
        if line.sees("["):
            return Value(name, dtype, self.axes(line), narrow)
        if known is None:
            line.fail("the axes of a value")
        return Value(name, dtype, known.axes, known.narrow)

    def value(self, line: Cursor) -> Value:
        """Reads a value that an earlier line has made."""
        start = line.at
        name = line.find(WORD)
        known = self.scope.values.get(name or "")
        if name is not None and line.takes("as"):
            return self._typed(line, name, known)
        return line.fail("a value of an earlier line", start) if known is None else known

    def axes(self, line: Cursor) -> Axes:
        """Reads axes in brackets."""
        line.take("[")
        return frozenset(line.inside("]", lambda: line.name("an axis")))

    def number(self, line: Cursor) -> Any:
        """Reads a number as Python prints it."""
        found = line.find(_NUMBER)
        if found is None:
            line.fail("a number")
        return constant(found)

    def operand(self, line: Cursor) -> Any:
        """Reads an operand."""
        return self._one_of(line, OPERANDS)

    def mask(self, line: Cursor) -> Any:
        """Reads a mask."""
        return self._one_of(line, (*MASKS, *OPERANDS, *self.own))

    def _one_of(self, line: Cursor, rows: Sequence[Row]) -> Any:
        start = line.at
        word = line.find(WORD)
        called = any(line.sees(mark) for mark in "([:")
        line.at = start
        begins = any(row.words and row.words[0].split()[0] == word for row in rows)
        if word is not None and not called and (word in self.scope.values or not begins):
            return self.value(line)
        return self.record(line, rows)

    def indirect(self, line: Cursor) -> tuple[Any, ...]:
        """Reads what placeholders stand for."""

        def one() -> Any:
            line.name("a placeholder")
            line.take("=")
            return self.operand(line)

        return tuple(line.listed(one))

    def at(self, line: Cursor) -> tuple[Any, ...]:
        """Reads other names of variables."""

        def one() -> tuple[Symbol, str]:
            symbol = self._symbol(line)
            line.take("=")
            return symbol, line.name("a name")

        return tuple(line.listed(one))

    def places(self, line: Cursor) -> tuple[Any, ...]:
        """Reads the place of an element of a room."""

        def one() -> tuple[Expr, str, int]:
            expr = self.kernel.sum(line)
            start = line.name("a block") if line.takes("from") else ""
            return expr, start, line.integer() if line.takes("by") else 1

        line.take("[")
        return tuple(line.inside("]", one))

    def array(self, line: Cursor) -> str | Access:
        """Reads an array of values in a room, or in memory."""
        start = line.at
        name = line.name("an array")
        if not line.sees("["):
            return name
        line.at = start
        found: Access = self.record(line, (ACCESS,))
        return found

    def held(self, line: Cursor) -> Held:
        """Reads what a reduction holds."""
        if line.takes("("):
            found: Held = self.record(line, HELD)
            line.take(")")
            return found
        start, name = line.at, line.name("what a reduction holds")
        known = self.scope.holders.get(name)
        if known is None:
            line.fail("what a reduction of an earlier line holds", start)
        if known.lane is not None:
            for mark in ("[", known.lane[0], "-", known.lane[1], "]"):
                line.take(mark)
        return known

    def lane(self, line: Cursor) -> tile.Lane:
        """Reads the variables with an element for each position of a block."""
        count = line.integer()
        line.take("lanes")
        axis = line.name("an axis")
        line.take("of")
        return axis, line.name("a block"), count

    def tiling(self, line: Cursor) -> Tiling:
        """Reads axes of their own."""
        axes = list[Axis]()
        while not axes or line.takes("and"):
            axis, names = self.axis(line, "by")
            axes.append(axis)
            self._named |= names
        warps = self.scope.num_warps
        if line.takes("on"):
            warps = line.integer()
            line.take("warps")
        pieces = self.scope.pieces
        if line.takes("pieces"):
            found = [] if line.takes("none") else line.listed(lambda: self.named_variable(line))
            pieces = tuple(Range(symbol, ZERO if size is None else size) for symbol, size, _ in found)
            self._named |= {symbol: name for symbol, _, name in found if name is not None}
        return Tiling(tuple(axes), warps, pieces=pieces)

    def names(self, line: Cursor) -> dict[Symbol, str]:
        """Reads the names of variables."""
        found = line.listed(lambda: self.named_variable(line))
        return {symbol: name for symbol, _, name in found if name is not None}

    def extents(self, line: Cursor) -> dict[Symbol, Expr]:
        """Reads how far variables go."""
        found = line.listed(lambda: self.named_variable(line))
        return {symbol: size for symbol, size, _ in found if size is not None}

    def tensor(self, line: Cursor) -> TensorRef:
        """Reads a buffer with a layout."""
        return TensorRef(line.name("the name of a buffer"), self.layout(line))

    def other(self, line: Cursor) -> Any:
        """Reads what has no form of its own, as Python prints it: numbers, strings and tuples of them."""
        start, found = line.at, line.find(_QUOTED)
        try:
            return ast.literal_eval((found or "").strip("`"))
        except (SyntaxError, ValueError):
            line.fail("numbers, strings or tuples", start)

    def kernel_range(self, line: Cursor) -> Range:
        """Reads a range by the name of its variable in the kernel."""
        symbol = self._symbol(line)
        line.take("<")
        return Range(symbol, self.kernel.sum(line))

    def more(self, line: Cursor) -> int:
        """Reads how many loops threads share."""
        if not line.takes("with"):
            return 1
        found = line.integer() + 1
        line.take("more")
        return found

    def either(self, line: Cursor, yes: str, no: str) -> bool:
        """Reads one of two words."""
        if line.takes(yes):
            return True
        line.take(no, f"{yes!r} or {no!r}")
        return False


READ: Mapping[str, Callable[[RecordParser, Cursor], Any]] = {
    "new": RecordParser.new,
    "value": RecordParser.value,
    "operand": RecordParser.operand,
    "mask": RecordParser.mask,
    "access": lambda reader, line: reader.record(line, (ACCESS,)),
    "record": lambda reader, line: reader.record(line, HELD),
    "place": RecordParser.operand,
    "held": RecordParser.held,
    "expr": lambda reader, line: reader.kernel.sum(line),
    "tiling": RecordParser.tiling,
    "range": RecordParser.kernel_range,
    "axes": RecordParser.axes,
    "dtype": RecordParser.dtype,
    "word": lambda reader, line: line.name("a name"),
    "string": lambda reader, line: line.string(),
    "int": lambda reader, line: line.integer(),
    "number": RecordParser.number,
    "bool": lambda reader, line: reader.either(line, "yes", "no"),
    "more": RecordParser.more,
    "content": lambda reader, line: reader.either(line, "memory", "values"),
    "pointer": RecordParser.pointer,
    "indirect": RecordParser.indirect,
    "at": RecordParser.at,
    "places": RecordParser.places,
    "array": RecordParser.array,
    "lane": RecordParser.lane,
    "variables": RecordParser.names,
    "extents": RecordParser.extents,
    "axis": lambda reader, line: reader.axis(line, "by")[0],
    "tensor": RecordParser.tensor,
    "other": RecordParser.other,
}
"""How the value of a field is read, by the form of the field; `litz_tools.tile_text.FORMS` prints each."""
