"""TilePrograms of attention (`litz_contractions.attention.lines`), verified and run with torch.

What `rules.py` and `interpret.py` say of other TilePrograms holds here: lanes that masks leave out are poison, except
in what is multiplied, where they are 0; no two programs store one element; programs run in any order.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from litz.ir import TensorRef
from litz.ir.index import Expr, Symbol
from litz.ir.interpret import evaluate
from litz.tiles import program as tile
from litz.tiles.program import Axes, TileProgram
from litz.tiles.shape import Axis
from litz_contractions.attention import lines as own
from litz_contractions.attention.masks import LEAST_SCALED
from litz_contractions.attention.print import NOTHING_SEEN
from litz_contractions.products.lines import Side

from .interpret import Memory, TileError, _Kernel, _Program
from .rules import every, verify_tiles

Form = Callable[[Sequence[torch.Tensor], torch.dtype], torch.Tensor]


def _narrow(args: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    return args[0].to(dtype).to(args[0].dtype)


FORMS: Mapping[str, Form] = {
    **dict.fromkeys(("times", "times_row"), lambda args, dtype: args[0] * args[1]),
    "less": lambda args, dtype: args[0] - args[1] * args[2],
    "narrow": _narrow,
    "rest": lambda args, dtype: _narrow([args[0] - args[1]], dtype),
    "weight": lambda args, dtype: (args[0] * args[1] - args[2]).exp2(),
    "slope": lambda args, dtype: args[0] * (args[1] - args[2]),
    "alive": lambda args, dtype: torch.where(args[0] == 0, 0.0, args[1]),
    "sum": lambda args, dtype: args[0],
    "some": lambda args, dtype: torch.where(args[0] == 0, 1.0, args[0]),
    "log2": lambda args, dtype: torch.where(args[0] == -math.inf, 0.0, args[0]) * args[2] + args[1].log2(),
    "most": lambda args, dtype: torch.where(args[1].isnan() & (args[0] != math.inf), args[1], args[0] * args[2]),
    "powers": lambda args, dtype: torch.where(args[0] == -math.inf, args[0], torch.maximum(args[0] * args[1], args[2])),
}
"""What the forms of ops mean whose text `litz_contractions.attention.print` has."""


def verify_attention(program: TileProgram) -> Iterator[str]:
    """Yields a complaint for each rule that a TileProgram of attention breaks."""
    yield from verify_tiles(program)
    if [type(line) for line in program.lines] != [own.Programs]:
        yield "an attention has programs"
        return
    yield from _products(program)


def _products(program: TileProgram) -> Iterator[str]:
    """Two tiles that are multiplied share one axis, and the product has the others; what was loaded is 0 in the places
    outside of the axis that they share."""
    loaded: dict[str, tuple[tile.Load, set[str]]] = {}
    for line, _ in every(program.lines):
        if isinstance(line, Side):
            short = {axis.name for axis in line.tiling.axes if axis.masked}
            loaded |= {each.value.text: (each, short) for each in line.body if isinstance(each, tile.Load)}
        elif isinstance(line, tile.Op) and line.near == "turned":
            (turned,) = line.args
            if isinstance(turned, tile.Value) and turned.text in loaded:
                loaded[line.value.text] = loaded[turned.text]
        elif isinstance(line, tile.Dot):
            left, right = line.left.axes, line.right.axes
            if len(left & right) != 1 or left ^ right != line.into.axes:
                yield f"{line.left.text} and {line.right.text} do not make {line.into.text}"
            for each in (line.left, line.right):
                load, short = loaded.get(each.text, (None, set()))
                if load is not None and left & right & short and not load.zero:
                    yield f"{each.text} is multiplied outside of {', '.join(left & right)}"


def interpret_attention(
    program: TileProgram, memory: Memory, sizes: Mapping[Symbol, int] | None = None, order: int = 0
) -> None:
    """Runs all programs of attention's kernel, in an order that `order` shuffles. See `interpret_tiles`."""
    kernel = _Kernel(program, memory, dict(sizes or {}))
    (programs,) = program.lines
    assert isinstance(programs, own.Programs)
    rows = program.tiling.axes[0]
    assert isinstance(rows, own.Cut)
    tiles = kernel.size(rows.tiles)
    count = tiles * max(1, programs.parts) * (kernel.size(programs.heads) if programs.parts else 1)
    for r in program.tiling.pieces:
        count *= kernel.size(r.size)
    numbers = list(range(count))
    random.Random(order).shuffle(numbers)
    stored: dict[tuple[int, int], int] = {}
    for number in numbers:
        _Attention(kernel, program, programs, tiles, number, stored).run()


