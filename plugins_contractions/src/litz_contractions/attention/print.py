"""Prints the TilePrograms of attention as Triton: core's printer, and the text of this plugin's lines (`lines.py`).

A program's number says which tile it has. What has the axis y alone is a vector in a softmax's state, and a column
beside a tile else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from litz.ir import TensorRef
from litz.ir.dtypes import FLOAT8
from litz.ir.index import Expr, Symbol, floordiv, stride_of, to_expr
from litz.targets.triton.dialect import ELEMENTS, read
from litz.targets.triton.print import Printer
from litz.targets.triton.text import IndexText
from litz.targets.triton.tile_shape import power_of_two
from litz.tiles import program as tile
from litz.tiles.program import Const, Inside, Line, Load, Store
from litz.tiles.shape import Axis

from ..products.lines import Side
from . import lines as own
from .masks import LEAST_SCALED

NOTHING_SEEN = -1e37
"""A row of no greater score has seen nothing but keys that are masked by the least number."""
HELD = 8192
"""Elements of parts that a program puts together at a time: 64 a thread."""
FORMS: Mapping[str, str] = {
    "tanh_near": "_tanh_near({0})",
    "exact": "_exact_float({0}) + _exact_float({1})",
    "times": "{0} * {1}",
    "times_row": "{0} * {1}[:, None]",
    "less": "{0} - {1} * {2}",
    "quotient": "{0} / {1}",
    "weight": "_exp2_flushed({0} * {1} - {2})",
    "slope": "{0} * ({1} - {2})",
    "alive": "tl.where({0} == 0.0, 0.0, {1})",
    "narrow": "{0}.to({T})",
    "rest": "({0} - {1}.to(tl.float32)).to({T})",
    "turned": "tl.trans({0})",
    "sum": "({0})[:, None]",
    "some": "(tl.where({0} == 0.0, 1.0, {0}))[:, None]",
    "log2": '(tl.where({0} == float("-inf"), 0.0, {0}) * {2} + tl.log2({1}))[:, None]',
    # The maximum of a row with a NaN is NaN.
    "most": '(tl.where(({1} != {1}) & ({0} != float("inf")), {1}, {0} * {2}))[:, None]',
    "powers": 'tl.where({0} == float("-inf"), {0}, tl.maximum({0} * {1}, {2}))',
}
"""The texts of an op's other forms, by name (`near.py`, `arithmetic.py`)."""
OVER: Mapping[str, tuple[str, str]] = {
    "whole": ("0", "end"),
    "rest": ("end", "{size}"),
    "within": ("begin", "end"),
    "enter": ("begin", "tl.minimum(opened, end)"),
    "leave": ("tl.maximum(opened, closed)", "end"),
    "open": ("opened", "closed"),
    "seen": ("0", "tl.minimum(end, {size})"),
    "unseen": ("end", "last"),
}
"""From where to where a walk goes."""
OUTER = ("part", "batch", "shared", "head")
"""The names of what programs share out, in the order of an offset's terms."""


def sides(lines: Iterable[Line]) -> Iterator[Side]:
    """Yields the operands and results in lines, in order."""
    for line in lines:
        if isinstance(line, Side):
            yield line
        elif isinstance(line, tile.Other):
            yield from sides(getattr(line, "body", ()))


