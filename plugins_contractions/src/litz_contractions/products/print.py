"""Prints the TilePrograms of products as Triton: core's printer, and the text of this plugin's lines (`lines.py`).

Operands that lie in memory come through pointers, which grow from step to step where they can, or through descriptors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from sympy import ceiling

from litz.ir.dtypes import FLOAT8, HALF, short
from litz.ir.index import ONE, ZERO, Expr, Symbol, stride_of
from litz.ir.index import product as product_of
from litz.targets.triton.dialect import ELEMENTS, FLOAT8_TYPES, TRITON, literal, op_text, read
from litz.targets.triton.print import Printer
from litz.targets.triton.text import IndexText
from litz.tiles import program as tile
from litz.tiles.program import Const, Inside, Load, Operand, Value
from litz.tiles.shape import Axis

from .blocks import most_ahead
from .lines import Between, Blocks, Lanes, Panel, Parts, Planes, Scaled, Side, Steps

MOST_UNROLLED = 4
"""Steps along the depth up to which a loop may be unrolled as a whole."""
NATIVE: Mapping[str, str] = {"add": "+", "sub": "-", "mul": "*"}
"""Ops of half types that are one instruction for two values."""
_FLOAT8 = {dtype: f"tl.{name.replace('fp8', 'float8')}" for dtype, name in FLOAT8_TYPES.items()}
UNIT: Mapping[torch.dtype, int] = {dtype: round(1 / torch.finfo(dtype).eps) for dtype in HALF}
"""2**n: numbers from here to twice this are a distance of 1 apart."""


class ProductPrinter(Printer):
    """A program has a block of the result, and walks along the depth. as_values: buffers whose float8 are bytes."""

    blocks: Blocks
    steps = Steps((), (), 1, (), (), ())
    side: Side | None = None
    walks, end = 0, ""

    def __init__(self, *args: Any, as_values: frozenset[str] = frozenset()) -> None:
        super().__init__(*args)
        self.as_values = as_values

    def plain(self, expr: Expr, more: Mapping[Symbol, str] | None = None) -> str:
        """The text of an expression whose symbols may have any value."""
        return IndexText({**self.names.index_names, **(more or {})}, {})(expr)

    # Which block a program has.

    def _blocks(self, line: Blocks) -> None:
        self.blocks = line
        (row, column), emit, wide = self.tiling.axes, self.emit, self._wide
        first = next(each for each in line.body if isinstance(each, Steps))
        emit(*(f"{_block(axis)}: tl.constexpr = {axis.block}" for axis in (row, column)))
        emit(f"KBLOCK: tl.constexpr = {first.block}")
        emit(f"rows = {self._count(row.size, row.block, row.step)}")
        emit(f"columns = {self._count(column.size + most_ahead(row.step), column.block)}")
        if line.programs:
            # The loads of the next block overlap with the stores of the last.
            panels = [each for each in first.body if isinstance(each, Side)]
            emit(*(f"{self._descriptor(side)[0]} = {self._descriptor(side)[1]}" for side in panels))
            count = "rows * columns" + "".join(f" * {r.size}" for r in line.batch)
            emit(f"for number in tl.range(tl.program_id(0), {count}, {line.programs}, flatten=True):")
            self.depth += 1
        else:
            emit("number = tl.program_id(0)")
        if line.split > 1:  # programs of one block are neighbours
            emit(f"part = (number % {line.split}){wide}", f"number = number // {line.split}")
        if any(isinstance(each, Parts) for each in line.body):
            emit("whole = number")
        if line.batch:
            emit("outer = number // (rows * columns)", "number = number % (rows * columns)")
        for position, r in reversed(list(enumerate(line.batch))):
            size = self.plain(r.size)
            emit(f"batch{position} = {'outer' if position == 0 else f'(outer % {size})'}{wide}")
            if position > 0:
                emit(f"outer = outer // {size}")
        # In groups of rows, so that both operands stay in the L2.
        emit(f"first = number // ({line.group} * columns) * {line.group}")
        emit(f"height = tl.minimum(rows - first, {line.group})", f"inside = number % ({line.group} * columns)")
        if row.step > 1:
            emit("place = first + inside % height", f"part = place % {row.step}")
            emit(f"top = place // {row.step} * {_block(row)}")
            emit(f"start = part * {line.apart} // {line.units} * {line.units}", f"ahead = part * {line.apart} - start")
            emit(f"side = inside // height * {_block(column)}")
        else:
            for axis, place in ((row, "first + inside % height"), (column, "inside // height")):
                lanes = f"tl.arange(0, {_block(axis)}){self.expand(axis)}"
                self.write_axis(axis, f"({place}){wide} * {_block(axis)} + {lanes}")
        self.print(line.body)
        self.depth -= bool(line.programs)

    def _count(self, size: Expr, block: int, apart: int = 1) -> str:
        whole = size.is_Integer
        return str(apart * ceiling(size / apart / block)) if whole else f"tl.cdiv({self.plain(size)}, {block})"

    # The walk along k.

    def _steps(self, line: Steps) -> None:
        self.steps = line
        self._zeros(line.values)
        persistent, size, start = self.blocks.programs, product_of(r.size for r in line.ranges), "0"
        self.end = self.plain(size)
        if persistent and self.tiling.axes[0].step == 1:
            row, column = map(_block, self.tiling.axes)
            self.emit(f"top = (first + inside % height) * {row}", f"side = inside // height * {column}")
        elif line.values and not persistent:
            self.emit(f"depth = tl.arange(0, KBLOCK){self._wide}")
        if self.blocks.split > 1:
            self.emit(f"length = tl.cdiv({self.end}, {self.blocks.split * line.block}) * KBLOCK")
            self.emit("start = (part * length).to(tl.int32)", f"end = tl.minimum(start + length, {self.end})")
            start, self.end = "start", "end"
        elif not persistent and size.is_Integer and int(size) > MOST_UNROLLED * line.block:
            # Always times one, which ptxas does not know: it unrolls a loop of known length for up to four seconds.
            self.emit(f"end = {self.end} * tl.num_programs(1)")
            self.end = "end"
        direct = [side for side in line.body if isinstance(side, Side) and side.lane >= 0] * (not persistent)
        steps = {self._pointer_name(side): self._step(side) for side in direct}
        for side in direct:
            if steps[self._pointer_name(side)]:
                depth = f"depth{_expand(side)}" if start == "0" else f"({start} + depth{_expand(side)})"
                pointers = self._pointers(side, {line.ranges[0].var: depth})
                self.emit(f"{self._pointer_name(side)} = {pointers}")
        wide = [side for side in line.body if isinstance(side, Side) and side.tiling.axis("w")]
        self.emit(*(f"wide = tl.arange(0, {_lanes(side)} * KBLOCK){_expand(side)}" for side in wide))
        self.print(line.before)
        self.inner(f"for offset in range({start}, {self.end}, KBLOCK):", line.body)
        self.emit(*(f"    {pointer} += {step}" for pointer, step in steps.items() if step))
        self.walks += 1

    def _zeros(self, values: tuple[Value, ...]) -> None:
        for value in values:
            self.emit(f"{value.text} = tl.zeros({self.shape(value.axes)}, {ELEMENTS[value.dtype]})")

    def _depth(self, side: Side) -> dict[Symbol, str]:
        """The depth's variables at this step, as text."""
        names: dict[Symbol, str] = {}
        inner: Expr = ONE
        for position, r in reversed(list(enumerate(self.steps.ranges))):
            index = "offset" if r in self.steps.uniform else f"(offset + depth{_expand(side)})"
            text = index if inner == 1 else f"({index} // {self.plain(inner)})"
            if self.steps.uniform and r == self.steps.ranges[-1] and int(r.size) % self.steps.block == 0:
                # Contiguous and at a multiple of KBLOCK, which `%` hides from the compiler.
                start = "" if r.size == self.steps.block else f"tl.multiple_of(offset % {r.size}, KBLOCK) + "
                text = f"({start}depth{_expand(side)})"
            elif position > 0:
                text = f"({text} % {self.plain(r.size)})"
            names[r.var] = f"{side.name}k{position}"
            self.emit(f"{names[r.var]} = {text}")
            inner = inner * r.size
        return names

    # Operands.

    def _side(self, line: Side) -> None:
        if line.lane >= 0:
            self._load_panel(line, _loaded(line))
            return
        names = replace(self.names, variables=line.variables)
        child = ProductPrinter(line.tiling, self.buffers, names, line.extents, self.positions)
        for shared in ("lines", "depth", "as_values", "blocks", "steps", "end"):
            setattr(child, shared, getattr(self, shared))
        child.side = line
        if line.opens:
            child._open(line)
        child.print(line.body)

    def _open(self, line: Side) -> None:
        """The positions along the axes that the result does not have."""
        row, wide = line.tiling.axis("d"), line.tiling.axis("w")
        if row is not None:
            self.emit(f"DBLOCK: tl.constexpr = {row.block}")
            self.write_axis(row, "tl.arange(0, DBLOCK)")
            return
        self._depth(line)
        within = f"depth{_expand(line)} < {self.end} - offset"
        if wide is not None:
            count, inner = _lanes(line), self.steps.ranges[-1].size
            start = "offset" if not self.steps.uniform else f"(offset % {inner})" if inner != self.steps.block else ""
            place = f"({count} * {start} + wide)" if start else "wide"
            self.emit(f"WBLOCK: tl.constexpr = {wide.block}", f"w0 = {place}")
            within = f"({count} * offset + wide < {count} * {self.end})"
        masked = any(isinstance(each, Panel) and each.masked for each in line.body)
        if masked or any(isinstance(each, Load) and Inside("w") in each.masks for each in line.body):
            self.emit(f"{'k' if wide is None else 'w'}mask = {within}")

    def _load_panel(self, line: Side, load: Any) -> None:
        if self.blocks.programs:
            self.emit(f"{load.value.text} = {self._descriptor(line)[2]}")
            return
        pointer = self._pointer_name(line)
        if not self._step(line):
            pointer = self._pointers(line, self._depth(line))
        masks = [self._panel_mask(line, mask) for mask in load.masks]
        none = "0.0" if load.value.dtype in FLOAT8_TYPES else "0"
        mask = f", mask={' & '.join(masks)}, other={none}" if masks else ""
        self.emit(f"{load.value.text} = tl.load({pointer}{mask})")

    def _panel_mask(self, side: Side, mask: Any) -> str:
        if mask == Inside("k"):
            return f"(depth{_expand(side)} < {self.end} - offset)"
        if isinstance(mask, Between):
            names = {r.var: f"{side.name}k{n}" for n, r in enumerate(self.steps.ranges)}
            text = self.plain(mask.expr, names)
            return f"({text} >= 0) & ({text} < {self.plain(mask.size)})"
        return self.mask(mask)

    def _pointer_name(self, side: Side) -> str:
        which, second = "left" if side.tiling.axes[1].name == "k" else "right", "_2" * side.name.endswith("2")
        return f"{which}{self.walks}_{side.lane}{second}"

    def _step(self, side: Side) -> str:
        """Returns the growth of an operand's pointers from step to step; '' if they have to be computed anew."""
        load, ranges = _loaded(side), self.steps.ranges
        if len(ranges) != 1 or any(isinstance(mask, Between) for mask in load.masks):
            return ""
        stride = stride_of(load.access.offset, ranges[0].var)
        if stride is None:
            return ""
        return str(int(stride) * self.steps.block) if stride.is_Integer else f"KBLOCK * {self.plain(stride)}"

    def _pointers(self, side: Side, names: Mapping[Symbol, str]) -> str:
        """The tile of pointers of an operand, spread over the whole tile."""
        access, dtype = _loaded(side).access, _loaded(side).value.dtype
        text = self.plain(access.offset, names)
        if access.spread:
            text = f"({text} + tl.zeros([{', '.join(map(_block, side.tiling.axes))}], {self.index_type}))"
        base = self.names.buffers[access.buffer]
        if dtype in FLOAT8_TYPES and access.buffer in self.as_values:
            base = f"{base}.to(tl.pointer_type({_FLOAT8[dtype]}), bitcast=True)"
        return f"{base} + {text}"

    def _descriptor(self, side: Side) -> tuple[str, str, str]:
        """The name of an operand's descriptor, the text that makes the descriptor, and the one that loads a tile with
        it. The operands of a batch are three-dimensional, so that no tile reaches into the next product; so is a left
        operand of which a tile has each n-th row, from row `part` on. Outside of the operand there is 0."""
        access, left = _loaded(side).access, side.tiling.axes[1].name == "k"
        offset = access.offset
        ranges, apart = [axis.ranges[0] for axis in side.tiling.axes], self.tiling.axes[0].step
        blocks = list(map(_block, side.tiling.axes))
        starts = ("top", "offset") if left else ("offset", "side - ahead" if apart > 1 else "side")
        strides = [stride_of(offset, r.var) for r in ranges]
        turned = strides[1] != ONE  # the dimension that is contiguous comes last
        order = (1, 0) if turned else (0, 1)
        batch = [r for r in self.blocks.batch if stride_of(offset, r.var) != 0]
        begin = offset.xreplace({r.var: ZERO for r in (*ranges, *batch)})
        base = self.names.buffers[access.buffer] + (f" + {int(begin)}" if begin != 0 else "")
        size = [str(r.size) for r in batch] + [str(int(ranges[n].size)) for n in order]
        step = [str(stride_of(offset, r.var)) for r in batch] + [str(strides[order[0]]), "1"]
        block = ["1" for _ in batch] + [blocks[n] for n in order]
        start = [self.names.variables[r.var] for r in batch] + [starts[n] for n in order]
        if apart > 1 and left:
            size = [str(apart), str(int(ranges[0].size) // apart), size[-1]]
            step, block = [step[-2], str(apart * int(step[-2])), "1"], ["1", *block]
            start, batch = ["part", *start], [ranges[0]]
        name = "left" if left else "right"
        text = f"tl.make_tensor_descriptor({base}, [{', '.join(size)}], [{', '.join(step)}], [{', '.join(block)}])"
        loads = f"{name}.load([{', '.join(start)}])"
        if batch:
            loads += f".reshape([{', '.join(blocks[n] for n in order)}])"
        return name, text, loads + (".T" if turned else "")

    def _panel(self, line: Panel) -> None:
        value, kind = self.spread(line.of, line.value.axes), f".to({ELEMENTS[line.value.dtype]})"
        wide, halves = self.tiling.axis("w") is not None, self.side is not None and self.side.halves
        if line.masked:
            value = f"tl.where({'w' if wide else 'k'}mask, {value}, 0){'' if wide else kind}"
        value += "" if halves else kind
        if line.value.dtype in FLOAT8_TYPES and not wide:
            value += f".to({_FLOAT8[line.value.dtype]}, bitcast=True)"
        self.emit(f"{line.value.text} = {value}")

    def _load(self, line: Load) -> None:
        """A load of a tile that is made."""
        halves = self.side is not None and self.side.halves and line.value.dtype in HALF
        text = self.load(line)
        self.emit(f"{line.value.text} = {text.removesuffix('.to(tl.float32)') if halves else text}")

    # Operands that lie interleaved: one tile for all lanes.

    def _lanes(self, line: Lanes) -> None:
        count, axes = len(line.values), self.tiling.axes
        turned = axes[0].name == "w"
        block = _block(axes[turned])
        bits, every = count.bit_length() - 1, line.of.text
        twos = ["2"] * bits
        if turned:
            # A split is along the last dimension, so the depth's places have to stand there.
            order = ", ".join(map(str, (0, bits + 1, *range(1, bits + 1))))
            self.emit(f"{every} = tl.permute(tl.reshape({every}, [{', '.join(['KBLOCK', *twos, block])}]), [{order}])")
        else:
            self.emit(f"{every} = tl.reshape({every}, [{', '.join([block, 'KBLOCK', *twos])}])")
        parts = {every: 0}
        for bit in range(bits):
            # The lowest bit of the lane's number that is left.
            halves: dict[str, int] = {}
            for part, lane in parts.items():
                numbers = (lane, lane + (1 << bit))
                last = [line.values[n].text if bit == bits - 1 else f"{part}_{h}" for h, n in enumerate(numbers)]
                self.emit(f"{', '.join(last)} = tl.split({part})")
                halves |= dict(zip(last, numbers, strict=True))
            parts = halves

    # Half types that are held as such.

    def _made(self, line: tile.Op) -> None:
        if not line.near.startswith("half"):
            self.emit(f"{line.value.text} = {self._op(line)}")
            return
        (first, *_), dtype, kind = line.args, line.value.dtype, line.near.removeprefix("half").strip()
        # As core's printer holds them.
        wide = [".to(tl.float32)" * (arg.dtype in HALF and not isinstance(arg, Const)) for arg in line.args]
        half, texts = f".to({ELEMENTS[dtype]})", [f"{self.text(arg)}{to}" for arg, to in zip(line.args, wide)]
        if kind in ("native", "less"):
            texts = [self._half(arg, dtype) for arg in line.args]
            text = f"{texts[0]} {'-' if kind == 'less' else NATIVE[line.op]} {texts[1]}"
        elif kind in ("signed", "unsigned"):
            text = f'_half_integer({texts[0]}, {ELEMENTS[dtype]}, "{kind}")'
        elif kind:
            text = read(next(each for each in FLOAT8 if short(each) == kind), self.text(first), dtype)
        elif line.op == "cast":
            cast = f"{texts[0]}.to(tl.float32){half}"
            text = cast if dtype in HALF else TRITON.cast(texts[0], first.dtype, dtype)
        else:
            text = op_text(replace(line, near=""), texts)
            text = f"({text}){half}" if dtype in HALF else text
        self.emit(f"{line.value.text} = {text}")

    def _half(self, operand: Operand, dtype: torch.dtype) -> str:
        """A value of a half type, or 2**n + an integer, whose bits are those of the integer and of 2**n together."""
        if isinstance(operand, Const):
            return f"tl.full([], {literal(float(operand.value))}, {ELEMENTS[dtype]})"
        text = self.text(operand)
        if operand.dtype in HALF:
            return text
        one = torch.tensor(UNIT[dtype], dtype=dtype).view(torch.int16).item()
        return f"({text}.to(tl.uint16) | {one}).to({ELEMENTS[dtype]}, bitcast=True)"

    def _planes(self, line: Planes) -> None:
        word, dtype = line.of.text if line.of else line.word, line.values[0].dtype
        if line.access is not None:
            base, _, at = self.pointer(line.access).partition(" + ")
            masks = " & ".join(map(self.mask, line.masks))
            mask = f", {masks}, other=0" if masks else ""
            self.emit(f"{word} = tl.load({base}.to(tl.pointer_type(tl.uint16), bitcast=True) + {at}{mask})")
        taken = "half" if line.access is None else "word"
        stored = "integer" if line.kind in ("nibbles", "signed", "unsigned") else "float8"
        made = f'_{taken}_{stored}({word}, {ELEMENTS[dtype]}, "{line.kind}")'
        self.emit(f"{', '.join(value.text for value in line.values)} = {made}")

    # Sums, stores.

    def _sum(self, line: tile.Reduce) -> None:
        """The sum of a row that the kernel has in one tile; other reductions are core's."""
        (axis, *more), (arg, *_) = self.tiling.axes, line.args
        if more:
            Printer.texts[tile.Reduce](self, line)
            return
        text = self.text(arg.of if isinstance(arg, tile.Filled) else arg)
        text = f"tl.where({axis.name}mask, {text}, 0)" if isinstance(arg, tile.Filled) else text
        self.emit(f"{line.values[0].text} = tl.sum({text}, 0)")

    def _parts(self, line: Parts) -> None:
        row, column = self.tiling.axes
        first, second = _block(row), _block(column)
        masks, elements = [f"{axis.name}mask" for axis in (row, column) if axis.masked], row.block * column.block
        mask = f", mask={' & '.join(masks)}" if masks else ""
        other = ", other=0" if masks else ""
        emit, total = self.emit, line.into.text
        emit(f"inside = tl.arange(0, {first})[:, None] * {second} + tl.arange(0, {second})[None, :]")
        emit(f"parts = {self.names.buffers[line.buffer]} + whole * {line.split * elements} + inside")
        emit(f"tl.store(parts + part * {elements}, {total}{mask})")
        emit("# Every thread has stored before this program is counted, and whoever counts the last sees it all.")
        emit("tl.debug_barrier()")
        emit(f'if tl.atomic_add(counters + whole, 1, sem="acq_rel") == {line.split - 1}:')
        self.depth += 1
        self._zeros((line.into,))
        emit(f"for part in range({line.split}):")
        emit(f'    {total} += tl.load(parts + part * {elements}{mask}{other}, cache_modifier=".cg")')
        self.print(line.body)
        self.depth -= 1

    def _aligned_store(self, line: tile.Store) -> None:
        """A store to a row that begins anywhere, in whole units and at both ends."""
        (row, column), units = self.tiling.axes, self.blocks.units
        if units == 1:
            Printer.texts[tile.Store](self, line)
            return
        rows, columns = int(row.size) // row.step, int(column.size)
        self.emit(f"y = (top + tl.arange(0, {_block(row)})[:, None]){self._wide}")
        self.emit(f"x = side + tl.arange(0, {_block(column)})[None, :]")
        apart = self.blocks.apart * row.step
        self.emit(f"target = {self.names.buffers[line.access.buffer]} + (y * {apart} + start + x)")
        self.emit(f"begin = x // {units} * {units} - ahead")
        self.emit(f"whole = (begin >= 0) & (begin <= {columns - units})")
        self.emit(f"ends = (x >= ahead) & (x < {columns} + ahead) & (whole == 0)")
        # Spread over the tile: Triton's interpreter reads a broadcast mask as if it were not broadcast.
        there = f" & (y < {rows})" if rows % row.block else " & (y >= 0)"
        self.emit(*(f"tl.store(target, {self.text(line.value)}, {mask}{there})" for mask in ("whole", "ends")))


def _block(axis: Axis) -> str:
    return f"{axis.name.upper()}BLOCK"


def _loaded(side: Side) -> Load:
    """The load of an operand that lies in memory."""
    (load,) = side.body
    assert isinstance(load, Load)
    return load


def _lanes(side: Side) -> int:
    return next(len(line.values) for line in side.body if isinstance(line, Lanes))


def _expand(side: Side) -> str:
    return "[:, None]" if side.name.startswith("b") else "[None, :]"


ProductPrinter.texts = {
    **Printer.texts,
    Blocks: ProductPrinter._blocks,
    Steps: ProductPrinter._steps,
    Side: ProductPrinter._side,
    Panel: ProductPrinter._panel,
    Lanes: ProductPrinter._lanes,
    Planes: ProductPrinter._planes,
    Scaled: lambda self, line: self.emit(f"{line.into.text} += {line.of.text} * {self.text(line.by)}"),
    Parts: ProductPrinter._parts,
    Load: ProductPrinter._load,
    tile.Op: ProductPrinter._made,
    tile.Reduce: ProductPrinter._sum,
    tile.Store: ProductPrinter._aligned_store,
}
