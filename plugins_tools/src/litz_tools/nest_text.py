"""A Nest as text, which `litz explain --tiles` shows of a kernel for a processor (docs/tiles.md)."""

from __future__ import annotations

from collections.abc import Iterator

from litz.tiles.program import Nest, TileProgram

from .tile_text import Text, program_text


def tiles_text(program: TileProgram | Nest) -> str:
    """Returns the text of a kernel's program, for whichever device it is."""
    return nest_text(program) if isinstance(program, Nest) else program_text(program)


def nest_text(nest: Nest) -> str:
    """Returns the text of a Nest, which `litz_testing.parse.parse_tiles` reads back."""
    return "\n".join(_nest("nest", nest, None))


def _nest(word: str, nest: Nest, around: Nest | None) -> Iterator[str]:
    """Yields the lines of a nest. around: the one that this is a part of."""
    text = Text(nest)
    text.enter(nest.names.variables, nest.extents, None)
    yield f"{word}{' for threads' * nest.threaded}{', atomic' * nest.atomic}"
    lines: list[str] = []
    if around is None or (around.buffers, around.names.buffers, around.names.sizes, around.starts) != (
        nest.buffers,
        nest.names.buffers,
        nest.names.sizes,
        nest.starts,
    ):
        lines += text.arguments(nest.starts)
    lines += text.further([])
    lines += [f"  work {text.expr(nest.work)}"] * (nest.work != 0)
    lines += [f"  checks {text.expr(size)} of {text.form('string', what)}" for size, what in nest.checks]
    lines += text.lines(nest.lines, "  ")
    for part in nest.parts:
        lines += [f"  {line}" for line in _nest("segment", part, nest)]
    yield from text.symbols()
    yield from lines
