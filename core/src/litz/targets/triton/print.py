"""Prints TilePrograms as Triton: the lines of one program. Names are the TileProgram's.

Every tile has the rank of the tiling, with 1 along axes that it does not have, so that Triton broadcasts by itself
where ops meet. Half types and float8 are held as float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import sympy
import torch

from litz.codegen.dialect import combining
from litz.ir import Buffer, Range
from litz.ir.dtypes import HALF, compute_dtype
from litz.ir.index import Expr, Ranges, Symbol, placeholder, product, stride_of
from litz.tiles import program as tile
from litz.tiles.names import Names
from litz.tiles.program import Const, Operand, TileProgram
from litz.tiles.shape import Axis, Tiling

from .dialect import ELEMENTS, TRITON, VALUES, literal, op_text, read, typed, written
from .print_reductions import REDUCTION_LINES
from .text import IndexText

POSITIONS: Mapping[str, str] = {"i32": "tl.int32", "i64": "tl.int64", "INDEX": "INDEX"}
"""The types of positions."""


class Printer:
    """The text of one program's lines so far. texts: what prints the lines of a kind."""

    texts: Mapping[type, Callable[[Any, Any], None]]

    def __init__(
        self, tiling: Tiling, buffers: Mapping[str, Buffer], names: Names, extents: Ranges, positions: str
    ) -> None:
        self.tiling, self.buffers, self.names, self.extents = tiling, buffers, names, extents
        self.positions, self.index_type = positions, POSITIONS[positions]
        self.lines: list[str] = []
        self.depth = 1
        self.index_text = IndexText(names.index_names, extents)
        wide = {symbol: f"{name}.to(tl.int64)" for symbol, name in names.index_names.items()}
        self.wide_text = IndexText(wide, extents)
        self.functions: dict[str, str] = {}
        """Functions that the kernel calls, by name, which are written before it."""
        self.indices: dict[tuple[Range, ...], str] = {}
        """Names of the joint indices that loop variables were made of, by their ranges."""

    def emit(self, *lines: str) -> None:
        """Appends lines, indented by the present depth."""
        self.lines += ("    " * self.depth + line for line in lines)

    def shape(self, axes: Iterable[str]) -> str:
        """Returns the shape of a tensor that varies along `axes`, as text."""
        chosen, groups = set(axes), f" // {self.tiling.together}"
        if "g" in chosen:
            chosen.add("r")
        sizes = (f"{a.name.upper()}BLOCK{groups * (a.name == 'r' and 'g' in chosen)}" for a in self.tiling.axes)
        return f"[{', '.join(size if a.name in chosen else '1' for a, size in zip(self.tiling.axes, sizes))}]"

    # Operands, masks.

    def text(self, operand: Operand) -> str:
        """Returns the text of an operand."""
        if isinstance(operand, tile.Value):
            return operand.text
        return _OPERANDS[type(operand)](self, operand)

    def _const(self, const: Const) -> str:
        if const.axes:
            return f"tl.full({self.shape(const.axes)}, {literal(const.value)}, {VALUES[const.dtype]})"
        return typed(const.value, compute_dtype(const.dtype))

    def _places(self, places: tile.Places) -> str:
        text = f"tl.broadcast_to(rindex, {self.shape(places.axes)})"
        return text + ".to(tl.int64)" * ((self.index_type != "tl.int32") + places.converted)

    def _counts(self, counts: tile.Counts) -> str:
        first = "rbase" if "r" in counts.axes else self.first_of_group()
        steps = f"(({self.length} - {first} + (RBLOCK - 1)) // RBLOCK)"
        times = "" if "r" in counts.axes else f" * {self.tiling.together}"
        return f"tl.broadcast_to(({steps}{times}).to({VALUES[counts.dtype]}), {self.shape(counts.axes)})"

    def spread(self, value: Operand, axes: tile.Axes) -> str:
        """Returns the text of a value, repeated along all of `axes`."""
        text = self.text(value)
        if value.axes >= axes:
            return text
        return f"tl.broadcast_to({text if value.axes else f'({text})'}, {self.shape(axes)})"

    def filled(self, text: str, outside: Const) -> str:
        """Returns a text with a constant in the lanes outside of the row."""
        if outside.dtype == torch.bool:
            return f"({text} & rmask)" if outside.value is False else f"({text} | (rmask == 0))"
        return f"tl.where(rmask, {text}, {literal(outside.value)})"

    def _as(self, made: tile.As) -> str:
        text = self.text(made.of)
        return f"({text} != 0)" if made.dtype == torch.bool else f"{text}.to({VALUES[made.dtype]})"

    @property
    def length(self) -> str:
        """Returns the text of a row's length."""
        axis = self.tiling.axis("r")
        assert axis is not None
        return self.index_text(axis.size)

    def first_of_group(self) -> str:
        """Returns the place of each group's first element in a block along the row."""
        together = self.tiling.together
        return f"(tl.arange(0, RBLOCK // {together})[None, :] * {together})"

    def mask(self, mask: tile.Mask) -> str:
        """Returns the text of a mask."""
        if isinstance(mask, tile.Inside):
            return mask.axis if mask.axis == "rload" else f"{mask.axis}mask"
        if isinstance(mask, tile.Positive):
            return f"({self.index_text(mask.size)} > 0)" if mask.size != 0 else "tl.full([1], False, tl.int1)"
        if isinstance(mask, tile.Below):
            text = "rstart + rlane" if not mask.rest else f"rstart + rlane + {self.index_text(mask.rest)}"
            return f"({text} < {mask.end})"
        assert not isinstance(mask, tile.Other), "the plugin prints it"
        return self.text(mask)

    # Memory.

    def pointer(self, access: tile.Access) -> str:
        """Returns the text of an access's pointers, `p0 + offset`."""
        if access.framed:
            text = "rstart" if not access.offset else f"rstart + {self.index_text(access.offset)}"
            # Of a row in one block the lanes are added last: their addresses are that of the row and small constants,
            # where each would take three instructions. In a loop such addresses would be counted up in 64 bits.
            first = text if not access.offset else f"({text})"
            where = f"{first} + rlane" if self.tiling.persistent else f"({text} + rlane)"
            return f"{self.names.buffers[access.buffer]} + {where}"
        names: dict[Symbol, str] = {
            **self.names.index_names,
            # The sizes allow 32-bit offsets where the index type is 32 bits wide, and then values of indices too.
            **{placeholder(n): f"{self.text(each)}.to({self.index_type})" for n, each in enumerate(access.indirect)},
        }
        joined, joint = self._joined(access.offset)
        text = IndexText({**names, **joint}, self.extents)(joined)
        if access.spread:
            zeros = f"tl.zeros({self.shape(access.axes)}, tl.int32)"
            text = zeros if access.offset == 0 else f"({text} + {zeros})"
        return f"{self.names.buffers[access.buffer]} + {text}"

    def _joined(self, offset: Expr) -> tuple[Expr, dict[Symbol, str]]:
        """An offset that goes through all ranges of an axis as through one, by the axis's own index: rows of 50257 that
        follow each other are contiguous, which nobody can tell from `50257*(i // 50257) + i % 50257`. And the names of
        such indices."""
        names: dict[Symbol, str] = {}
        for axis in self.tiling.axes:
            index = self.indices.get(axis.ranges)
            step = stride_of(offset, axis.ranges[-1].var) if index is not None and len(axis.ranges) > 1 else None
            if index is None or not step:
                continue
            sizes = [product(r.size for r in axis.ranges[n + 1 :]) for n in range(len(axis.ranges))]
            if any(stride_of(offset, r.var) != step * size for r, size in zip(axis.ranges, sizes, strict=True)):
                continue
            whole = Symbol(index, integer=True)
            walked = sympy.Add(*(r.var * step * size for r, size in zip(axis.ranges, sizes, strict=True)))
            offset = sympy.expand(offset - walked) + step * whole
            names[whole] = index
        return offset, names

    def load(self, line: tile.Load) -> str:
        """Returns the text of a load."""
        parts = [self.pointer(line.access)]
        if line.masks:
            parts.append(" & ".join(map(self.mask, line.masks)))
        if line.zero:
            parts.append("other=0")
        if line.hint:
            parts.append(f'eviction_policy="evict_{line.hint}"')
        text = f"tl.load({', '.join(parts)})"
        return f"{text}.to(tl.float32)" if line.value.dtype in HALF else text

    def _check(self, line: tile.Check) -> None:
        position, held = self.text(line.position), line.held.text
        self.emit(f"{held} = ({position} >= 0) & ({position} < {self.index_text(line.size)})")
        unread = [f"({self.mask(mask)} == 0)" for mask in line.masks]
        size = line.size
        shown = self.names.sizes.get(size, "") if size.is_Symbol else (str(size) if size.is_Integer else "")
        of = f" of {line.what}" if line.what else ""
        message = f"litz: index out of range{f' for size {shown}' if shown else ''}{of}"
        self.emit(f'tl.device_assert({" | ".join([held, *unread])}, "{message}")')
        # Where the assertion is compiled out, and until it ends the kernel, what is read lies in the buffer still.
        self.emit(f"{line.value.text} = tl.where({held}, {position}, 0)")

    def _store(self, line: tile.Store) -> None:
        """A combining store is an atomic operation. The maximum and the minimum of floats are those of their bits as
        integers; what else the hardware has no atomic for (products, types of 8 and 16 bits) goes through a helper that
        compares and swaps until it has won."""
        pointer, value = self.pointer(line.access), self.text(line.value)
        masks = list(map(self.mask, line.masks))
        if line.access.framed:
            self._store_row(pointer, value, [mask for mask in masks if mask != "rmask"])
            return
        if line.mode == "set":
            given = f", {' & '.join(masks)}" if masks else ""
            self.emit(f"tl.store({pointer}, {value}{given})")
            return
        dtype, shape = self.buffers[line.access.buffer].dtype, self.shape(line.axes)
        value = f"tl.broadcast_to({value}, {shape}).to({ELEMENTS[dtype]})"
        # Of the full shape: Triton's interpreter reads a broadcast mask as if it were not broadcast.
        mask = " & ".join([f"tl.full({shape}, True, tl.int1)", *masks])
        native = _native(line.mode, dtype)
        if native is not None:
            given = f", {mask}" if masks else ""
            self.emit(f'{native}({pointer}, {value}{given}, sem="relaxed")')
            return
        mode = combining(line.mode, dtype)
        if dtype in (torch.float32, torch.float64) and mode in ("max", "min"):
            self.emit(f'_atomic_extreme({pointer}, {value}, {mask}, "{mode}")')
            return
        base, _, offset = pointer.partition(" + ")
        width = "_narrow" if dtype.itemsize == 1 else ""
        self.emit(f'_atomic{width}({base}, {offset}, {value}, {mask}, "{mode}")')

    def _store_row(self, pointer: str, value: str, masks: list[str]) -> None:
        """Emit the store of rows that are not aligned: whole groups of lanes, then what is left of the row at both
        ends, an element at a time. With the same pointers, so that each thread stores what it has."""
        frame, axis = self.tiling.frame, self.tiling.axis("r")
        assert frame is not None and axis is not None
        self.emit("rwhole = (rlane >= rhead) & (rlane < rtail)")
        self.emit(f"tl.store({pointer}, {value}, {' & '.join([*masks, 'rwhole'])})")
        ends = f"tl.store({pointer}, {value}, {' & '.join([*masks, 'rmask', '(rwhole == 0)'])})"
        if self.tiling.persistent:
            self.emit(ends)
            return
        # Most blocks of a long row have no end in them.
        last = int(axis.size) - frame.lanes
        self.emit(f"if (roffset == 0) | (roffset + RBLOCK > {last}):", f"    {ends}")

    # Values.

    def _op(self, line: tile.Op) -> str:
        op, args, dtype, texts = line.op, line.args, line.value.dtype, list(map(self.text, line.args))
        if not line.near:
            if op == "same":
                return texts[0]
            if isinstance(args[0], tile.Position) and op == "index":
                return f"{texts[0]}.to(tl.int64)" if args[0].narrow else self.wide_text(args[0].expr)
            if op == "cast":
                return TRITON.cast(texts[0], args[0].dtype, dtype)
            if op == "bitcast":
                return TRITON.bitcast(texts[0], args[0].dtype, dtype)
            if op == "decode":
                return read(dtype, texts[0])
            if op == "byte":
                return f"{texts[0]}.to(tl.uint8, bitcast=True)"
            if op == "softmax_total":
                return f"_softmax_total({', '.join(texts)})"
        for position, arg in enumerate(args):
            if isinstance(arg, Const) and any(isinstance(other, tile.Position) for other in args):
                texts[position] = literal(arg.value)
        return op_text(line, texts)

    def _coded(self, coded: tile.Coded) -> str:
        text = self.text(coded.of)
        return written(coded.as_type, text if VALUES[coded.of.dtype] == "tl.float32" else f"{text}.to(tl.float32)")

    def _dot(self, line: tile.Dot) -> None:
        given = [self.text(line.left), self.text(line.right), *[self.text(line.into)] * (not line.new)]
        given += ["out_dtype=tl.int32"] * (line.into.dtype == torch.int32)
        given += [f'input_precision="{line.precision}"'] if line.precision else []
        self.emit(f"{line.into.text} = tl.dot({', '.join(given)})")

    # Control.

    def print(self, lines: Iterable[tile.Line]) -> None:
        """Emits lines of a TileProgram."""
        for line in lines:
            self.texts[type(line)](self, line)

    def inner(self, head: str, body: Iterable[tile.Line]) -> None:
        """Emits a head, and lines that are further in."""
        self.emit(head)
        self.depth += 1
        self.print(body)
        self.depth -= 1

    def _whole(self, line: tile.Whole) -> None:
        self.inner(f"if tl.program_id(0) < {line.blocks}:", line.inside)
        self.inner("else:", line.others)

    def _walk(self, line: tile.Walk) -> None:
        frame, axis = self.tiling.frame, self.tiling.axis("r")
        assert axis is not None
        size = self.index_text(axis.size) if frame is None else int(axis.size) + frame.lanes - 1
        stages = f", num_stages={line.stages}" if line.stages > 1 else ""
        walked = f"{'tl.' * bool(stages)}range(0, {size}, RBLOCK{stages})"
        self.emit(f"for {'rback' if line.back else 'roffset'} in {walked}:")
        self.depth += 1
        if line.back:
            self.emit(f"roffset = ({size} - 1) // RBLOCK * RBLOCK - rback")
        self._write_row(axis, f"roffset + rbase{self._wide}")
        self.print(line.body)
        self.depth -= 1

    def write_finish(self, calls: Sequence[str]) -> None:
        """Count this program; the last one of its outputs sees what all others have stored, and combines it."""
        pieces = "*".join(self.index_text(r.size) for r in self.tiling.pieces) or "1"
        self.emit("# Every thread has stored before this program is counted, and whoever counts the last sees it all.")
        self.emit("tl.debug_barrier()")
        self.emit(f'if tl.atomic_add(counters + column, 1, sem="acq_rel") == {pieces} - 1:')
        self.emit(*(f"    {call}" for call in calls))

    # Positions: each axis's index, mask and loop variables.

    @property
    def _wide(self) -> str:
        return "" if self.index_type == "tl.int32" else f".to({self.index_type})"

    def expand(self, axis: Axis) -> str:
        """Returns the subscript that gives a vector along `axis` the tile's rank; '' if the tile has one axis."""
        if len(self.tiling.axes) == 1:
            return ""
        return "[:, None]" if self.tiling.axes[0] is axis else "[None, :]"

    def write_positions(self, program: str = "tl.program_id(0)", counted: bool = False) -> None:
        """Emits the positions along each axis of the grid, and what a row needs before it is walked.

        program: the text of the number of the program, for a grid of one axis. counted: this number counts the blocks
        of all pieces; programs beside each other take neighbouring blocks of one piece.
        """
        for axis in self.tiling.axes:
            self.emit(f"{axis.name.upper()}BLOCK: tl.constexpr = {axis.block}")
        grid = self.tiling.grid_axes
        if counted:
            # Neighbouring programs take neighbouring columns of one piece.
            (axis,) = grid
            self.emit(f"columns = tl.cdiv({self.index_text(axis.size)}, {axis.name.upper()}BLOCK)")
            self.emit(f"column = {program} % columns")
            self.emit(f"piece = ({program} // columns){self._wide}")
            self._write_variables("piece", self.tiling.pieces)
            program = "column"
        if len(grid) == 2:
            self.emit(f"columns = tl.cdiv({self.index_text(grid[1].size)}, {grid[1].name.upper()}BLOCK)")
            signs = zip(grid, ("//", "%"), strict=True)
            programs = {axis.name: f"(tl.program_id(0) {sign} columns){self._wide}" for axis, sign in signs}
        else:
            programs = {grid[0].name: f"{program}{self._wide}"}
        for axis in grid:
            block = f"{axis.name.upper()}BLOCK"
            if axis.step > 1:
                number, first = programs[axis.name], f"{axis.name}first"
                self.emit(f"{first} = {number} // {axis.step} * ({axis.step} * {block}) + {number} % {axis.step}")
                self.write_axis(axis, f"{first} + tl.arange(0, {block}){self.expand(axis)} * {axis.step}")
                continue
            single = bool(axis.size.is_Integer) and int(axis.size) <= axis.block
            start = "" if single else f"{programs[axis.name]} * {block} + "
            self.write_axis(axis, f"{start}tl.arange(0, {block}){self.expand(axis)}")
        row = self.tiling.axis("r")
        if row is not None:
            self._write_frame(row)
            lanes = f"tl.arange(0, RBLOCK){self.expand(row)}"
            if self.tiling.persistent:
                self._write_row(row, lanes)
            else:
                self.emit(f"rbase = {lanes}")

    def write_axis(self, axis: Axis, index: str) -> None:
        """Emits `xindex` (for the axis x), its mask if the axis has one, and the loop variables that the index is made
        of. index: the index's text."""
        name = f"{axis.name}index"
        self.emit(f"{name} = {index}")
        if axis.masked:
            self.emit(f"{axis.name}mask = {name} < {self.index_text(axis.size)}")
        self._write_variables(name, axis.ranges)

    def _write_row(self, axis: Axis, index: str) -> None:
        """Emits the positions and masks along a row; with a frame, the lanes begin where the frame says."""
        if self.tiling.frame is None:
            self.write_axis(axis, index)
            return
        self.emit(f"rlane = {index}", "rload = rlane < rend", "rindex = rlane - rlead")
        self.emit(f"rmask = (rindex >= 0) & (rindex < {self.index_text(axis.size)})")
        self._write_variables("rindex", axis.ranges)

    def _write_frame(self, axis: Axis) -> None:
        """Emits where each row's lanes begin and end, and which of them lie in whole groups, where there is a frame."""
        frame = self.tiling.frame
        if frame is None:
            return
        lanes, length = frame.lanes, int(axis.size)
        # Shifts, as nothing is negative: a division of signed numbers takes three instructions.
        shift = lanes.bit_length() - 1
        self.emit(f"rfirst = {self.index_text(frame.start)}", f"rstart = (rfirst >> {shift}) * {lanes}")
        # All rows begin at one lane where the distance between them is whole groups.
        slope = f"({frame.slope} * (xfirst % {lanes}) + {frame.first}) % {lanes}"
        alike = slope if frame.period > 1 else str(frame.first)
        self.emit(f"rlead = {alike if self.tiling.begins_alike else f'rfirst & {lanes - 1}'}")
        self.emit(f"rend = ((rlead + {length + lanes - 1}) >> {shift}) * {lanes}")
        self.emit(f"rhead = ((rlead + {lanes - 1}) >> {shift}) * {lanes}")
        self.emit(f"rtail = ((rlead + {length}) >> {shift}) * {lanes}")

    def _write_variables(self, name: str, ranges: Sequence[Range]) -> None:
        """Emit the loop variables that a joint index of the ranges is made of."""
        self.indices[tuple(ranges)] = name
        inner: list[str] = []
        for position, r in reversed(list(enumerate(ranges))):
            text = name if not inner else f"{name} // {inner[0] if len(inner) == 1 else '(' + '*'.join(inner) + ')'}"
            size = self.index_text(r.size)
            if position > 0:
                text = f"{text} % {size}" if not inner else f"({text}) % {size}"
            self.emit(f"{self.names.variables[r.var]} = {text}")
            inner.insert(0, size)