class _Attention(_Program):
    """One program. stored: how many parts of a batch and head of the key are there."""

    def __init__(
        self,
        kernel: _Kernel,
        program: TileProgram,
        programs: own.Programs,
        tiles: int,
        number: int,
        stored: dict[tuple[int, int], int],
    ) -> None:
        super().__init__(kernel, program, number, 0, number)
        self.programs, self.tiles, self.stored = programs, tiles, stored
        self.named = {name: var for var, name in program.names.variables.items()}
        self.rows, self.keys = program.tiling.axes
        self.blocks_of = {axis.name: axis.block for axis in self._axes()}
        self.first, self.begun, self.ends = 0, 0, dict[str, int]()
        """The first row and the first of what is walked; where the mask's block ends, by axis."""

    def _axes(self) -> Iterator[Axis]:
        yield from self.program.tiling.axes
        for line, _ in every(self.program.lines):
            if isinstance(line, Side):
                yield from line.tiling.axes

    def shape(self, axes: Axes) -> list[int]:
        """The sizes of a tile: of one of rows by a head's elements too."""
        if axes <= self.dims.keys():
            return super().shape(axes)
        return [self.blocks_of[name] for name in ("y", *sorted(axes - {"y"}))]

    def run(self) -> None:
        """Runs the body for the program's tile."""
        programs, number = self.programs, self.number
        if programs.parts:
            number, self.env[own.PART] = divmod(number, programs.parts)
            number, self.env[own.SHARED] = divmod(number, self.kernel.size(programs.heads))
        number, place = divmod(number, self.tiles)
        self.place = self.tiles - 1 - place if programs.back else place
        for r in reversed(self.tiling.pieces):
            number, self.env[r.var] = divmod(number, self.kernel.size(r.size))
        if own.SHARED not in self.env:
            self.env[own.SHARED] = self.env[self.named["head"]] // self.kernel.size(programs.group)
        self.first = self.place * self.rows.block
        assert isinstance(self.rows, own.Cut)
        if self.rows.grain is not None:
            grain = self.kernel.size(self.rows.grain)
            if self.rows.is_cut:
                row, inside = divmod(self.place, self.kernel.size(self.rows.parts))
                self.first = row * grain + inside * self.rows.block
            self.row = self.first // grain if not self.rows.is_cut else row
            self.ends["y"] = min((self.row + 1) * grain, self.kernel.size(self.rows.size))
        self._put(self.rows)
        self.lines(programs.body)

    def _put(self, axis: Axis) -> None:
        """The positions along an axis, from where the program is."""
        start = {"y": self.first, "x": self.begun}.get(axis.name, 0)
        self._position(axis, start + self._along(axis))
        if isinstance(axis, own.Part):
            self.env[axis.var] = self.env[axis.var] + axis.start
        if axis.name == "y" and self.programs.parts:
            head = self.named["head"]
            self.env[head] = self.env[head] + self.env[own.SHARED] * self.kernel.size(self.programs.group)
        if axis.name == "x" and not axis.masked and not bool(self.masks["x"].all()):
            raise TileError(f"a tile from {self.begun} on reaches beyond the end, and has no mask")

    def mask(self, masks: Any) -> torch.Tensor:
        """The lanes where all masks hold."""
        found = super().mask([mask for mask in masks if not isinstance(mask, own.InBlock)])
        for mask in masks:
            if isinstance(mask, own.InBlock):
                found = found & (self.index[mask.axis] < self.ends[mask.axis])
        return found

    def _side(self, line: Side) -> None:
        inner = copy.copy(self)
        inner.tiling, inner.dims = line.tiling, {axis.name: dim for dim, axis in enumerate(line.tiling.axes)}
        inner.env, inner.masks, inner.index = dict(self.env), dict(self.masks), dict(self.index)
        for axis in line.tiling.axes:
            inner._put(axis)
        inner.lines(line.body)

    # Walks.

    def _limits(self, line: own.Limits) -> None:
        size, block = self.kernel.size(self.keys.size), self.keys.block
        if line.how == "all":
            self.limits = {"end": size // block * block}
        elif line.how == "parts":
            blocks = -(-size // block)
            length = -(-blocks // self.programs.parts) * block
            self.limits = {"begin": self.env[own.PART] * length}
            self.limits["end"] = min(self.limits["begin"] + length, size)
        else:
            begin, opened = (max([0, *self._extremes(line.lower, greatest)]) for greatest in (False, True))
            end, closed = (min([size - 1, *self._extremes(line.upper, greatest)]) for greatest in (True, False))
            self.limits = {"begin": begin // block * block, "end": end + 1}
            self.limits |= {"opened": -(-opened // block) * block, "closed": max(closed + 1, 0) // block * block}
            if line.how == "seen":
                self.limits["end"] = -(-max(end + 1, 0) // block) * block

    def _extremes(self, limits: tuple[Expr, ...], greatest: bool) -> list[int]:
        """The least or greatest of each limit among the tile's rows."""
        (row,) = (r.var for r in self.rows.ranges)
        ends = self.first, self.first + self.rows.block - 1
        found = ([int(evaluate(limit, {**self.env, row: each})) for each in ends] for limit in limits)
        return [(max if greatest else min)(each) for each in found]

    def _over(self, line: own.Over) -> None:
        if line.which == "listed":
            self._listed(line)
            return
        size, limits, at = self.kernel.size(self.keys.size), self.limits, line.which
        end = limits["end"]
        if at == "within":
            begin = limits["begin"]
        elif at == "enter":
            begin, end = limits["begin"], min(limits["opened"], end)
        elif at == "leave":
            begin = max(limits["opened"], limits["closed"])
        elif at == "open":
            begin, end = limits["opened"], limits["closed"]
        elif at == "unseen":
            least = self.values[line.state[0].text].nan_to_num(math.inf, neginf=-math.inf).min()
            begin, end = end, size if float(least) < NOTHING_SEEN else 0
        else:
            begin, end = {"whole": (0, end), "rest": (end, size), "seen": (0, min(end, size))}[at]
        for start in range(begin, end, self.keys.block):
            self._step(line, start)

    def _step(self, line: own.Over, start: int) -> None:
        self.tiling, self.begun = line.tiling, start
        self._put(line.tiling.axes[1])
        self.lines(line.body)

    def _listed(self, line: own.Over) -> None:
        walked, size = line.tiling.axes[1], self.kernel.size(self.keys.size)
        assert isinstance(walked, own.Cut) and walked.grain is not None
        assert line.counts is not None and line.indices is not None
        block, each, rows = (self.kernel.size(e) for e in (walked.grain, walked.parts, line.counts.layout.size[2]))
        most = self.kernel.size(line.indices.layout.size[3])
        count = min(self._entry(line.counts, self.row), most) if self.row < rows else 0
        for step in range(count * each):
            listed = min(max(self._entry(line.indices, self.row, step // each), 0), (size - 1) // block)
            self.ends["x"] = (listed + 1) * block
            self._step(line, listed * block + step % each * walked.block)

    def _entry(self, table: TensorRef, *at: int) -> int:
        """An entry of a table, whose first two dimensions may be the same for all."""
        layout, places = table.layout, self.kernel.size(table.layout.offset)
        outer = [self.env[self.named[name]] for name in ("batch", "head")]
        for index, size, stride in zip((*outer, *at), layout.size, layout.stride, strict=True):
            places += index % self.kernel.size(size) * self.kernel.size(stride)
        return int(self.kernel.flat(table.buffer)[places])

    def _turns(self, line: own.Turns) -> None:
        group, batches = self.kernel.size(line.group), self.kernel.size(line.batches)
        for turn in range(group * batches):
            self.env[self.named["head"]] = self.env[own.SHARED] * group + turn % group
            if line.batches != 1:
                self.env[self.named["batch"]] = turn // group
            self.lines(line.body)

    # Tiles.

    def _op(self, line: tile.Op) -> None:
        if line.near not in FORMS and line.near != "turned":
            super()._op(line)
            return
        args = [self.operand(arg) for arg in line.args]
        if line.near == "turned":
            self.values[line.value.text] = args[0].mT
            return
        found = FORMS[line.near](args, line.value.dtype)
        self.give(line.value, found.expand(torch.broadcast_shapes(found.shape, *(arg.shape for arg in args))))

    def _begins(self, line: own.Begins) -> None:
        """Does nothing: each load says where."""

    def _begin(self, line: own.Begin) -> None:
        self.give(line.value, torch.full(self.shape(line.value.axes), line.number))

    def _numbers(self, line: own.Numbers) -> None:
        mask = self.mask(line.masks).expand(self.shape(line.access.axes))
        places = self._places(line.access, mask, reads=True)
        found = torch.where(mask, self.kernel.flat(line.access.buffer)[places].to(torch.float32), line.number)
        self.give(line.value, torch.where(found == -line.number, line.number, found) if line.opposite else found)

    def _next(self, line: own.Next) -> None:
        self.give(line.into, self.operand(line.of))

    def _hidden(self, line: own.Hidden) -> None:
        shown = self.mask(line.masks)
        self.give(line.into, torch.where(shown, self.values[line.into.text], float(line.number.value)))

    def _weights(self, line: own.Weights) -> None:
        maximum, total = (self.values[value.text].to(torch.float64) for value in line.state)
        scores = self.values[line.of.text].to(torch.float64)
        greatest = torch.maximum(maximum, scores.amax(1, keepdim=True))
        nothing = greatest == -math.inf if line.first else greatest < LEAST_SCALED
        shift = torch.where(nothing, 0.0, greatest)
        weights, smaller = (((each - shift) * line.factor).exp2() for each in (scores, maximum))
        for value, found in zip(line.values, (greatest, weights, smaller), strict=True):
            self.give(value, found)
        self.give(line.state[1], total * smaller + weights.sum(1, keepdim=True))

    def _rowproduct(self, line: own.RowProduct) -> None:
        product = self.values[line.of.text].to(torch.float64) * self.values[line.by.text].to(torch.float64)
        self.give(line.value, product.sum(1, keepdim=True))

    # Parts.

    def _merge(self, line: own.Merge) -> None:
        batch, shared, parts = self.env[self.named["batch"]], self.env[own.SHARED], self.programs.parts
        self.stored[batch, shared] = self.stored.get((batch, shared), 0) + 1
        if self.stored[batch, shared] < parts:
            return
        rows, widths = self.kernel.size(line.rows.size), self.kernel.size(line.across.size)
        heads, queries = (r.var for r in line.rows.ranges)
        count, group = self.kernel.size(line.rows.ranges[1].size), self.kernel.size(self.programs.group)
        row = torch.arange(rows).reshape(1, -1, 1)
        env = {**self.env, own.PART: torch.arange(parts).reshape(-1, 1, 1), queries: row % count}
        env |= {heads: shared * group + row // count, line.across.ranges[0].var: torch.arange(widths)}

        def places(access: tile.Access, *shape: int) -> torch.Tensor:
            return torch.as_tensor(evaluate(access.offset, env)).expand(shape)

        sums = self.kernel.flat(line.sums.buffer)[places(line.sums, parts, rows, 1)].to(torch.float64)
        best = sums.amax(0)
        shares = (sums - torch.where(best == -math.inf, 0.0, best)).exp2()
        total, results = shares.sum(0), self.kernel.flat(line.result.buffer)[places(line.result, parts, rows, widths)]
        found = (shares * results).sum(0) / torch.where(total == 0, 1.0, total)
        out = self.kernel.flat(line.out.buffer)
        out[places(line.out, 1, rows, widths)[0]] = found.to(out.dtype)


__all__ = ["interpret_attention", "verify_attention"]
