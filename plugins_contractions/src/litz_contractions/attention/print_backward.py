"""Prints the TilePrograms of attention's backward as Triton (`backward.py`)."""

from __future__ import annotations

from typing import Any

from sympy import Integer

from litz.ir import TensorRef
from litz.ir.index import Expr, Symbol, floordiv, stride_of
from litz.targets.triton.text import IndexText
from litz.tiles import program as tile
from litz.tiles.program import Inside, Load, Store, Value
from litz.tiles.shape import Axis

from ..products.lines import Side
from . import lines as own
from .print import AttentionPrinter, sides


class BackwardPrinter(AttentionPrinter):
    """The text of both kernels of a backward."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.known: set[str] = set()
        """Names of sizes so far."""

    @property
    def rows(self) -> own.Cut:
        """Returns the axis that a program has a tile of."""
        (rows, _) = self.tiling.axes
        assert isinstance(rows, own.Cut)
        return rows

    @property
    def sizes(self) -> IndexText:
        """Returns what writes sizes."""
        return IndexText(self.names.index_names, {})

    def _named(self, name: str, expr: Expr) -> str:
        """A size as a number, or a variable of that size."""
        if not expr.is_Integer and name not in self.known:
            self.emit(f"{name} = {self.sizes(expr)}")
            self.known.add(name)
        return str(expr) if expr.is_Integer else name

    # Which tile a program has.

    def _programs(self, line: own.Programs) -> None:
        emit, wide, sizes, group = self.emit, self._wide, self.sizes, self.sizes(line.group)
        emit(*(f"{axis.name.upper()}BLOCK: tl.constexpr = {axis.block}" for axis in self.tiling.axes))
        found = {axis.name: axis for side in sides(line.body) for axis in side.tiling.axes}
        widths = [found[name] for name in ("depth", "width") if name in found]
        emit(*(f"{axis.name.upper()}BLOCK: tl.constexpr = {axis.block}" for axis in widths))
        for axis in widths:
            emit(f"{axis.name} = tl.arange(0, {axis.name.upper()}BLOCK)[None, :]")
            if axis.masked:
                emit(f"{axis.name}mask = {axis.name} < {axis.size}")
        heads, head = sizes(line.heads), "head" if line.back else "shared"
        emit("number = tl.program_id(0)", f"tiles = {sizes(self.rows.tiles)}")
        # The last queries first: under a causal mask they have most to do.
        emit(f"place = {'tiles - 1 - ' if line.back else ''}number % tiles", "number = number // tiles")
        emit(f"{head} = (number % {heads}){wide}", f"batch = (number // {heads}){wide}")
        if line.back:
            emit("shared = head" if group == "1" else f"shared = head // {group}")
        self._write_own()
        self.print(line.body)

    def _write_own(self) -> None:
        """The place of the program's tile along its axis: `ystart`, `yindex` and, under a mask of blocks, `yrow` (its
        row of blocks)."""
        rows, emit, sizes = self.rows, self.emit, self.sizes
        if rows.is_cut:
            assert rows.grain is not None
            parts, grain = self._named("yparts", rows.parts), sizes(rows.grain)
            emit(f"yrow = place // {parts}", f"ystart = (yrow * {grain} + place % {parts} * YBLOCK){self._wide}")
        else:
            emit(f"ystart = (place * YBLOCK){self._wide}")
            if rows.grain is not None:
                emit(f"yrow = ystart // {sizes(rows.grain)}")
        self.write_axis(rows, "ystart + tl.arange(0, YBLOCK)[:, None]")
        if rows.is_cut:
            assert rows.grain is not None
            emit(f"ystored = yindex < tl.minimum((yrow + 1) * {sizes(rows.grain)}, {sizes(rows.size)})")

    def _turns(self, line: own.Turns) -> None:
        group, shares = self.sizes(line.group), line.batches != 1
        if group == "1" and not shares:
            self.emit("head = shared")
            self.print(line.body)
            return
        self.emit(f"for turn in range(0, {group}{f' * {self.sizes(line.batches)}' if shares else ''}):")
        self.depth += 1
        self.emit(f"head = shared * {group} + turn{f' % {group}' if shares else ''}")
        if shares:
            self.emit(f"batch = tl.full([], 0, {self.index_type}) + turn // {group}")
        self.print(line.body)
        self.depth -= 1

    # Operands and results.

    def _steps(self, access: tile.Access, names: dict[Symbol, str]) -> list[str]:
        """The terms of an offset along variables, by the texts of these."""
        found = []
        for var, name in names.items():
            step = stride_of(access.offset, var)
            if step:
                found.append(name if step == 1 else f"{name}*{self.sizes(step)}")
        return found

    def _begins(self, line: own.Begins) -> None:
        outer = {var: name for var, name in self.names.variables.items() if name in ("batch", "head", "shared")}
        start = line.access.offset.xreplace(dict.fromkeys(outer, 0))
        terms = [self.names.buffers[line.access.buffer], *([] if start == 0 else [self.sizes(start)])]
        order = sorted(outer, key=lambda var: outer[var] != "batch")
        self.emit(f"{line.name}start = {' + '.join([*terms, *self._steps(line.access, {v: outer[v] for v in order})])}")

    def _side(self, side: Side) -> None:
        (line,), (rows, columns) = side.body, side.tiling.axes
        assert isinstance(line, (Load, Store))
        index, block = {"y": ("yindex", "YBLOCK"), "x": ("column", "XBLOCK")}[rows.name]
        names = {rows.ranges[0].var: index, columns.ranges[0].var: columns.name}
        terms = self._steps(line.access, names)
        shape = f"[{block}, {columns.name.upper()}BLOCK]"
        terms += [f"tl.zeros({shape}, tl.int32)"] * (len(terms) < len(names))
        pointers = " + ".join([f"{side.name}start", *terms])
        masks = ["columnmask" if mask == Inside("x") else self.mask(mask) for mask in line.masks]
        given = f", mask={' & '.join(masks)}" if masks else ""
        if isinstance(line, Store):
            self.emit(f"tl.store({pointers}, {self.text(line.value)}{given})")
        else:
            self.emit(f"{line.value.text} = tl.load({pointers}{given}{', other=0' if given else ''})")

    def _row(self, name: str, access: tile.Access, axis: Axis, index: str) -> str:
        terms = self._steps(access, {axis.ranges[0].var: index})
        return " + ".join([f"{name}start", *(terms or [f"tl.zeros({index}.shape, tl.int32)"])])

    def _numbers(self, line: own.Numbers) -> None:
        name, (axis,) = line.value.text, (axis for axis in self.tiling.axes if axis.name == line.along)
        number = 'float("inf")' if line.number else "0.0"
        given = f", mask={self.mask(line.masks[0])}, other={number}" if line.masks else ""
        pointer = self._row(name, line.access, axis, f"{axis.name}index")
        self.emit(f"{name} = tl.load({pointer}{given}).to(tl.float32)")
        if line.opposite:
            self.emit(f"{name} = tl.where({name} == -{number}, {number}, {name})")

    def _store(self, line: Store) -> None:
        masks = f", mask={' & '.join(map(self.mask, line.masks))}" if line.masks else ""
        pointer = self._row(self.text(line.value), line.access, self.rows, "yindex")
        self.emit(f"tl.store({pointer}, {self.text(line.value)}{masks})")

    def mask(self, mask: tile.Mask) -> str:
        """Returns the text of a mask."""
        if isinstance(mask, own.InBlock):
            return "ystored" if mask.axis == "y" else "xinside"
        return super().mask(mask)

    # The walk.

    def _limits(self, line: own.Limits) -> None:
        self._named("whole", self._whole)

    @property
    def _whole(self) -> Expr:
        """Where whole tiles end."""
        walked = self.tiling.axes[1]
        return floordiv(walked.size, Integer(walked.block)) * walked.block

    def _over(self, line: own.Over) -> None:
        size, whole = self.sizes(self.tiling.axes[1].size), str(self._whole) if self._whole.is_Integer else "whole"
        begin, end = {"every": ("0", size), "whole": ("0", whole), "rest": (whole, size)}[line.which]
        self.emit(f"for start in range({begin}, {end}, XBLOCK):")
        self.depth += 1
        self._write_walked(line.tiling.axes[1], "start")
        self.print(line.body)
        self.depth -= 1

    def _write_walked(self, walked: Axis, start: str) -> None:
        self.emit(f"walked = {start} + tl.arange(0, XBLOCK){self._wide}", "column = walked[:, None]")
        self.write_axis(walked, "walked[None, :]")
        if walked.masked:
            self.emit(f"columnmask = column < {self.sizes(walked.size)}")

    def _listed(self, line: own.Listed) -> None:
        emit, sizes, walked = self.emit, self.sizes, line.tiling.axes[1]
        assert isinstance(walked, own.Cut)
        grain, parts = sizes(line.block), self._named("parts", walked.parts)
        last = self._named("last", floordiv(walked.size - 1, line.block))
        counts, indices = line.counts.layout.size[2], line.indices.layout.size[3]
        emit(f"count = tl.load({self._element(line.counts, 'yrow')}, mask=yrow < {sizes(counts)}, other=0)")
        emit(f"count = tl.minimum(count, {sizes(indices)})")

        def listed(step: str) -> str:
            """A pointer to the block of a step; to the last one that there is room for, of steps beyond."""
            number = step if parts == "1" or step == "0" else f"{step} // {parts}"
            number = number if step == "0" else f"tl.minimum({number}, {sizes(indices)} - 1)"
            return self._element(line.indices, "yrow", number)

        # A step ahead, so that Triton's pipeline holds a stage more of what is walked instead of the list.
        emit(f"following = tl.load({listed('0')}, mask=count > 0, other=0)", f"for step in range(0, count * {parts}):")
        self.depth += 1
        # Whatever the list says, what is read lies in the operands.
        emit(f"block = tl.minimum(tl.maximum(following, 0), {last})", f"following = tl.load({listed('(step + 1)')})")
        rest = "" if parts == "1" else f" + step % {parts} * XBLOCK"
        self._write_walked(walked, f"(block * {grain}{rest})")
        if walked.is_cut:
            emit(f"xinside = xindex < (block + 1) * {grain}")
        self.print(line.body)
        self.depth -= 1

    def _element(self, table: TensorRef, *inner: str) -> str:
        """A pointer into a table of blocks, whose first two dimensions may be the same for all."""
        terms = [] if table.layout.offset == 0 else [self.sizes(table.layout.offset)]
        full = {name: self.extents[var] for var, name in self.names.variables.items() if name in ("batch", "head")}
        outer = []
        for size, name in zip(table.layout.size, ("batch", "head")):
            outer.append("" if size == 1 else name if size == full[name] else f"({name} % {self.sizes(size)})")
        for index, stride in zip((*outer, *inner), table.layout.stride):
            if index and stride != 0:
                terms.append(index if stride == 1 else f"{index}*{self.sizes(stride)}")
        return " + ".join([self.names.buffers[table.buffer], *terms])

    # Scores and gradients.

    def shape_of(self, value: Value) -> str:
        """Returns the shape of a tile of zeros."""
        return "[YBLOCK, 1]" if value.axes == {"y"} else super().shape_of(value)

    def _shown(self, line: own.Shown) -> None:
        masks = " & ".join(self.mask(mask) if isinstance(mask, Inside) else self.text(mask) for mask in line.masks)
        self.emit(f"{line.value.text} = {masks}")

    def _row_product(self, line: own.RowProduct) -> None:
        product = f"{line.of.text}.to(tl.float32) * {line.by.text}.to(tl.float32)"
        self.emit(f"{line.value.text} = tl.sum({product}, 1)[:, None]")


BackwardPrinter.texts = {
    **AttentionPrinter.texts,
    own.Programs: BackwardPrinter._programs,
    own.Turns: BackwardPrinter._turns,
    own.Begins: BackwardPrinter._begins,
    Side: BackwardPrinter._side,
    own.Numbers: BackwardPrinter._numbers,
    Store: BackwardPrinter._store,
    own.Limits: BackwardPrinter._limits,
    own.Over: BackwardPrinter._over,
    own.Listed: BackwardPrinter._listed,
    own.Shown: BackwardPrinter._shown,
    own.RowProduct: BackwardPrinter._row_product,
}
