"""Changes that make a TileProgram wrong, each of one line: what rules and interpreters have to find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from litz.tiles import program as tile
from litz.tiles.program import Line, TileProgram


def changed(program: TileProgram, change: Callable[[Line], Line]) -> TileProgram:
    """The program with each line changed, and the lines in its bodies."""

    def whole(line: Line) -> Line:
        body = tuple(map(whole, getattr(line, "body", ())))
        return change(replace(line, body=body) if body else line)  # type: ignore[type-var]

    return replace(program, lines=tuple(map(whole, program.lines)))


def unmasked(line: Line) -> Line:
    return replace(line, masks=()) if isinstance(line, (tile.Load, tile.Store)) else line


def not_zero(line: Line) -> Line:
    return replace(line, zero=False) if isinstance(line, tile.Load) else line


def beyond(line: Line) -> Line:
    if not isinstance(line, tile.Load):
        return line
    return replace(line, access=replace(line.access, offset=line.access.offset + 10**6))


def swapped(line: Line) -> Line:
    """A product of the left tile and itself."""
    return replace(line, right=line.left) if isinstance(line, tile.Dot) else line


def at_one_place(line: Line) -> Line:
    """A store for all programs."""
    if not isinstance(line, tile.Store):
        return line
    offset = line.access.offset
    return replace(line, access=replace(line.access, offset=offset.subs({s: 0 for s in offset.free_symbols})))