def print_program(program: TileProgram, number: str = "tl.program_id(0)") -> Printer:
    """Returns the printed lines of a TileProgram. number: the text of the number of the program."""
    printer = Printer(program.tiling, program.buffers, program.names, program.extents, program.positions)
    printer.write_positions(number, counted=bool(program.finish))
    printer.print(program.lines)
    return printer


def _native(mode: str, dtype: torch.dtype) -> str | None:
    if mode == "add" and dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        return "tl.atomic_add"
    if dtype in (torch.int32, torch.int64, torch.uint32, torch.uint64) and mode in ("add", "max", "min"):
        return f"tl.atomic_{mode}"
    return None


_OPERANDS: Mapping[type, Callable[[Printer, Any], str]] = {
    Const: Printer._const,
    tile.Position: lambda printer, position: printer.index_text(position.expr),
    tile.Places: Printer._places,
    tile.Counts: Printer._counts,
    tile.Spread: lambda printer, spread: printer.spread(spread.of, spread.axes),
    tile.Filled: lambda printer, filled: printer.filled(printer.text(filled.of), filled.outside),
    tile.Coded: Printer._coded,
    tile.As: Printer._as,
}

Printer.texts = {
    tile.Op: lambda printer, line: printer.emit(f"{line.value.text} = {printer._op(line)}"),
    tile.Load: lambda printer, line: printer.emit(f"{line.value.text} = {printer.load(line)}"),
    tile.Check: Printer._check,
    tile.Walk: Printer._walk,
    tile.Whole: Printer._whole,
    tile.Store: Printer._store,
    tile.Dot: Printer._dot,
    **REDUCTION_LINES,
}
