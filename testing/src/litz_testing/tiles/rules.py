"""Is a TileProgram legal? Each rule is a function from a program to its complaints; `verify_tiles` runs them all.

What depends on values (positions that are loaded, masks of the loop) is checked by `interpret`, which runs the program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from litz.codegen.dialect import family
from litz.ir.dtypes import FLOAT8, HALF, ROUNDED, compute_dtype, greatest, least
from litz.ir.index import bounds, placeholder
from litz.ir.ops import OPS
from litz.ir.reductions import REDUCTIONS
from litz.tiles import program as tile
from litz.tiles.program import Const, Line, Nest, Operand, TileProgram, Value

from .nest_rules import verify_nest

Rule = Callable[[TileProgram], Iterator[str]]
OWN = frozenset({"cast", "bitcast", "index", "same", "opaque", "decode", "byte", "softmax_total"})
"""Ops that are none of `litz.ir.ops`."""


def verify_tiles(program: TileProgram | Nest) -> Iterator[str]:
    """Yields a complaint for each broken rule, of the program and of those that finish its outputs."""
    if isinstance(program, Nest):
        yield from verify_nest(program)
        return
    for rule in RULES:
        yield from rule(program)
    for level in _levels(program):
        yield from (complaint for rule in (_masked, _inside, _arguments) for complaint in rule(level))
    for last in program.finish:
        yield from verify_tiles(last)


def made(line: Line) -> tuple[Value, ...]:
    """Returns the values that a line gives names to."""
    if isinstance(line, (tile.Op, tile.Load)):
        return (line.value,)
    if isinstance(line, tile.Check):
        return line.held, line.value
    if isinstance(line, (tile.Reduce, tile.Scan)):
        return line.values
    if isinstance(line, tile.Moments):
        return line.mean, line.apart, *([] if line.m2 is None else [line.m2])
    if isinstance(line, tile.Dot):
        return (line.into,) if line.new else ()
    value = getattr(line, "value", None) if isinstance(line, tile.Other) else None
    return (value,) if value is not None else tuple(getattr(line, "values", ()))


def taken(line: Line) -> Iterator[Operand]:
    """Yields the operands of a line, its masks among them."""
    if isinstance(line, (tile.Op, tile.Reduce, tile.Join, tile.Scan)):
        yield from line.args
    if isinstance(line, tile.Join):
        yield from line.state
    if isinstance(line, tile.Moments):
        yield line.arg
    if isinstance(line, tile.Scan):
        yield from line.carry
    if isinstance(line, tile.Check):
        yield line.position
    if isinstance(line, tile.Store):
        yield line.value
    if isinstance(line, (tile.Load, tile.Store)):
        used = line.access.offset.free_symbols  # along a dimension of one element a position does not count
        yield from (each for n, each in enumerate(line.access.indirect) if placeholder(n) in used)
    if isinstance(line, tile.Dot):
        yield from (line.left, line.right, *([] if line.new else [line.into]))
    if isinstance(line, tile.Other):
        found = [getattr(line, name, None) for name in ("of", "by", "into")]
        yield from (each for each in (*found, *getattr(line, "state", ())) if each is not None)
    masks = line.masks if isinstance(line, (tile.Load, tile.Store, tile.Check)) else getattr(line, "masks", ())
    yield from (mask for mask in masks if isinstance(mask, (Value, Const, tile.Spread)))


def inner(operand: Operand) -> Operand:
    """Returns what an operand is made of."""
    while isinstance(operand, (tile.Spread, tile.Filled, tile.Coded, tile.As)):
        operand = operand.of
    return operand


def bodies(line: Line) -> tuple[tuple[Line, ...], ...]:
    """Returns the bodies of a plugin's line, in the order in which they run."""
    return (getattr(line, "before", ()), getattr(line, "body", ())) if isinstance(line, tile.Other) else ()


def walked(line: Line) -> str:
    """Returns the axis that a plugin's line walks along; '' for others."""
    return getattr(line, "walks", "") if isinstance(line, tile.Other) else ""