class AttentionPrinter(Printer):
    """A program has a tile of rows of one head, and walks over tiles of what they meet."""

    made_of: own.Programs

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.known: set[str] = set()
        """Names of sizes, and of places within tiles, so far."""

    @property
    def rows(self) -> own.Cut:
        """Returns the axis that a program has a tile of."""
        (rows, _) = self.tiling.axes
        assert isinstance(rows, own.Cut)
        return rows

    def plain(self, expr: Expr, names: Mapping[Symbol, str] | None = None) -> str:
        """Returns the text of an expression, with other names of some symbols."""
        return IndexText({**self.names.index_names, **(names or {})}, self.extents)(expr)

    def _named(self, name: str, expr: Expr) -> str:
        """A size as a number, or a variable of that size."""
        if not expr.is_Integer and name not in self.known:
            self.emit(f"{name} = {self.plain(expr)}")
            self.known.add(name)
        return str(expr) if expr.is_Integer else name

    # Which tile a program has. Programs of one head are neighbours, as they read the same keys.

    def _programs(self, line: own.Programs) -> None:
        emit, wide, text, self.made_of = self.emit, self._wide, self.plain, line
        axes = (axis for side in sides(line.body) for axis in side.tiling.axes)
        parts = {axis.name: axis for axis in axes if isinstance(axis, own.Part)}
        for axis in (*self.tiling.axes, *parts.values()):
            emit(f"{axis.name.upper()}BLOCK: tl.constexpr = {axis.block}")
        for part in parts.values():
            start = f"{part.start} + " if part.start else ""
            emit(f"{part.name} = {start}tl.arange(0, {part.name.upper()}BLOCK){wide}")
        emit(f"lane = tl.arange(0, XBLOCK){wide}", "number = tl.program_id(0)")
        if line.parts:
            emit(f"part = number % {line.parts}", f"number = number // {line.parts}")
        emit(f"tiles = {text(self.rows.tiles)}")
        # The last queries first: under a causal mask they have most to do, and what takes long should not start last.
        emit(f"place = {'tiles - 1 - ' if line.back else ''}number % tiles", "number = number // tiles")
        heads, group = text(line.heads), text(line.group)
        name = "head" if "head" in {self.names.variables[r.var] for r in self.tiling.pieces} else "shared"
        emit(f"{name} = (number % {heads}){wide}", f"batch = (number // {heads}){wide}", "zero = batch * 0")
        if name == "head":
            emit("shared = head" if group == "1" else f"shared = head // {group}")
        self._write_own()
        if len(self.rows.ranges) > 1:
            emit(f"head = shared * {group} + head")
            self.indices.clear()  # a row's head is no longer part of the rows' joint index
        self.print(line.body)

    def _write_own(self) -> None:
        """The place of the program's tile along its axis: `ystart`, `yindex` and, under a mask of blocks, `yrow` (its
        row of blocks)."""
        rows, emit, text = self.rows, self.emit, self.plain
        if rows.is_cut:
            assert rows.grain is not None
            parts, grain = self._named("yparts", rows.parts), text(rows.grain)
            emit(f"yrow = place // {parts}", f"ystart = (yrow * {grain} + place % {parts} * YBLOCK){self._wide}")
        else:
            emit(f"ystart = (place * YBLOCK){self._wide}")
            if rows.grain is not None:
                emit(f"yrow = ystart // {text(rows.grain)}")
        self.write_axis(rows, "ystart + tl.arange(0, YBLOCK)[:, None]")
        if rows.is_cut:
            assert rows.grain is not None
            emit(f"ystored = yindex < tl.minimum((yrow + 1) * {text(rows.grain)}, {text(rows.size)})")

    def _turns(self, line: own.Turns) -> None:
        group, shares = self.plain(line.group), line.batches != 1
        if group == "1" and not shares:
            self.emit("head = shared")
            self.print(line.body)
            return
        self.emit(f"for turn in range(0, {group}{f' * {self.plain(line.batches)}' if shares else ''}):")
        self.depth += 1
        self.emit(f"head = shared * {group} + turn{f' % {group}' if shares else ''}")
        if shares:
            self.emit(f"batch = tl.full([], 0, {self.index_type}) + turn // {group}")
        self.print(line.body)
        self.depth -= 1

    # Operands and results.

    def _steps(self, access: tile.Access, names: Mapping[Symbol, str]) -> list[str]:
        """The terms of an offset along variables, by the texts of these."""
        steps = ((name, stride_of(access.offset, var)) for var, name in names.items())
        return [name if step == 1 else f"{name} * {self.plain(step)}" for name, step in steps if step]

    def _start(self, access: tile.Access, more: Mapping[Symbol, str]) -> str:
        """The pointer to where all variables but `more` are 0."""
        start = access.offset.xreplace(dict.fromkeys(self.names.variables, 0))
        terms = [self.names.buffers[access.buffer], *([] if start == 0 else [self.plain(start)])]
        return " + ".join([*terms, *self._steps(access, more)])

    def _outer(self, *names: str) -> dict[Symbol, str]:
        """Returns the variables, of `names`, of which a program has one value, with their texts."""
        along = {r.var for axis in self.tiling.axes for r in axis.ranges}
        found = {name: var for var, name in self.names.variables.items() if name in names and var not in along}
        return {found[name]: name + self._wide * (name == "part") for name in names if name in found}

    def _begins(self, line: own.Begins) -> None:
        self.emit(f"{line.name}start = {self._start(line.access, self._outer(*OUTER))}")

    def _along(self, access: tile.Access, axes: Sequence[Axis], start: str = "walked") -> str:
        """Returns where elements of a tile lie behind its beginning. start: the text of positions along x."""
        names: dict[Symbol, str] = {}
        for axis in axes:
            texts = {"x": f"{start}{nth(axes, axis)}"} if len(axes) > 1 else {}
            if isinstance(axis, own.Part):
                texts[axis.name] = f"{axis.name}{nth(axes, axis)}"
            names |= {r.var: texts.get(axis.name, self.names.variables[r.var]) for r in axis.ranges}
        terms = self._steps(access, names)
        blocks = [f"{axis.name.upper()}BLOCK" for axis in axes]
        shape = blocks if len(axes) > 1 else [blocks[0], "1"] if axes[0].name == "y" else ["1", blocks[0]]
        zeros = [f"tl.zeros([{', '.join(shape)}], tl.int32)"] * (len(terms) < len(axes))
        return " + ".join([*terms, *zeros])

    def _side(self, side: Side) -> None:
        (line, *converted), axes = side.body, side.tiling.axes
        assert isinstance(line, (Load, Store))
        place, tiles = f"{side.name}start + {self._along(line.access, axes)}", _tile_of(side)
        if tiles in self.known:
            (along,) = (axis for axis in axes if axis.name == "x")
            step = stride_of(line.access.offset, along.ranges[0].var)
            assert step is not None
            place = f"{side.name}start + start * {self.plain(step)} + {tiles}"
        masks = " & ".join(self._inside(axes, mask) for mask in line.masks)
        if isinstance(line, Store):
            self.emit(f"tl.store({place}, {self.text(line.value)}{f', mask={masks}' if masks else ''})")
            return
        text = f"tl.load({place}{f', mask={masks}, other=0' if masks else ''})"
        for cast in converted:
            assert isinstance(cast, tile.Op)
            stored, dtype = line.value.dtype, cast.value.dtype
            text = f"{read(stored, text, dtype) if stored in FLOAT8 else text}.to({ELEMENTS[dtype]})"
        self.emit(f"{line.value.text} = {text}")

    def _inside(self, axes: Sequence[Axis], mask: Any) -> str:
        """A mask of a tile with axes of its own."""
        axis = next(axis for axis in axes if axis.name == mask.axis)
        if isinstance(axis, own.Part):
            return f"({axis.name}{nth(axes, axis)} < {axis.end})"
        return f"(walked{nth(axes, axis)} < {self.plain(axis.size)})" if axis.name == "x" else self.mask(mask)

    def _numbers(self, line: own.Numbers) -> None:
        name, axes = line.value.text, [axis for axis in self.tiling.axes if axis.name == line.along]
        number = 'float("inf")' if line.number else "0.0"
        given = f", mask={self.mask(line.masks[0])}, other={number}" if line.masks else ""
        self.emit(f"{name} = tl.load({name}start + {self._along(line.access, axes)}{given}).to(tl.float32)")
        if line.opposite:
            self.emit(f"{name} = tl.where({name} == -{number}, {number}, {name})")

    def _store(self, line: Store) -> None:
        masks = f", mask={' & '.join(map(self.mask, line.masks))}" if line.masks else ""
        name = self.text(line.value)
        self.emit(f"tl.store({name}start + {self._along(line.access, [self.rows])}, {name}{masks})")

    def mask(self, mask: tile.Mask) -> str:
        """Returns the text of a mask."""
        if isinstance(mask, own.InBlock):
            return "ystored" if mask.axis == "y" else "xinside"
        return super().mask(mask)

    # The walks.

    def _limits(self, line: own.Limits) -> None:
        (rows, axis), emit, parts = self.tiling.axes, self.emit, self.made_of.parts
        # Always times one, which ptxas does not know.
        size, once = self.plain(axis.size), " * tl.num_programs(1)" * (line.hides or line.how == "parts")
        if line.how == "all":
            whole = floordiv(axis.size, to_expr(axis.block)) * axis.block
            emit(f"end = {self.plain(whole)}{once if whole.is_Integer else ''}")
            return
        if line.how == "parts":
            emit(f"length = tl.cdiv(tl.cdiv({size}, XBLOCK), {parts}) * XBLOCK")
            emit("begin = part * length", f"end = tl.minimum(begin + length, {size}){once}")
            return
        emit("yfirst = ystart", "ylast = yfirst + YBLOCK - 1")
        last, row = f"{size} - 1", rows.ranges[0].var
        end, closed = (self._limit(line.upper, row, greatest, "tl.minimum", last) for greatest in (True, False))
        if line.how == "seen":
            emit(f"end = tl.cdiv(tl.maximum({end} + 1, 0), XBLOCK) * XBLOCK")
            return
        begin, opened = (self._limit(line.lower, row, greatest, "tl.maximum", "zero") for greatest in (False, True))
        emit(f"begin = {begin} // XBLOCK * XBLOCK", f"end = {end} + 1")
        if line.exact:
            emit(f"opened = tl.cdiv({opened}, XBLOCK) * XBLOCK")
            emit(f"closed = tl.maximum({closed} + 1, 0) // XBLOCK * XBLOCK")

    def _limit(self, limits: Iterable[Expr], row: Symbol, greatest: bool, combine: str, found: str) -> str:
        """`combine` over `found` and each limit's extreme among the tile's rows. For rows beyond the last there is no
        tighter limit than for others."""
        for limit in limits:
            last = (limit.coeff(row) > 0) == greatest
            found = f"{combine}({self.plain(limit, {row: 'ylast' if last else 'yfirst'})} + zero, {found})"
        return found

    def _over(self, line: own.Over) -> None:
        emit, (_, walked), wide = self.emit, line.tiling.axes, self._wide
        assert isinstance(walked, own.Cut)
        if line.apart:
            self._write_places(line.body)
        size, hint, before = self.plain(walked.size), line.apart, list[str]()
        if line.which == "listed":
            assert walked.grain is not None
            grain, parts = self.plain(walked.grain), self._named("parts", walked.parts)
            last = self._named("last", floordiv(walked.size - 1, walked.grain))
            ahead = self._write_list(line, parts)
            head = f"for step in range(0, count * {parts}):"
            # Whatever the list says, what is read lies in the operands.
            before = [f"block = tl.minimum(tl.maximum(following, 0), {last}){wide}", f"following = tl.load({ahead})"]
            start = f"block * {grain}{'' if parts == '1' else f' + step % {parts} * XBLOCK'}"
            start = f"tl.multiple_of({start}, XBLOCK)" if hint and not walked.is_cut else start
        else:
            if line.which == "unseen":
                emit(f"last = tl.where(tl.min({line.state[0].text}, 0) < {NOTHING_SEEN!r}, {size}, 0)")
            begin, end = (text.format(size=size) for text in OVER[line.which])
            head, start = f"for place in range({begin}, {end}, XBLOCK):", "place + zero"
        emit(head)
        self.depth += 1
        emit(*before, f"start = {start}", "walked = start + lane")
        self.write_axis(walked, "walked[None, :]")
        if walked.is_cut:
            emit(f"xinside = xindex < (block + 1) * {grain}")
        self.print(line.body)
        self.depth -= 1

    def _write_places(self, lines: Iterable[Line]) -> None:
        """Writes where elements lie within tiles of what is walked."""
        for side in sides(lines):
            if _tile_of(side) not in self.known:
                self.known.add(_tile_of(side))
                (line, *_), axes = side.body, side.tiling.axes
                assert isinstance(line, Load)
                self.emit(f"{_tile_of(side)} = {self._along(line.access, axes, 'lane')}")

    def _write_list(self, line: own.Over, parts: str) -> str:
        """Writes how many blocks are listed, and the first of them. Returns the pointer to the block of the next step.
        A block is read a step ahead: were keys read from where this step's load says, Triton's pipeline would hold the
        list instead of a stage of keys and values."""
        assert line.counts is not None and line.indices is not None
        counts, indices = self.plain(line.counts.layout.size[2]), self.plain(line.indices.layout.size[3])
        self.emit(f"count = tl.load({self._element(line.counts, 'yrow')}, mask=yrow < {counts}, other=0)")
        self.emit(f"count = tl.minimum(count, {indices})")
        self.emit(f"following = tl.load({self._element(line.indices, 'yrow')}, mask=count > 0, other=0)")
        number = "(step + 1)" if parts == "1" else f"(step + 1) // {parts}"
        return self._element(line.indices, "yrow", f"tl.minimum({number}, {indices} - 1)")

    def _element(self, table: TensorRef, *inner: str) -> str:
        """A pointer into a table of blocks, whose first two dimensions may be the same for all."""
        terms = [] if table.layout.offset == 0 else [self.plain(table.layout.offset)]
        full = {name: self.extents[var] for var, name in self.names.variables.items() if name in ("batch", "head")}
        outer = []
        for size, name in zip(table.layout.size, ("batch", "head")):
            outer.append("" if size == 1 else name if size == full[name] else f"({name} % {self.plain(size)})")
        for index, stride in zip((*outer, *inner), table.layout.stride):
            if index and stride != 0:
                terms.append(index if stride == 1 else f"{index} * {self.plain(stride)}")
        return " + ".join([self.names.buffers[table.buffer], *terms])

    # Scores, states and sums.

    def _op(self, line: tile.Op) -> str:
        form = FORMS.get(line.near)
        if form is None:
            return super()._op(line)
        texts = (repr(arg.value) if isinstance(arg, Const) else self.text(arg) for arg in line.args)
        return form.format(*texts, T=ELEMENTS[line.value.dtype])

    def _hidden(self, line: own.Hidden) -> None:
        masks = " & ".join(self.mask(mask) if isinstance(mask, Inside) else self.text(mask) for mask in line.masks)
        number = f'float("{line.number.value}")' if line.number.value else "0.0"
        self.emit(f"{line.into.text} = tl.where({masks}, {line.into.text}, {number})")

    def _begin(self, line: own.Begin) -> None:
        """Of a tile of rows, or of a number for each row."""
        shape = f"[{', '.join(f'{name.upper()}BLOCK' for name in ('y', *sorted(line.value.axes - {'y'})))}]"
        element = ELEMENTS[line.value.dtype]
        made = (
            f'tl.full({shape}, float("{line.number}"), {element})' if line.number else f"tl.zeros({shape}, {element})"
        )
        self.emit(f"{line.value.text} = {made}")

    def _row_product(self, line: own.RowProduct) -> None:
        product = f"{line.of.text}.to(tl.float32) * {line.by.text}.to(tl.float32)"
        self.emit(f"{line.value.text} = tl.sum({product}, 1)[:, None]")

    def _weights(self, line: own.Weights) -> None:
        (greatest, weights, smaller), scores = (value.text for value in line.values), line.of.text
        (maximum, total), factor, emit = (value.text for value in line.state), _times(line.factor), self.emit
        emit(f"{greatest} = tl.maximum({maximum}, tl.max({scores}, 1))")
        # A row without a key so far has -inf, and -inf - -inf would be NaN.
        if line.first:
            emit(f'shift = tl.where({greatest} == float("-inf"), 0.0, {greatest})')
            emit(f"{weights} = _exp2_flushed(({scores} - shift[:, None]){factor})")
            emit(f"{smaller} = _exp2_flushed(({maximum} - shift){factor})")
        else:
            emit(f"shift = tl.where({greatest} < {LEAST_SCALED!r}, 0.0, {greatest}){factor}")
            emit(f"{weights} = _exp2_flushed({scores}{factor} - shift[:, None])")
            emit(f"{smaller} = _exp2_flushed({maximum}{factor} - shift)")
        emit(f"{total} = {total} * {smaller} + tl.sum({weights}, 1)")

    def _merge(self, line: own.Merge) -> None:
        """Counts this program; the last one of its head of the key sees what all others have stored."""
        parts, rows, emit, wide = self.made_of.parts, int(line.rows.size), self.emit, self._wide
        height, every, (across,) = power_of_two(rows), power_of_two(parts), line.across.ranges
        depth = max(1, min(every, HELD // (height * line.across.block)))
        heads, queries = line.rows.ranges
        size, group = self.plain(queries.size), self.plain(self.made_of.group)
        (part,) = self._outer("part")
        emit("# Every thread has stored before this program is counted, and whoever counts the last sees it all.")
        emit("tl.debug_barrier()")
        emit(f'if tl.atomic_add(counters + tl.program_id(0) // {parts}, 1, sem="acq_rel") == {parts} - 1:')
        self.depth += 1

        def pointers(access: tile.Access, row: str, shape: str, each: str = "", end: str = "") -> str:
            names = {part: each, heads.var: f"(shared * {group} + {row} // {size})", queries.var: f"({row} % {size})"}
            start = self._start(access, {**self._outer("batch", "shared"), **names, across.var: end})
            return f"{start} + tl.zeros([{shape}], {self.index_type})"

        def masked(all_: bool, row: str, each: str = "", end: str = "", other: str = "") -> str:
            found = [f"({each} < {parts})"] * (bool(each) and not all_) + [f"({row} < {rows})"] * (height != rows)
            found += [f"({end} < {line.across.size})"] * (bool(end) and line.across.masked)
            return f", mask={' & '.join(found)}{other}" if found else ""

        least, fits, name, deep = ', other=float("-inf")', parts % depth == 0, line.across.name, "row[:, :, None]"
        block, edge, deepest = f"{name.upper()}BLOCK", f"{name}[None, :]", f"{name}[None, None, :]"
        sums = pointers(line.sums, "row", f"{every}, {height}", "every")
        emit(f"row = tl.arange(0, {height})[None, :]{wide}", f"every = tl.arange(0, {every})[:, None]{wide}")
        emit(f"sums = tl.load({sums}{masked(parts == every, 'row', 'every', other=least)})", "best = tl.max(sums, 0)")
        emit('best = tl.where(best == float("-inf"), 0.0, best)')
        emit("sums = tl.sum(tl.exp2(sums - best[None, :]), 0)", f"whole = tl.zeros([{height}, {block}], tl.float32)")
        emit(f"for first in tl.static_range(0, {parts}, {depth}):")
        self.depth += 1
        some = pointers(line.sums, "row", f"{depth}, {height}", "every")
        piece = pointers(line.result, deep, f"{depth}, {height}, {block}", "every[:, :, None]", deepest)
        given = masked(fits, deep, "every[:, :, None]", deepest, ", other=0")
        emit(f"every = first + tl.arange(0, {depth})[:, None]{wide}")
        emit(f"shares = tl.exp2(tl.load({some}{masked(fits, 'row', 'every', other=least)}) - best[None, :])")
        emit(f"whole += tl.sum(shares[:, :, None] * tl.load({piece}{given}), 0)")
        self.depth -= 1
        out = pointers(line.out, "upright", f"{height}, {block}", end=edge)
        element = ELEMENTS[self.buffers[line.out.buffer].dtype]
        emit(f"upright = tl.arange(0, {height})[:, None]{wide}")
        emit("whole = whole / tl.where(sums == 0.0, 1.0, sums)[:, None]")
        emit(f"tl.store({out}, whole.to({element}){masked(True, 'upright', end=edge)})")
        self.depth -= 1


def _tile_of(side: Side) -> str:
    """The name of where elements lie within tiles of an operand."""
    return f"{side.name}tile" + "".join(axis.name for axis in side.tiling.axes if isinstance(axis, own.Part))


def _times(factor: float) -> str:
    return f" * {factor!r}" if factor != 1.0 else ""


def nth(axes: Sequence[Axis], axis: Axis) -> str:
    """Returns the subscript that gives a vector along an axis the rank of a tile with these axes."""
    return "[:, None]" if axes[0] is axis else "[None, :]"


AttentionPrinter.texts = {
    **Printer.texts,
    own.Programs: AttentionPrinter._programs,
    own.Turns: AttentionPrinter._turns,
    own.Begins: AttentionPrinter._begins,
    Side: AttentionPrinter._side,
    own.Numbers: AttentionPrinter._numbers,
    Store: AttentionPrinter._store,
    own.Limits: AttentionPrinter._limits,
    own.Over: AttentionPrinter._over,
    own.Hidden: AttentionPrinter._hidden,
    own.Begin: AttentionPrinter._begin,
    own.Next: lambda printer, line: printer.emit(f"{line.into.text} = {printer.text(line.of)}"),
    own.RowProduct: AttentionPrinter._row_product,
    own.Weights: AttentionPrinter._weights,
    own.Merge: AttentionPrinter._merge,
}
