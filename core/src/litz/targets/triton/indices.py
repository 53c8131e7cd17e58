"""Which elements a tile works on: its indices, their masks and their type.

In: a tile that has its tiling and names. Out: lines `xindex = ...`, `xmask = ...` and a line for each loop variable.
"""

from __future__ import annotations

from collections.abc import Sequence

from litz.codegen.kernel_plan import KernelPlan
from litz.codegen.sizes import INT32
from litz.ir import Range
from litz.ir.index import Expr, known_nonnegative

from .tile_shape import Axis
from .values import Tile

LIMIT = INT32 - 2**17
"""Offsets and positions up to here may be 32 bits wide: beyond the end of a range lies at most one block."""


def choose_index_type(plan: KernelPlan) -> tuple[str, list[Expr]]:
    """Returns the type of indices and the expressions that must not exceed LIMIT. The type has 32 bits where every
    offset and position fits; where symbolic sizes leave that open it is the kernel's parameter INDEX, which the
    launcher sets."""
    spans = [buffer.layout.span for buffer in plan.buffers.values()]
    spans += [size for loop in plan.loops for size in (loop.numel, loop.reduction_numel)]
    return index_type_of(spans, bool(plan.sizes))


def index_type_of(spans: Sequence[Expr], symbolic: bool) -> tuple[str, list[Expr]]:
    """Returns the type of indices, and the limits that decide it at run time. spans: how far offsets and positions
    reach. symbolic: is any size a symbol?"""
    open_ones: list[Expr] = []
    for span in dict.fromkeys(spans):
        if span.is_Integer:
            if int(span) > LIMIT:
                return "tl.int64", []
        elif not known_nonnegative(LIMIT - span):
            open_ones.append(span)
    return ("INDEX", open_ones) if open_ones or symbolic else ("tl.int32", [])


def write_indices(tile: Tile, program: str = "tl.program_id(0)", counted: bool = False) -> None:
    """Emits the tile's index along each axis of the grid, with the masks and loop variables.

    program: the text of the number of the program, for a grid of one axis. counted: this number counts the blocks of
    all pieces; programs beside each other take neighbouring blocks of one piece.
    """
    wide = "" if tile.index_type == "tl.int32" else f".to({tile.index_type})"
    for axis in tile.tiling.axes:
        tile.emit(f"{axis.name.upper()}BLOCK: tl.constexpr = {axis.block}")
    grid = tile.tiling.grid_axes
    if counted:
        # Neighbouring programs take neighbouring columns of one piece.
        (axis,) = grid
        tile.emit(f"columns = tl.cdiv({tile.index_text(axis.size)}, {axis.name.upper()}BLOCK)")
        tile.emit(f"column = {program} % columns")
        tile.emit(f"piece = ({program} // columns){wide}")
        _write_variables(tile, "piece", tile.tiling.pieces)
        program = "column"
    if len(grid) == 2:
        blocks = f"tl.cdiv({tile.index_text(grid[1].size)}, {grid[1].name.upper()}BLOCK)"
        tile.emit(f"columns = {blocks}")
        signs = zip(grid, ("//", "%"), strict=True)
        programs = {axis.name: f"(tl.program_id(0) {sign} columns){wide}" for axis, sign in signs}
    else:
        programs = {grid[0].name: f"{program}{wide}"}
    for axis in grid:
        block = f"{axis.name.upper()}BLOCK"
        if axis.step > 1:
            number, first = programs[axis.name], f"{axis.name}first"
            tile.emit(f"{first} = {number} // {axis.step} * ({axis.step} * {block}) + {number} % {axis.step}")
            write_axis(tile, axis, f"{first} + tl.arange(0, {block}){expand(tile, axis)} * {axis.step}")
            continue
        single = bool(axis.size.is_Integer) and int(axis.size) <= axis.block
        start = "" if single else f"{programs[axis.name]} * {block} + "
        write_axis(tile, axis, f"{start}tl.arange(0, {block}){expand(tile, axis)}")


def expand(tile: Tile, axis: Axis) -> str:
    """Returns the subscript that gives a vector along `axis` the tile's rank; '' if the tile has one axis."""
    if len(tile.tiling.axes) == 1:
        return ""
    return "[:, None]" if tile.tiling.axes[0] is axis else "[None, :]"


def write_axis(tile: Tile, axis: Axis, index: str) -> None:
    """Emits `xindex` (for the axis x), its mask if the axis has one, and the loop variables that the index is made of.
    index: the index's text."""
    name = f"{axis.name}index"
    tile.emit(f"{name} = {index}")
    if axis.masked:
        tile.emit(f"{axis.name}mask = {name} < {tile.index_text(axis.size)}")
    _write_variables(tile, name, axis.ranges)


def write_row(tile: Tile, axis: Axis, index: str) -> None:
    """Emits the indices and masks along a row; with a frame, the lanes begin where the frame says."""
    frame = tile.tiling.frame
    if frame is None:
        write_axis(tile, axis, index)
        return
    tile.emit(f"rlane = {index}", "rload = rlane < rend", "rindex = rlane - rlead")
    tile.emit(f"rmask = (rindex >= 0) & (rindex < {tile.index_text(axis.size)})")
    _write_variables(tile, "rindex", axis.ranges)


def write_frame(tile: Tile, axis: Axis) -> None:
    """Emits where each row's lanes begin and end, and which of them lie in whole groups. Emits nothing for a tiling
    without a frame."""
    frame = tile.tiling.frame
    if frame is None:
        return
    lanes, length = frame.lanes, int(axis.size)
    # Shifts, as nothing is negative: a division of signed numbers takes three instructions.
    shift = lanes.bit_length() - 1
    tile.emit(f"rfirst = {tile.index_text(frame.start)}", f"rstart = (rfirst >> {shift}) * {lanes}")
    alike = f"({frame.slope} * (xfirst % {lanes}) + {frame.first}) % {lanes}"
    tile.emit(f"rlead = {alike if tile.tiling.begins_alike else f'rfirst & {lanes - 1}'}")
    tile.emit(f"rend = ((rlead + {length + lanes - 1}) >> {shift}) * {lanes}")
    tile.emit(f"rhead = ((rlead + {lanes - 1}) >> {shift}) * {lanes}")
    tile.emit(f"rtail = ((rlead + {length}) >> {shift}) * {lanes}")


def _write_variables(tile: Tile, name: str, ranges: Sequence[Range]) -> None:
    """Emit the loop variables that a joint index of the ranges is made of."""
    tile.indices[tuple(ranges)] = name
    inner: list[str] = []
    for position, r in reversed(list(enumerate(ranges))):
        text = name if not inner else f"{name} // {inner[0] if len(inner) == 1 else '(' + '*'.join(inner) + ')'}"
        size = tile.index_text(r.size)
        if position > 0:
            text = f"{text} % {size}" if not inner else f"({text}) % {size}"
        tile.emit(f"{tile.names.variables[r.var]} = {text}")
        inner.insert(0, size)
