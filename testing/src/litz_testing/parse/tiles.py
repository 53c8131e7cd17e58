"""A TileProgram or a Nest from its text: `parse_tiles(tiles_text(program)) == program`. docs/tiles.md has the notation.

A plugin's lines are read if the module with their classes is imported.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

from litz.ir import Buffer, Range
from litz.ir.index import ZERO, Expr, Symbol
from litz.tiles.names import Names
from litz.tiles.program import Nest, TileProgram
from litz.tiles.shape import Frame, Tiling
from litz_tools.notation import Scope
from litz_tools.tile_text import LAST

from .cursor import Cursor, Lines
from .tile_records import RecordParser

_POSITIONS = ("i32", "i64", "INDEX")
_MAKES = re.compile(r"\s*\w+(?:: |, | = )")
"""How a line begins that makes something, whatever its name is."""


def parse_tiles(text: str) -> TileProgram | Nest:
    """Returns the TileProgram, or the Nest, that a text is of. Errors: ParseError."""
    lines = Lines.of(text)
    head = lines.take("tiles on TYPE, or nest")
    if head.sees("nest"):
        found: TileProgram | Nest = _Parser(_Header()).nest(head, lines.block(head), "nest")
    else:
        found = _Parser(_Header()).program(head, lines.block(head), "tiles")
    lines.finish()
    return found


@dataclass
class _Header:
    """The part of a program in front of its lines, as far as it is read."""

    buffers: dict[str, Buffer] = field(default_factory=dict)
    pointers: dict[str, str] = field(default_factory=dict)
    sizes: dict[Symbol, str] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)
    variables: dict[Symbol, str] = field(default_factory=dict)
    extents: dict[Symbol, Expr] = field(default_factory=dict)

    def names(self) -> Names:
        """Returns the names of the header."""
        return Names(self.pointers, self.variables, self.sizes)

    def scope(self) -> Scope:
        """Returns what names stand for in front of the lines: what the header has by then."""
        found = Scope(Nest(self.buffers, self.names(), {}, ()))
        found.enter(self.variables, self.extents, None)
        return found


class _Parser(RecordParser):
    """A parser of a program, or of one that is part of another. around: the header of the other."""

    def __init__(self, around: _Header, inner: bool = False) -> None:
        self.header = replace(around, variables={}, extents={})
        self._inherited = inner
        super().__init__(self.header.scope())

    def program(self, head: Cursor, lines: Lines, word: str) -> TileProgram:
        """Reads a TileProgram, whose first line begins with a word."""
        head.take(word)
        head.take("on")
        positions = next((each for each in _POSITIONS if head.takes(each)), None)
        if positions is None:
            head.fail(f"a type of positions: {', '.join(_POSITIONS)}")
        head.take(",")
        tiling = Tiling((), head.integer("a number of warps"))
        head.take("warps")
        while head.takes(","):
            if head.takes("whole blocks apart"):
                tiling = replace(tiling, whole=True)
            elif head.takes("persistent"):
                tiling = replace(tiling, persistent=True)
            elif head.takes("groups of"):
                tiling = replace(tiling, together=head.integer())
            else:
                tiling = replace(tiling, stages=head.integer("a number of stages"))
                head.take("stages")
        head.finish()
        header, limits = self.header, list[Expr]()
        while (line := lines.next) is not None:
            start = line.at
            if _MAKES.match(line.whole):
                break
            if line.takes("pieces"):
                tiling = replace(tiling, pieces=self._pieces(line, header))
            elif line.takes("axis"):
                tiling = self._axis_line(line, tiling, header)
            elif line.takes("frame of lanes"):
                tiling = replace(tiling, frame=self._frame(line, header))
            elif line.takes("limit"):
                limits.append(self.kernel.sum(line))
            elif not self._declared(line, header):
                line.at = start
                break
            line.finish()
            lines.take("")
        self.scope.enter(header.variables, header.extents, tiling)
        made, finish = self.lines(lines, LAST), list[TileProgram]()
        while (line := lines.next) is not None:
            lines.take("")
            finish.append(self._inner().program(line, lines.block(line), LAST))
        return TileProgram(
            tiling,
            header.buffers,
            header.names(),
            header.extents,
            positions,
            made,
            tuple(limits),
            tuple(finish),
        )

    def nest(self, head: Cursor, lines: Lines, word: str) -> Nest:
        """Reads a Nest, whose first line begins with a word."""
        head.take(word)
        threaded = head.takes("for threads")
        atomic = head.takes(",")
        if atomic:
            head.take("atomic")
        head.finish()
        header, work, checks = self.header, ZERO, list[tuple[Expr, str]]()
        while (line := lines.next) is not None:
            start = line.at
            if _MAKES.match(line.whole):
                break
            if line.takes("work"):
                work = self.kernel.sum(line)
            elif line.takes("checks"):
                size = self.kernel.sum(line)
                line.take("of")
                checks.append((size, line.string()))
            elif not self._declared(line, header):
                line.at = start
                break
            line.finish()
            lines.take("")
        self.scope.enter(header.variables, header.extents, None)
        made, parts = self.lines(lines, "segment"), list[Nest]()
        while (line := lines.next) is not None:
            lines.take("")
            parts.append(self._inner().nest(line, lines.block(line), "segment"))
        return Nest(
            header.buffers,
            header.names(),
            header.extents,
            made,
            header.starts,
            tuple(checks),
            atomic,
            threaded,
            work,
            tuple(parts),
        )

    def _inner(self) -> _Parser:
        """A parser of what is inside, which has the arguments of this one unless it has its own."""
        found = _Parser(self.header, inner=True)
        found.symbols = dict(self.symbols)
        return found

    def _declared(self, line: Cursor, header: _Header) -> bool:
        """Reads a symbol, a size, an argument or variables; says whether the line is one of these."""
        start = line.at
        kind = next((each for each in ("symbol", "size", "buffer", "input", "constant") if line.takes(each)), None)
        if kind is not None and self._inherited and kind != "symbol":
            self._inherited = False
            header.buffers, header.pointers, header.sizes, header.starts = {}, {}, {}, {}
            self.buffers, self.scope = {}, header.scope()
        if kind == "symbol":
            self.size(line)
        elif kind == "size":
            name = line.name("what the kernel calls a size")
            line.take("=")
            header.sizes[self.size(line)] = name
        elif kind is not None:
            self._argument(line, kind, header)
        elif line.takes("variables"):
            for symbol, size, called in line.listed(lambda: self.named_variable(line)):
                header.variables |= {} if called is None else {symbol: called}
                header.extents |= {} if size is None else {symbol: size}
                if size is None:
                    header.extents.pop(symbol, None)
        else:
            line.at = start
            return False
        return True

    def _argument(self, line: Cursor, kind: Any, header: _Header) -> None:
        start = line.at
        pointer = line.name("what the kernel calls an argument")
        named = line.takes("=")
        line.at = line.at if named else start
        buffer = self.buffer(line, "temporary" if kind == "buffer" else kind)
        header.buffers[buffer.name] = buffer
        if named:
            header.pointers[buffer.name] = pointer
        if line.takes(","):
            line.take("from element")
            header.starts[buffer.name] = line.integer()

    def _pieces(self, line: Cursor, header: _Header) -> tuple[Range, ...]:
        """Ranges as a header has them, each with its name in the kernel."""
        found = []
        for symbol, size, name in line.listed(lambda: self.named_variable(line)):
            if size is None:
                line.fail("a size of each range")
            header.variables |= {} if name is None else {symbol: name}
            header.extents[symbol] = size
            found.append(Range(symbol, size))
        return tuple(found)

    def _axis_line(self, line: Cursor, tiling: Tiling, header: _Header) -> Tiling:
        axis, names = self.axis(line, "in blocks of")
        header.variables |= names
        header.extents |= {r.var: r.size for r in axis.ranges}
        ways = ("whole", "walked") if axis.name == "r" else ("over programs", "walked")
        way = next((each for each in ways if line.takes(each)), None)
        if way is None:
            line.fail(" or ".join(map(repr, ways)))
        if axis.name == "r":
            tiling = replace(tiling, persistent=way == "whole")
        if line.takes("in groups of"):
            tiling = replace(tiling, together=line.integer())
        return replace(tiling, axes=(*tiling.axes, axis))

    def _frame(self, line: Cursor, header: _Header) -> Frame:
        lanes = line.integer()
        line.take("below")
        start = self.kernel.sum(line)
        line.take("along")
        var = self._symbol(line)
        slope, first = None, 0
        if line.takes("and"):
            slope = line.integer()
            line.take("rows +")
            first = line.integer()
            line.take("of them")
        found = line.listed(lambda: self.pointer(line)) if line.takes("in") else []
        return Frame(start, var, lanes, frozenset(found), slope, first)
