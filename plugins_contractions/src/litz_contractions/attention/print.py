"""Prints the TilePrograms of attention as Triton: core's printer, and the text of this plugin's lines (`lines.py`).

What has the axis y alone is a vector, which is a column beside a tile; a program's number says which tile it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from litz.ir.index import ZERO, Expr, Symbol, stride_of
from litz.targets.triton.dialect import ELEMENTS
from litz.targets.triton.print import Printer
from litz.targets.triton.text import IndexText
from litz.tiles import program as tile
from litz.tiles.program import Const, Inside, Line, Load, Store, TileProgram, Value
from litz.tiles.shape import Axis

from ..products.lines import Scaled, Side
from . import lines as own
from .lines import PLACE, ROW
from .masks import LEAST_SCALED
from .plan import access_of

NOTHING_SEEN = -1e37
"""A row of no greater score has seen nothing but keys that are masked by the least number."""
FORMS: Mapping[str, str] = {
    "tanh_near": "_tanh_near({0})",
    "exact": "_exact_float({0}) + _exact_float({1})",
    "times": "{0} * {1}",
    "times_row": "{0} * {1}[:, None]",
    "weight": "_exp2_flushed({0} * {1} - {2})",
    "slope": "{0} * ({1} - {2})",
    "alive": "tl.where({0} == 0.0, 0.0, {1})",
    "narrow": "{0}.to({T})",
    "rest": "({0} - {1}.to(tl.float32)).to({T})",
}
"""The texts of an op's other forms, by name (`near.py`, `arithmetic.py`)."""
INLINED: Mapping[str, str] = {
    "quotient": "{0} / {1}",
    "product": "{0} * {1}",
    "faded": "{0} * {1}[:, None]",
    "rounded": "{0}.to({T})",
    "turned": "tl.trans({0})",
    "powers": 'tl.where({0} == float("-inf"), {0}, tl.maximum({0} * {1}, {2}))',
}
"""The texts of those that are written where their values are used."""
SLOPES, UNSCALED = USED_ONCE = "slopes", "unscaled"
"""Products that are written where they are used."""
OVER: Mapping[str, tuple[str, str]] = {
    "whole": ("0", "end"),
    "rest": ("end", "{keys}"),
    "within": ("begin", "end"),
    "enter": ("begin", "tl.minimum(opened, end)"),
    "leave": ("tl.maximum(opened, closed)", "end"),
    "open": ("opened", "closed"),
    "seen": ("0", "tl.minimum(end, {keys})"),
    "unseen": ("end", "last"),
}
"""From where to where a walk goes."""


def sides(lines: Iterable[Line]) -> Iterator[Side]:
    """Yields the operands and results in lines, in order."""
    for line in lines:
        if isinstance(line, Side):
            yield line
        elif isinstance(line, tile.Other):
            yield from sides(getattr(line, "body", ()))