def shared_out(line: Line) -> str:
    """Returns the axis that a plugin's line numbers programs along, and no other; '' for others."""
    return getattr(line, "shares_out", "") if isinstance(line, tile.Other) else ""


def is_side(line: Line) -> bool:
    """Returns whether a plugin's line has lines over tiles with axes of their own."""
    return isinstance(line, tile.Other) and hasattr(line, "tiling") and not walked(line)


def every(lines: Sequence[Line], whole: bool = False, sides: bool = True) -> Iterator[tuple[Line, bool]]:
    """Yields all lines, and whether each is for programs whose block lies in the range. sides: those over tiles with
    axes of their own too."""
    for line in lines:
        yield line, whole
        for body in bodies(line) if sides or not hasattr(line, "tiling") else ():
            yield from every(body, whole, sides)
        if isinstance(line, tile.Walk):
            yield from every(line.body, whole)
        elif isinstance(line, tile.Whole):
            yield from every(line.inside, True)
            yield from every(line.others, whole)


def _levels(program: TileProgram) -> Iterator[TileProgram]:
    """The program, and the lines over tiles with axes of their own, as programs."""
    yield program
    for line, _ in every(program.lines):
        if isinstance(line, tile.Other) and hasattr(line, "tiling"):
            names = replace(program.names, variables=getattr(line, "variables", program.names.variables))
            extents, lines = getattr(line, "extents", program.extents), bodies(line)[1]
            yield replace(program, tiling=line.tiling, names=names, extents=extents, lines=lines)


def _defined(program: TileProgram) -> Iterator[str]:
    """Every name is given once, and before it is used; what a walk's body makes is not there behind the walk. Tiles
    that are multiplied, and what they are made of in another walk, may have the same name."""
    names: set[str] = set()
    again = {each.text for line, _ in every(program.lines) if isinstance(line, tile.Dot) for each in taken(line)}  # type: ignore[union-attr]

    def check(lines: Sequence[Line], known: dict[str, Value]) -> Iterator[str]:
        nonlocal names
        here = known
        for line in lines:
            if isinstance(line, tile.Walk):
                yield from check(line.body, dict(here))
            elif isinstance(line, tile.Whole):
                yield from check(line.inside, dict(here))
                yield from check(line.others, dict(here))
            elif is_side(line):
                yield from check(bodies(line)[1], here)
            for operand in map(inner, taken(line)):
                if isinstance(operand, Value):
                    found = here.get(operand.text)
                    if found is None:
                        yield f"{operand.text} is used, and is not there"
                    elif not _is_held_as(found, operand):
                        yield f"{operand.text} is {found.dtype} along {set(found.axes)}, used as {operand}"
            for value in made(line):
                if value.text in names and value.text not in again and not _changes(line, value):
                    yield f"{value.text} is made twice"
                names.add(value.text)
                here[value.text] = value
            if bodies(line) and not is_side(line):
                inside, outside = dict(here), set(names)
                yield from (complaint for body in bodies(line) for complaint in check(body, inside))
                names = outside

    yield from check(program.lines, {})


def _changes(line: Line, value: Value) -> bool:
    """Returns whether an op makes a tile of the tile itself."""
    return isinstance(line, tile.Op) and any(getattr(each, "text", "") == value.text for each in taken(line))


def _is_held_as(found: Value, used: Value) -> bool:
    """Returns whether a tile may be used as one of another type. A tile of a half type holds float32 numbers."""
    same = found.dtype == used.dtype or {found.dtype, used.dtype} <= ROUNDED | {torch.float32, *FLOAT8, *HALF}
    return same and found.axes == used.axes


