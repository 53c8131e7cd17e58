"""Prints the TilePrograms of attention of few queries as Triton (`split.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from litz.ir.dtypes import FLOAT8
from litz.ir.index import ZERO, stride_of
from litz.targets.triton.dialect import ELEMENTS, read
from litz.targets.triton.tile_shape import power_of_two
from litz.tiles import program as tile
from litz.tiles.program import Load, Store
from litz.tiles.shape import Axis

from ..products.lines import Side
from . import lines as own
from .print import AttentionPrinter, nth, sides

HELD = 8192
"""Elements of parts that a program puts together at a time: 64 a thread."""


class SplitPrinter(AttentionPrinter):
    """A program has all rows of a head of the key, and walks over a part of the keys."""

    made_of: own.Programs

    def _programs(self, line: own.Programs) -> None:
        (rows, keys), emit, wide, self.made_of = self.tiling.axes, self.emit, self._wide, line
        widths = {axis.name: axis for side in sides(line.body) for axis in side.tiling.axes if axis.name in "de"}
        for axis in (rows, keys, *widths.values()):
            emit(f"{axis.name.upper()}BLOCK: tl.constexpr = {axis.block}")
        heads = self.index_text(line.heads)
        emit(f"part = tl.program_id(0) % {line.parts}")
        emit(f"shared = (tl.program_id(0) // {line.parts} % {heads}){wide}")
        emit(f"batch = (tl.program_id(0) // {line.parts} // {heads}){wide}")
        emit(f"yindex = tl.arange(0, YBLOCK)[:, None]{wide}")
        if rows.masked:
            emit(f"ymask = yindex < {self.index_text(rows.size)}")
        queries = self.index_text(rows.ranges[1].size)
        emit(f"head = shared * {self.index_text(line.group)} + yindex // {queries}", f"query = yindex % {queries}")
        emit(*(f"{name} = tl.arange(0, {name.upper()}BLOCK){wide}" for name in widths))
        self.print(line.body)

    def _limits(self, line: own.Limits) -> None:
        keys, parts = self.index_text(self.tiling.axes[1].size), self.made_of.parts
        if parts > 1:
            self.emit(f"length = tl.cdiv(tl.cdiv({keys}, XBLOCK), {parts}) * XBLOCK")
            self.emit("begin = part * length", f"end = tl.minimum(begin + length, {keys})")
        else:
            # Always times one, which ptxas does not know: it would unroll a loop of known length.
            self.emit("begin = 0", f"end = {keys} * tl.num_programs(1)")

    def _over(self, line: own.Over) -> None:
        keys = self.tiling.axes[1]
        self.emit("for start in range(begin, end, XBLOCK):")
        self.depth += 1
        self.emit(f"along = (start + tl.arange(0, XBLOCK)){self._wide}", "xindex = along[None, :]")
        self.emit(f"{self.names.variables[keys.ranges[0].var]} = xindex")
        if keys.masked:
            self.emit(f"xmask = xindex < {self.index_text(keys.size)}")
        self.print(line.body)
        self.depth -= 1

    # Operands and results.

    def pointers(self, access: tile.Access, axes: Sequence[Axis], names: Mapping[str, str] | None = None) -> str:
        """The pointers to a tile's elements. names: other texts of positions."""
        named = {"key": "xindex" if axes and axes[-1].name == "x" else "along[:, None]", "part": f"part{self._wide}"}
        named |= {axis.name: f"{axis.name}{nth(axes, axis)}" for axis in axes} | dict(names or {})
        variables = self.names.variables
        order = ("part", "batch", "shared", "head", "query", "key", "d", "e")
        offset = access.offset.xreplace(dict.fromkeys(variables, ZERO))
        terms = [] if offset == 0 else [self.index_text(offset)]
        for var in sorted(variables, key=lambda var: order.index(variables[var])):
            name = variables[var]
            step, index = stride_of(access.offset, var), named.get(name, name)
            if step:
                terms.append(index if step == 1 else f"{index} * {self.index_text(step)}")
        return " + ".join([self.names.buffers[access.buffer], *terms])

    def _side(self, side: Side) -> None:
        line, *converted = side.body
        axes = side.tiling.axes
        assert isinstance(line, (Load, Store))
        shape = f"[{', '.join(f'{axis.name.upper()}BLOCK' for axis in axes)}]"
        pointer = f"{self.pointers(line.access, axes)} + tl.zeros({shape}, {self.index_type})"
        masks = " & ".join(self._mask_of(axes, mask.axis) for mask in line.masks)  # type: ignore[union-attr]
        if isinstance(line, Store):
            self.emit(f"tl.store({pointer}, {self.text(line.value)}{f', mask={masks}' if masks else ''})")
            return
        text = f"tl.load({pointer}{f', mask={masks}, other=0' if masks else ''})"
        for cast in converted:
            assert isinstance(cast, tile.Op)
            stored, dtype = line.value.dtype, cast.value.dtype
            text = f"{read(stored, text, dtype) if stored in FLOAT8 else text}.to({ELEMENTS[dtype]})"
        self.emit(f"{line.value.text} = {text}")

    def _mask_of(self, axes: Sequence[Axis], name: str) -> str:
        (axis,) = (axis for axis in axes if axis.name == name)
        if name in "de":
            return f"({name}{nth(axes, axis)} < {self.index_text(axis.size)})"
        return f"(along[:, None] < {self.index_text(axis.size)})" if axes[0] is axis and name == "x" else f"{name}mask"

    def _store(self, line: Store) -> None:
        pointer = f"{self.pointers(line.access, self.tiling.axes)} + tl.zeros([YBLOCK, 1], {self.index_type})"
        masks = " & ".join(map(self.mask, line.masks))
        self.emit(f"tl.store({pointer}, {self.text(line.value)}{f', mask={masks}' if masks else ''})")

    # Sums.

    def _finish(self, line: own.Finish) -> None:
        maximum, total = (each.text for each in line.state)
        texts = {"some": f"tl.where({total} == 0.0, 1.0, {total})[:, None]"}
        texts["log2"] = f"({maximum} + tl.log2({total}))[:, None]"
        self.inlined[line.value.text] = texts[line.kind]

    def _merge(self, line: own.Merge) -> None:
        """Counts this program; the last one of its head of the key sees what all others have stored."""
        parts, rows, emit = self.made_of.parts, int(line.rows.size), self.emit
        height, every = power_of_two(rows), power_of_two(parts)
        depth = max(1, min(every, HELD // (height * line.across.block)))
        queries, group = self.index_text(line.rows.ranges[1].size), self.index_text(self.made_of.group)
        emit("# Every thread has stored before this program is counted, and whoever counts the last sees it all.")
        emit("tl.debug_barrier()")
        emit(f'if tl.atomic_add(counters + tl.program_id(0) // {parts}, 1, sem="acq_rel") == {parts} - 1:')
        self.depth += 1

        def place(row: str, more: Mapping[str, str]) -> dict[str, str]:
            return {"head": f"(shared * {group} + {row} // {queries})", "query": f"({row} % {queries})", **more}

        def masked(all_: bool, row: str, part: str = "", end: str = "", other: str = "") -> str:
            found = [f"({part} < {parts})"] * (bool(part) and not all_) + [f"({row} < {rows})"] * (height != rows)
            found += [f"({end} < {self.index_text(line.across.size)})"] * (bool(end) and line.across.masked)
            return f", mask={' & '.join(found)}{other}" if found else ""

        def pointers(access: tile.Access, names: Mapping[str, str], shape: str) -> str:
            return f"{self.pointers(access, (), names)} + tl.zeros([{shape}], {self.index_type})"

        least = ', other=float("-inf")'
        sums = pointers(line.sums, place("row", {"part": "every"}), f"{every}, {height}")
        emit(
            f"row = tl.arange(0, {height})[None, :]{self._wide}", f"every = tl.arange(0, {every})[:, None]{self._wide}"
        )
        emit(f"sums = tl.load({sums}{masked(parts == every, 'row', 'every', other=least)})", "best = tl.max(sums, 0)")
        emit('best = tl.where(best == float("-inf"), 0.0, best)')
        emit("sums = tl.sum(tl.exp2(sums - best[None, :]), 0)", f"whole = tl.zeros([{height}, EBLOCK], tl.float32)")
        emit(f"for first in tl.static_range(0, {parts}, {depth}):")
        self.depth += 1
        some = pointers(line.sums, place("row", {"part": "every"}), f"{depth}, {height}")
        deep, fits = "row[:, :, None]", parts % depth == 0
        names = place(deep, {"part": "every[:, :, None]", "e": "e[None, None, :]"})
        piece = pointers(line.result, names, f"{depth}, {height}, EBLOCK")
        given = masked(fits, deep, "every[:, :, None]", "e[None, None, :]", ", other=0")
        emit(f"every = first + tl.arange(0, {depth})[:, None]{self._wide}")
        emit(f"shares = tl.exp2(tl.load({some}{masked(fits, 'row', 'every', other=least)}) - best[None, :])")
        emit(f"whole += tl.sum(shares[:, :, None] * tl.load({piece}{given}), 0)")
        self.depth -= 1
        out = pointers(line.out, place("upright", {"e": "e[None, :]"}), f"{height}, EBLOCK")
        element = ELEMENTS[self.buffers[line.out.buffer].dtype]
        emit(f"upright = tl.arange(0, {height})[:, None]{self._wide}")
        emit("whole = whole / tl.where(sums == 0.0, 1.0, sums)[:, None]")
        emit(f"tl.store({out}, whole.to({element}){masked(True, 'upright', end='e[None, :]')})")
        self.depth -= 1


SplitPrinter.texts = {
    **AttentionPrinter.texts,
    own.Programs: SplitPrinter._programs,
    Side: SplitPrinter._side,
    Store: SplitPrinter._store,
    own.Limits: SplitPrinter._limits,
    own.Over: SplitPrinter._over,
    own.Finish: SplitPrinter._finish,
    own.Merge: SplitPrinter._merge,
}