class AttentionPrinter(Printer):
    """The text of the lines that all kernels of attention have."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.inlined: dict[str, str] = {}
        """Texts of values that are written where they are used."""

    @classmethod
    def lines_of(cls, program: TileProgram) -> list[str]:
        """Returns the lines of a kernel."""
        printer = cls(program.tiling, program.buffers, program.names, program.extents, program.positions)
        printer.print(program.lines)
        return printer.lines

    def text(self, operand: tile.Operand) -> str:
        """Returns the text of an operand."""
        if isinstance(operand, Value):
            return self.inlined.get(operand.text, operand.text)
        return super().text(operand)

    def plain(self, expr: Expr, names: Mapping[Symbol, str] | None = None) -> str:
        """The text of an expression, with other names of some symbols."""
        return IndexText({**self.names.index_names, **(names or {})}, self.extents)(expr)

    def _op(self, line: tile.Op) -> str:
        form = FORMS.get(line.near) or INLINED.get(line.near)
        if form is None:
            return super()._op(line)
        texts = (repr(arg.value) if isinstance(arg, Const) else self.text(arg) for arg in line.args)
        return form.format(*texts, T=ELEMENTS[line.value.dtype])

    def _made(self, line: tile.Op) -> None:
        if line.near in INLINED:
            self.inlined[line.value.text] = self._op(line)
        else:
            Printer.texts[tile.Op](self, line)

    def _dot(self, line: tile.Dot) -> None:
        """A product; one that is used once is written where it is used."""
        super()._dot(line)
        self.inlined.pop(line.into.text, None)
        if line.into.text in USED_ONCE:
            self.inlined[line.into.text] = self.lines.pop().strip().removeprefix(f"{line.into.text} = ")

    def _scaled(self, line: Scaled) -> None:
        by = repr(line.by.value) if isinstance(line.by, Const) else self.text(line.by)
        self.emit(f"{line.into.text} {'-' if line.less else '+'}= {line.of.text} * {by}")

    def _hidden(self, line: own.Hidden) -> None:
        masks = " & ".join(self.mask(mask) if isinstance(mask, Inside) else self.text(mask) for mask in line.masks)
        number = f'float("{line.number.value}")' if line.number.value else "0.0"
        self.emit(f"{line.into.text} = tl.where({masks}, {line.into.text}, {number})")

    def shape_of(self, value: Value) -> str:
        """The shape of what is carried: of a tile of rows, or of a number for each row."""
        return f"[{', '.join(f'{name.upper()}BLOCK' for name in ('y', *sorted(value.axes - {'y'})))}]"

    def _begin(self, line: own.Begin) -> None:
        shape, element = self.shape_of(line.value), ELEMENTS[line.value.dtype]
        made = (
            f'tl.full({shape}, float("{line.number}"), {element})' if line.number else f"tl.zeros({shape}, {element})"
        )
        self.emit(f"{line.value.text} = {made}")

    def _weights(self, line: own.Weights) -> None:
        (greatest, weights, smaller), scores = (value.text for value in line.values), line.of.text
        (maximum, total), factor, emit = (value.text for value in line.state), repr(line.factor), self.emit
        emit(f"{greatest} = tl.maximum({maximum}, tl.max({scores}, 1))")
        # A row without a key so far has -inf, and -inf - -inf would be NaN.
        if line.form == "plain":
            emit("# Where all keys so far are masked, -inf - -inf would be no number.")
            emit(f'shift = tl.where({greatest} == float("-inf"), 0.0, {greatest})')
            emit(f"{weights} = tl.exp2({scores} - shift[:, None])", f"{smaller} = tl.exp2({maximum} - shift)")
        elif line.form == "first":
            emit(f'shift = tl.where({greatest} == float("-inf"), 0.0, {greatest})')
            emit(f"{weights} = _exp2_flushed(({scores} - shift[:, None]) * {factor})")
            emit(f"{smaller} = _exp2_flushed(({maximum} - shift) * {factor})")
        else:
            emit(f"shift = tl.where({greatest} < {LEAST_SCALED!r}, 0.0, {greatest}) * {factor}")
            emit(f"{weights} = _exp2_flushed({scores} * {factor} - shift[:, None])")
            emit(f"{smaller} = _exp2_flushed({maximum} * {factor} - shift)")
        emit(f"{total} = {total} * {smaller} + tl.sum({weights}, 1)")


class ForwardPrinter(AttentionPrinter):
    """A program has a tile of queries of one head and walks over tiles of keys."""

    # Which tile a program has. Programs of one head are neighbours, as they read the same keys. The last queries come
    # first: where a mask is causal they look at the most keys, and what takes long should not start last.

    def _programs(self, line: own.Programs) -> None:
        (rows, keys), (batch, heads), emit, wide = self.tiling.axes, self.tiling.pieces, self.emit, self._wide
        found = list(sides(line.body))
        parts = {axis.name: axis for side in found for axis in side.tiling.axes if isinstance(axis, own.Part)}
        emit(f"YBLOCK: tl.constexpr = {rows.block}", f"XBLOCK: tl.constexpr = {keys.block}")
        emit(*(f"{part.name.upper()}BLOCK: tl.constexpr = {part.block}" for part in parts.values()))
        emit(f"columns = {self._count(rows.size, rows.block)}")
        emit("row = columns - 1 - tl.program_id(0) % columns", "outer = tl.program_id(0) // columns")
        for r, sign in ((heads, "%"), (batch, "//")):
            emit(f"{self.names.variables[r.var]} = (outer {sign} {self.index_text(heads.size)}){wide}")
        self.write_axis(rows, f"row{wide} * YBLOCK + tl.arange(0, YBLOCK)[:, None]")
        emit(f"lane = tl.arange(0, XBLOCK){wide}")
        for part in parts.values():
            start = f"{part.start} + " if part.start else ""
            emit(f"{part.name} = {start}tl.arange(0, {part.name.upper()}BLOCK){wide}")
        emit(f"queries = {self._base(found[0])} + {self._along(found[0], rows)}")
        self.print(each for each in line.body if isinstance(each, Side) and each.name == "query")
        walked = {load.value.text: side for side in found if isinstance(load := side.body[0], Load)}
        tiles = [side for side in walked.values() if side.name != "query"]
        emit(*(f"{side.name}s = {self._base(side)}" for side in {side.name: side for side in tiles}.values()))
        for side in tiles:
            along = [self._along(side, axis) for axis in side.tiling.axes]
            emit(f"{side.name}tile{self._number(side)} = {' + '.join(along)}")
        self.print(each for each in line.body if not (isinstance(each, Side) and each.name == "query"))

    def _count(self, size: Expr, block: int) -> str:
        return str(-(-int(size) // block)) if size.is_Integer else f"tl.cdiv({self.index_text(size)}, {block})"

    # Operands and results.

    def _base(self, side: Side) -> str:
        (line,) = side.body
        assert isinstance(line, (Load, Store))
        return self._start(line.access, [axis.ranges[0].var for axis in side.tiling.axes])

    def _start(self, access: tile.Access, inner: Iterable[Symbol]) -> str:
        """The pointer to where all of `inner` are 0."""
        offset = access.offset.xreplace(dict.fromkeys(inner, ZERO))
        return f"{self.names.buffers[access.buffer]} + {self.index_text(offset)}"

    @staticmethod
    def _number(side: Side) -> int:
        (part,) = (axis for axis in side.tiling.axes if isinstance(axis, own.Part))
        return part.number

    def _along(self, side: Side, axis: Axis) -> str:
        (line,) = side.body
        index = "y0" if axis.name == "y" else f"{self._lanes(axis)}{_expand(side, axis)}"
        return f"{index} * {self._stride(line.access, axis.ranges[0].var)}"  # type: ignore[union-attr]

    @staticmethod
    def _lanes(axis: Axis) -> str:
        return "lane" if axis.name == "x" else axis.name

    def _stride(self, access: tile.Access, var: Symbol) -> str:
        stride = stride_of(access.offset, var)
        assert stride is not None
        return self.index_text(stride)

    def _masks(self, side: Side, masks: Sequence[Any]) -> str:
        """The masks of a load or store, joined."""
        found, axes = [], {axis.name: axis for axis in side.tiling.axes}
        for mask in masks:
            axis = axes[mask.axis]
            if isinstance(axis, own.Part):
                found.append(f"({axis.name}{_expand(side, axis)} < {axis.end})")
            elif axis.name == "x" and side.tiling.axes[0] is axis:
                found.append(f"(start + lane[:, None] < {self.index_text(axis.size)})")
            else:
                found.append(self.mask(mask))
        return " & ".join(found)

    def _side(self, side: Side) -> None:
        (line,) = side.body
        (axis, part) = sorted(side.tiling.axes, key=lambda axis: isinstance(axis, own.Part))
        if isinstance(line, Store):
            more = f" + {self._along(side, part)}"
            self._put(line, [part.ranges[0].var], more, self._masks(side, line.masks))
            return
        assert isinstance(line, Load)
        if side.name == "query":
            place = f"queries + {self._along(side, part)}"
        else:
            step = self._stride(line.access, axis.ranges[0].var)
            place = f"{side.name}s + start * {step} + {side.name}tile{self._number(side)}"
        masks = self._masks(side, line.masks)
        self.emit(f"{line.value.text} = tl.load({place}{f', mask={masks}, other=0.0' if masks else ''})")

    def _store(self, line: Store) -> None:
        self._put(line, [], "", " & ".join(map(self.mask, line.masks)))

    def _put(self, line: Store, inner: list[Symbol], more: str, masks: str) -> None:
        """A store, of the program's rows. inner, more: where in a row."""
        row = self.tiling.axes[0].ranges[0].var
        place = f"{self._start(line.access, [row, *inner])} + y0 * {self._stride(line.access, row)}{more}"
        self.emit(f"tl.store({place}, {self.text(line.value)}{f', {masks}' if masks else ''})")

    # The walks.

    def _limits(self, line: own.Limits) -> None:
        (rows, axis), emit = self.tiling.axes, self.emit
        keys, head = self.index_text(axis.size), self.names.variables[self.tiling.pieces[1].var]
        emit(f"zero = {head} * 0")  # of the type of indices
        if line.how == "all":
            if axis.size.is_Integer:
                # Always times one, which ptxas does not know: it unrolls a loop of known length for seconds.
                emit(f"end = {int(axis.size) // axis.block * axis.block} * tl.num_programs(1)")
            else:
                emit(f"end = {keys} // XBLOCK * XBLOCK")
            return
        emit(f"yfirst = row{self._wide} * YBLOCK", "ylast = yfirst + YBLOCK - 1")
        last, row = f"{keys} - 1", rows.ranges[0].var
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
        keys = self.index_text(self.tiling.axes[1].size)
        if line.which == "unseen":
            self.emit(f"last = tl.where(tl.min({line.state[0].text}, 0) < {NOTHING_SEEN!r}, {keys}, 0)")
        begin, end = (text.format(keys=keys) for text in OVER[line.which])
        self.emit(f"for place in range({begin}, {end}, XBLOCK):")
        self.depth += 1
        self.emit("start = place + zero")
        self._step(line)
        self.depth -= 1

    def _step(self, line: own.Over | own.Listed) -> None:
        self.write_axis(line.tiling.axes[1], "start + lane[None, :]")
        self.print(line.body)

    def _listed(self, line: own.Listed) -> None:
        """The next block is read a step ahead: were keys read from where this step's load says, Triton's pipeline would
        hold the list instead of a stage of keys and values."""
        (rows, axis), emit, wide, block = self.tiling.axes, self.emit, self._wide, int(line.block)
        batch, head = (r.var for r in self.tiling.pieces)
        counts, indices = (
            access_of(line.counts, (batch, head), (own.ROW,)),
            access_of(line.indices, (batch, head), (own.ROW, own.PLACE)),
        )
        keys, room = self.index_text(axis.size), self.index_text(line.indices.layout.size[3])
        last = self.index_text(line.counts.layout.size[2] - 1)
        emit(f"listed = tl.minimum(row // {max(1, int(line.own) // rows.block)}, {last}){wide}")
        count = f"tl.load({self._start(counts, (ROW,))} + listed * {self._stride(counts, ROW)})"
        emit(f"count = tl.minimum({count}, {room})")
        emit(f"indices = {self._start(indices, (ROW, PLACE))} + listed * {self._stride(indices, ROW)}")
        emit(f"each = {self._tiles_of_block(axis, block)}", "following = tl.load(indices, mask=count > 0, other=0)")
        emit("for step in range(0, count * each):")
        self.depth += 1
        # Whatever is listed, no key outside of the tensor is read.
        emit(f"block = tl.minimum(tl.maximum(following, 0), ({keys} - 1) // {block}){wide}")
        place = f"tl.minimum((step + 1) // each, {room} - 1) * {self._stride(indices, PLACE)}"
        emit(f"following = tl.load(indices + {place})")
        emit(f"start = tl.multiple_of(block * {block} + step % each * XBLOCK, XBLOCK)")
        self._step(line)
        self.depth -= 1

    def _tiles_of_block(self, axis: Axis, block: int) -> str:
        """How many tiles of keys a block has. A block may be larger than all the keys."""
        if axis.size.is_Integer:
            return str(-(-min(block, int(axis.size)) // axis.block))
        return str(-(-block // axis.block)) if block < 2**30 else f"tl.cdiv({self.index_text(axis.size)}, XBLOCK)"

    # Results.

    def _finish(self, line: own.Finish) -> None:
        (maximum, total), factor = (each.text for each in line.state), line.factor
        name, emit = line.value.text, self.emit
        if line.kind == "log2":
            emit(f'shift = tl.where({maximum} == float("-inf"), 0.0, {maximum}) * {factor!r}')
            self.inlined[name] = f"(shift + tl.log2({total}))[:, None]"
        elif line.kind == "most":
            # The maximum of a row with a NaN is NaN.
            emit(f'nan = ({total} != {total}) & ({maximum} != float("inf"))')
            self.inlined[name] = f"tl.where(nan, {total}, {maximum} * {factor!r})[:, None]"
        else:
            emit(f"{name} = ({total if line.kind == 'total' else f'tl.where({total} == 0.0, 1.0, {total})'})[:, None]")


def nth(axes: Sequence[Axis], axis: Axis) -> str:
    """Returns the subscript that gives a vector along an axis the rank of a tile with these axes."""
    return "[:, None]" if axes[0] is axis else "[None, :]"


def _expand(side: Side, axis: Axis) -> str:
    return nth(side.tiling.axes, axis)


AttentionPrinter.texts = {
    **Printer.texts,
    tile.Op: AttentionPrinter._made,
    own.Begin: AttentionPrinter._begin,
    own.Next: lambda printer, line: printer.emit(f"{line.into.text} = {printer.text(line.of)}"),
    tile.Dot: AttentionPrinter._dot,
    Scaled: AttentionPrinter._scaled,
    own.Hidden: AttentionPrinter._hidden,
    own.Weights: AttentionPrinter._weights,
}
ForwardPrinter.texts = {
    **AttentionPrinter.texts,
    own.Programs: ForwardPrinter._programs,
    Side: ForwardPrinter._side,
    Store: ForwardPrinter._store,
    own.Limits: ForwardPrinter._limits,
    own.Over: ForwardPrinter._over,
    own.Listed: ForwardPrinter._listed,
    own.Finish: ForwardPrinter._finish,
}