def _axes(program: TileProgram) -> Iterator[str]:
    """A value varies along the axes of what it is made of; what is stored and where varies along no others."""
    for line, _ in every(program.lines):
        axes = frozenset[str]().union(*(operand.axes for operand in taken(line)))
        if isinstance(line, tile.Op):
            if line.value.axes != axes:
                yield f"{line.value.text} has the axes {set(line.value.axes)}, its arguments {set(axes)}"
            if line.op not in OPS and line.op not in OWN:
                yield f"{line.op} is no op"
        elif isinstance(line, (tile.Load, tile.Store)):
            own = line.access.axes if isinstance(line, tile.Load) else line.axes
            if not axes <= own | line.access.axes:
                yield f"an access of {line.access.buffer} varies along {set(own)}, what is given along {set(axes)}"
            if isinstance(line, tile.Load) and line.value.axes != own:
                yield f"{line.value.text} has other axes than its access"
        elif isinstance(line, tile.Reduce):
            along = {"r", "g", "d"} & axes
            if not along:
                yield f"{line.values[0].text} reduces along no axis"
            if any(value.axes != axes - along for value in line.values):
                yield f"{line.values[0].text} keeps other axes than those that are not reduced"
        elif isinstance(line, tile.Join):
            if line.groups == 1 and any(arg.axes != line.state[0].axes for arg in line.args):
                yield f"what joins {line.state[0].text} has other axes"


def _types(program: TileProgram) -> Iterator[str]:
    """A value that is loaded or stored has the type of its buffer; what joins has that of what is carried."""
    for line, _ in every(program.lines):
        if isinstance(line, (tile.Load, tile.Store)):
            dtype = program.buffers[line.access.buffer].dtype
            value = line.value.dtype
            if value != (torch.uint8 if dtype in FLOAT8 else dtype) and value != dtype:
                yield f"{line.access.buffer} is {dtype}, and {value} is loaded or stored"
            masks = [mask for mask in line.masks if isinstance(mask, (Value, Const))]
            yield from (f"a mask is {mask.dtype}" for mask in masks if mask.dtype != torch.bool)
        elif isinstance(line, tile.Join) and line.form != "online":
            for part, arg in zip(line.state, line.args, strict=line.form not in ("welford", "online")):
                if compute_dtype(arg.dtype) != compute_dtype(part.dtype):
                    yield f"{part.text} is {part.dtype}, and {arg.dtype} joins it"


def _masked(program: TileProgram) -> Iterator[str]:
    """Along an axis whose last block is short, a load and a store ask for it; a reduction takes the state of no values
    in the places outside of the row."""
    tiling = program.tiling
    short = {axis.name for axis in tiling.axes if axis.masked and axis.size != 0}  # of nothing, no block is there
    if tiling.frame is not None:
        short.add("r")
    outside: dict[str, object] = {}
    for line, whole in every(program.lines, sides=False):
        wanted = short - {"x"} if whole else short
        if isinstance(line, (tile.Load, tile.Store)):
            asked = {mask.axis for mask in line.masks if isinstance(mask, tile.Inside)}
            asked |= {"r"} if "rload" in asked else set()
            own = line.access.axes if isinstance(line, tile.Load) else line.axes
            yield from (
                f"{line.access.buffer} is accessed without the mask of {axis}" for axis in sorted(wanted & own - asked)
            )
        elif isinstance(line, tile.Op):
            outside[line.value.text] = _outside_of(line, outside)
        elif "r" in wanted and isinstance(line, tile.Reduce) and "r" in line.args[0].axes:
            neutral = _neutral(line)
            if isinstance(inner(line.args[0]), Value) and inner(line.args[0]).text.startswith("acc"):  # type: ignore[union-attr]
                continue  # lanes outside of the row never joined
            for arg, nothing in zip(line.args, neutral, strict=False):
                found = arg.outside.value if isinstance(arg, tile.Filled) else _found(arg, outside)
                if found != nothing and not isinstance(arg, tile.Places):
                    yield f"{line.values[0].text} reduces places outside of the row, where {found} is, not {nothing}"
        elif "r" in wanted and isinstance(line, tile.Join) and not line.masked:
            if not all(isinstance(arg, (tile.Filled, tile.Places)) for arg in line.args):
                yield f"places outside of the row join {line.state[0].text}"


def _found(operand: Operand, outside: Mapping[str, object]) -> object:
    if isinstance(operand, tile.Filled):
        return operand.outside.value
    core = inner(operand)
    return outside.get(core.text) if isinstance(core, Value) else None


