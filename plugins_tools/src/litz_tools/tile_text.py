"""A TileProgram as text, which `litz explain --tiles` shows (docs/tiles.md)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from litz.ir.dtypes import short
from litz.ir.index import Expr, Symbol, placeholder
from litz.ir.printer import buffer_text
from litz.tiles import program as tile
from litz.tiles.program import Access, Axes, Line, Mask, Operand, TileProgram


def program_text(program: TileProgram) -> str:
    """Returns the text of a TileProgram, and of those that finish its outputs."""
    return "\n".join(_Text(program).program("tiles"))


class _Text:
    def __init__(self, program: TileProgram) -> None:
        self.made, self.tiling = program, program.tiling
        self.symbols = {old: Symbol(new, integer=True) for old, new in program.names.index_names.items()}
        self.types: dict[str, str] = {}

    def program(self, word: str) -> Iterator[str]:
        """Yields the lines of a program."""
        made, tiling = self.made, self.tiling
        held = f", {tiling.stages} stages" if tiling.axis("r") and not tiling.persistent else ""
        yield f"{word} on {made.positions}, {tiling.num_warps} warps{held}"
        for size, name in made.names.sizes.items():
            yield f"  size {name} = {size}"
        for name, buffer in made.buffers.items():
            yield f"  argument {made.names.buffers[name]} = {buffer_text(buffer)}"
        if tiling.pieces:
            yield f"  pieces {self._ranges(tiling.pieces)}"
        for axis in tiling.axes:
            apart = f" of every {axis.step}" if axis.step > 1 else ""
            way = "over programs" if axis.name != "r" else "whole" if tiling.persistent else "walked"
            groups = f" in groups of {tiling.together}" if axis.name == "r" and tiling.together > 1 else ""
            yield f"  axis {axis.name} = {self._ranges(axis.ranges)} in blocks of {axis.block}{apart} {way}{groups}"
        if tiling.frame is not None:
            frame = tiling.frame
            alike = "" if frame.slope is None else f" and {frame.slope} rows + {frame.first} of them"
            yield f"  frame of lanes {frame.lanes} below {self.expr(frame.start)}{alike}"
        yield from (f"  limit {self.expr(limit)}" for limit in made.limits)
        yield from self.lines(made.lines, "  ")
        for last in made.finish:
            yield from (f"  {line}" for line in _Text(last).program("then, by the last program of its outputs,"))

    def _ranges(self, ranges: Sequence[object]) -> str:
        names = self.made.names.variables
        return " ".join(f"{names[r.var]}<{self.expr(r.size)}" for r in ranges)  # type: ignore[attr-defined]

    def expr(self, expr: Expr, more: Mapping[Symbol, Symbol] | None = None) -> str:
        """Returns an expression with the names of the kernel."""
        return str(expr.xreplace({**self.symbols, **(more or {})}))

    def lines(self, lines: Sequence[Line], indent: str) -> Iterator[str]:
        """Yields the text of lines."""
        for line in lines:
            if isinstance(line, tile.Walk):
                yield f"{indent}walk r{' back' if line.back else ''}{self._stages(line.stages)}"
                yield from self.lines(line.body, indent + "  ")
            elif isinstance(line, tile.Whole):
                yield f"{indent}whole in the first {line.blocks} programs"
                yield from self.lines(line.inside, indent + "  ")
                yield f"{indent}others"
                yield from self.lines(line.others, indent + "  ")
            else:
                yield indent + self.line(line)

    def _stages(self, stages: int) -> str:
        return f" in {stages} stages" if stages > 1 else ""

    def _made(self, *values: tile.Value) -> str:
        self.types.update((value.text, short(value.dtype)) for value in values)
        return ", ".join(f"{value.text}: {short(value.dtype)}{self._axes(value.axes)}" for value in values)

    def _axes(self, axes: Axes) -> str:
        return f"[{', '.join(name for name in 'yxrg' if name in axes)}]"

    def line(self, line: Line) -> str:
        """Returns the text of one line without a body."""
        if isinstance(line, tile.Op):
            near = f" near {line.near}" if line.near else ""
            return f"{self._made(line.value)} = {line.op} {self.operands(line.args)}{near}"
        if isinstance(line, tile.Load):
            zero, hint = " else 0" if line.zero else "", f" keep {line.hint}" if line.hint else ""
            return f"{self._made(line.value)} = load {self.access(line.access)}{self.masks(line.masks)}{zero}{hint}"
        if isinstance(line, tile.Store):
            where = f"{self.access(line.access)}{self._axes(line.axes)}"
            return f"store {line.mode} {where} = {self.operand(line.value)}{self.masks(line.masks)}"
        if isinstance(line, tile.Check):
            what = f" of {json.dumps(line.what)}" if line.what else ""
            text = f"check {self.operand(line.position)} < {self.expr(line.size)}{what}{self.masks(line.masks)}"
            return f"{self._made(line.held, line.value)} = {text}"
        if isinstance(line, tile.Join):
            names, groups = ", ".join(value.text for value in line.state), f" by {line.groups}" * (line.groups > 1)
            inside = f" inside as {', '.join(line.fresh)}" if line.fresh else " inside" * line.masked
            half = " of halves" if line.half else ""
            return f"{names} = join {line.kind} {line.form} {self.operands(line.args)}{groups}{half}{inside}"
        if isinstance(line, tile.Reduce):
            return f"{self._made(*line.values)} = reduce {line.kind} {line.form} {self.operands(line.args)}"
        if isinstance(line, tile.Moments):
            made = [line.mean, line.apart, *([line.m2] if line.m2 is not None else [])]
            inside, near = " inside" * line.masked, " near mean" * line.near
            return f"{self._made(*made)} = moments {self.operand(line.arg)}{inside}{near}"
        if isinstance(line, tile.Scan):
            carry = f" after {', '.join(value.text for value in line.carry)}" if line.carry else ""
            outside = f" outside {self.operand(line.outside)}" if line.outside is not None else ""
            as_ = f" as {', '.join(line.fresh)}" if line.fresh else ""
            kind = json.dumps(line.kind) if " " in line.kind else line.kind
            text = f"{self._made(*line.values)} = scan {kind} {line.form} {self.operands(line.args)}"
            return f"{text}{carry}{outside}{as_}"
        raise TypeError(type(line).__name__)

    def operands(self, args: Sequence[Operand]) -> str:
        """Returns operands as text."""
        return ", ".join(map(self.operand, args))

    def operand(self, operand: Operand) -> str:
        """Returns an operand as text: a name, a constant, or one that is made where it is used."""
        dtype = short(operand.dtype)
        if isinstance(operand, tile.Value):
            return operand.text if self.types.get(operand.text) == dtype else f"{operand.text} as {dtype}"
        if isinstance(operand, tile.Const):
            return f"{operand.value!r}:{dtype}{self._axes(operand.axes) if operand.axes else ''}"
        if isinstance(operand, tile.Position):
            wide = "" if operand.narrow else "wide "
            return f"({wide}{self.expr(operand.expr)}){self._axes(operand.axes)}"
        if isinstance(operand, tile.Places):
            return f"places{' converted' * operand.converted}:{dtype}{self._axes(operand.axes)}"
        if isinstance(operand, tile.Counts):
            return f"counts:{dtype}{self._axes(operand.axes)}"
        inner = self.operand(operand.of)
        if isinstance(operand, tile.Spread):
            return f"spread({inner}){self._axes(operand.axes)}"
        if isinstance(operand, tile.Filled):
            return f"filled({inner}, {self.operand(operand.outside)})"
        return f"bits({inner}, {short(operand.as_type)})" if isinstance(operand, tile.Coded) else f"{dtype}({inner})"

    def masks(self, masks: Sequence[Mask]) -> str:
        """Returns ` if a, b`; '' for no masks."""
        return f" if {', '.join(map(self.mask, masks))}" if masks else ""

    def mask(self, mask: Mask) -> str:
        """Returns a mask as text."""
        if isinstance(mask, tile.Inside):
            return f"in {mask.axis}"
        if isinstance(mask, tile.Positive):
            return f"some {self.expr(mask.size)}"
        return f"below {mask.end} at {self.expr(mask.rest)}" if isinstance(mask, tile.Below) else self.operand(mask)

    def access(self, access: Access) -> str:
        """Returns the elements of an access as text: the buffer, the offset, what its placeholders are."""
        more = {placeholder(n): Symbol(f"d{n}", integer=True) for n in range(len(access.indirect))}
        at = "".join(f", d{n} = {self.operand(each)}" for n, each in enumerate(access.indirect))
        how = " framed" * access.framed + " spread" * access.spread
        return f"{self.made.names.buffers[access.buffer]}[{self.expr(access.offset, more)}{at}]{how}"