def _outside_of(line: tile.Op, outside: Mapping[str, object]) -> object:
    """Returns what is known of a value's places outside of the row: -inf, and what comes of -inf in a softmax."""
    first = _found(line.args[0], outside)
    if line.op in ("same", "cast"):
        return first
    if line.op == "sub" and first == -float("inf"):
        return first
    return 0.0 if line.op == "exp" and first == -float("inf") else None


def _neutral(line: tile.Reduce) -> list[object]:
    dtype = compute_dtype(line.args[0].dtype)
    if line.form == "online":
        return [-float("inf"), 0.0]
    if line.form == "place":
        worst = (least if line.kind == "argmax" else greatest)(dtype)
        return [worst, greatest(line.args[1].dtype)]
    row = family(line.kind, dtype) if line.form == "plain" else line.kind
    return [node.attrs[0] for node in REDUCTIONS[row].form(dtype).identity]


def _inside(program: TileProgram) -> Iterator[str]:
    """The offsets of accesses that no loaded position, no mask of the loop and no size decides lie in their buffers. A
    bound over sizes need not be reached: `8 * r * (s - 3)` is -24 for no size s of which there are s - 3 rows."""
    for line, _ in every(program.lines, sides=False):
        if not isinstance(line, (tile.Load, tile.Store)) or line.access.indirect:
            continue
        if any(isinstance(mask, (Value, Const, tile.Other)) for mask in line.masks):
            continue
        offset, frame = line.access.offset, program.tiling.frame
        if line.access.framed and frame is not None:
            offset = frame.start + frame.var + offset
        if not all(program.extents.get(var, var).is_Integer for var in offset.free_symbols):
            continue
        low, high = bounds(offset, program.extents)
        span = program.buffers[line.access.buffer].layout.span
        if low is not None and low.is_Integer and low < 0:
            yield f"{line.access.buffer} is accessed at {low}"
        if high is not None and high.is_Integer and span.is_Integer and high >= span > 0 and _has_points(program):
            yield f"{line.access.buffer} is accessed at {high}, and has {span} elements"


def _has_points(program: TileProgram) -> bool:
    return all(size != 0 for size in program.extents.values())


def _races(program: TileProgram) -> Iterator[str]:
    """Two programs store at different places, or combine; what was stored is not loaded afterwards."""
    tiling = program.tiling
    walks = {walked(line) for line, _ in every(program.lines)}
    only = {shared_out(line) for line in program.lines} - {""}
    grid = [axis for axis in tiling.grid_axes if axis.name not in walks and (not only or axis.name in only)]
    several = [axis for axis in grid if not (axis.size.is_Integer and int(axis.size) <= axis.block)]
    apart = [r.var for axis in several for r in axis.ranges if r.size != 1]
    apart += [r.var for r in tiling.pieces if r.size != 1]
    stored: set[str] = set()
    twice = any(isinstance(line, tile.Whole) for line in program.lines)  # one body after the other
    for line, _ in every(program.lines):
        if isinstance(line, tile.Store):
            stored.add(line.access.buffer)
            if line.mode == "set" and not line.access.indirect and not line.access.framed:
                shared = [var for var in apart if var not in line.access.offset.free_symbols]
                sized = [var for var in shared if program.extents.get(var) != 1]
                yield from (f"programs that differ in {var} store {line.access.buffer} at one place" for var in sized)
        elif isinstance(line, tile.Load) and line.access.buffer in stored and not twice:
            yield f"{line.access.buffer} is loaded after it was stored"


def _arguments(program: TileProgram) -> Iterator[str]:
    """Every buffer and every size is an argument."""
    known = {*program.names.index_names, *program.extents}
    for line, _ in every(program.lines, sides=False):
        if isinstance(line, (tile.Load, tile.Store)):
            if line.access.buffer not in program.buffers:
                yield f"{line.access.buffer} is no argument"
            own = {symbol for symbol in line.access.offset.free_symbols if symbol not in known}
            if len(own) > len(line.access.indirect):
                yield f"an offset in {line.access.buffer} has symbols that nothing stands for: {own}"


RULES: tuple[Rule, ...] = (_defined, _axes, _types, _races)
