"""Attention of few queries: a kernel whose programs each look at a part of the keys. In: an `Attention`, and `Tiles`
with parts. Out: its TileProgram, and the `KernelSource` that is printed from it.

A program has one batch, one head of the key and one part of the keys; the rows of its tile are all queries of all heads
that share that head, so that a key is read once. The program keeps a running maximum, sum and result (Milakov and
Gimelshein, "Online normalizer calculation for softmax", 2018) and stores the result of its part and the logarithm of
its sum, from which the parts are put together (Dao et al., "Flash-Decoding for long-context inference", 2023).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import sympy
import torch

from litz.ir import Buffer, Layout, Program, Range, TensorRef
from litz.ir.dtypes import short
from litz.ir.index import Symbol
from litz.ir.node import walk
from litz.targets.triton.indices import index_type_of
from litz.targets.triton.text import size_text
from litz.tiles.names import name_all
from litz.tiles.program import Access, Const, Dot, Inside, Line, Load, Op, Operand, Store, TileProgram, Value
from litz.tiles.shape import Axis, Tiling
from litz_plugins import KernelSource

from ..module import counted, position_type, write_module
from ..products.lines import Side
from . import lines as own
from .arithmetic import ScoreMaker
from .bodies import AT, BATCH, HEAD, KEY, QUERY, flat_bodies
from .in_place import operand_buffers
from .lines import LOG2E, PART, ROWS, SHARED, TILE
from .masks import LEAST_SCALED
from .operation import SCORE, Attention
from .plan import offset_of
from .print import UNSCALED
from .print_split import SplitPrinter
from .tiles import Tiles, padded

LEAST = LEAST_SCALED * LOG2E
"""The least score, times LOG2E, but for -inf: the least number of float32 times that would be -inf."""


@dataclass(frozen=True)
class Stored:
    """The buffers of the results. result: with one part the attention's own, (batch, head, query, width); else (part,
    batch, head, query, width), float32. sums: (part, batch, head, query), float32: the base-2 logarithm of each part's
    sum of exponentials, None with one part. out: with several parts the attention's own result, which the last program
    of a head of the key puts together of all parts; None where a loop does that."""

    result: Buffer
    sums: Buffer | None = None
    out: Buffer | None = None

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """Returns the buffers that the kernel writes."""
        return tuple(buffer for buffer in (self.result, self.sums, self.out) if buffer is not None)


D, E = (sympy.Symbol(name, integer=True, nonnegative=True) for name in "de")
"""The elements of a key and of a value."""


def write_split(attention: Attention, split: Tiles, program: Program, name: str, stored: Stored) -> KernelSource:
    """Returns the split kernel. Queries that may look at no key get 0, as torch's kernels give."""
    made = _Maker(attention, split, program, stored)
    tiles, outer = made.tiles(), (made.batch, attention.key.layout.size[1])
    grid = " * ".join([*(size_text(size, made.names.sizes) for size in outer), str(split.parts)])
    return write_module(
        name,
        f"litz_attention_split_{short(made.dtype)}_{split.rows}x{split.keys}",
        f"attention of few queries: {split}",
        SplitPrinter.lines_of(tiles),
        tiles,
        replace(program, buffers={**program.buffers, **made.buffers}),
        {buffer.name for buffer in stored.buffers},
        split,
        counted(grid, all(size.is_Integer for size in outer)),
        int(outer[0] * outer[1]) if stored.out is not None else 0,
    )


class _Maker:
    def __init__(self, attention: Attention, split: Tiles, program: Program, stored: Stored) -> None:
        self.attention, self.split, self.stored = attention, split, stored
        written = stored.buffers
        self.buffers: dict[str, Buffer] = {
            **{name: program.buffers[name] for name in operand_buffers(attention)},
            **{buffer.name: buffer for buffer in written},
        }
        self.batch, _, queries, keys = attention.size
        widths = attention.query.layout.size[3], attention.value.layout.size[3]
        self.rows = Axis("y", (Range(HEAD, attention.group), Range(QUERY, queries)), split.rows)
        self.columns = Axis("x", (Range(KEY, keys),), split.keys)
        self.depth, self.across = (
            Axis(var.name, (Range(var, width),), padded(int(width))) for var, width in zip((D, E), widths)
        )
        self.bodies = flat_bodies(attention, program)
        self.body, self.score, self.mask = self.bodies.loop, self.bodies.score, self.bodies.mask
        refs = (attention.query, attention.key, attention.value)
        exprs = [expr for ref in refs for expr in (*ref.layout.size, *ref.layout.stride, ref.layout.offset)]
        exprs += [step for buffer in written for step in buffer.layout.stride]
        spans = [buffer.layout.span for buffer in self.buffers.values()]
        exprs += [*self.body.expressions, *spans] if self.body.stores else spans
        texts = dict(zip(AT, ("batch", "head", "query", "key"), strict=True))
        self.names = name_all(self.buffers, texts, exprs)
        self.index_type, self.limits = index_type_of(spans, bool(self.names.sizes))
        self.dtype = program.buffers[attention.query.buffer].dtype
        self.extents = {
            **dict(zip(AT, attention.size, strict=True)),
            **{D: widths[0], E: widths[1], SHARED: attention.key.layout.size[1], PART: sympy.Integer(split.parts)},
        }
        tiling, positions = self._tiling(self.rows, self.columns), position_type(self.index_type)
        self.maker = ScoreMaker(self.body, self.buffers, tiling, positions)
        self.put = self.maker.put
        self.scores = Value("scores", torch.float32, TILE)
        self.state = Value("maximum", torch.float32, ROWS), Value("total", torch.float32, ROWS)
        self.result = Value("result", torch.float32, ROWS | {"e"})

    def _tiling(self, *axes: Axis) -> Tiling:
        return Tiling(axes, self.split.warps, pieces=(Range(BATCH, self.batch),))

    # The lines.

    def tiles(self) -> TileProgram:
        """Returns the TileProgram."""
        maker, names = self.maker, {D: "d", E: "e", SHARED: "shared", PART: "part"}
        heads, group = self.attention.key.layout.size[1], self.attention.group
        line = own.Programs(maker.block(self._lines), parts=self.split.parts, heads=heads, group=group)
        every = replace(self.names, variables={**self.names.variables, **names})
        return maker.program(line, every, self.extents, self.limits)

    def _lines(self) -> None:
        put, row = self.put, (BATCH, HEAD, QUERY)
        self._load("queries", self.attention.query, (*row, D), (self.rows, self.depth))
        put(own.Limits("parts"))
        for value, number in ((self.state[0], -math.inf), (self.state[1], 0.0), (self.result, 0.0)):
            put(own.Begin(value, number))
        put(own.Over("within", self.maker.tiling, self.maker.block(self._step)))
        self._results()
        if self.stored.out is not None:
            assert self.stored.sums is not None
            parts = (
                self._access(self.stored.result, (PART, *row, E)),
                self._access(self.stored.sums, (PART, *row)),
            )
            out = self._access(self.stored.out, (*row, E))
            put(own.Merge(*parts, out, self.rows, self.across))

    def _access(self, buffer: Buffer, at: Sequence[Symbol]) -> Access:
        ref = TensorRef(buffer.name, Layout(buffer.layout.size, buffer.layout.stride))
        return Access(buffer.name, offset_of(ref, at), (), ROWS | ({"e"} & {symbol.name for symbol in at}))

    def _load(self, name: str, ref: TensorRef, at: Sequence[Symbol], axes: Sequence[Axis]) -> None:
        """Adds the load of a tile of an operand, in the type that is multiplied in. at: its position."""
        stored, found = self.buffers[ref.buffer].dtype, frozenset(axis.name for axis in axes)
        wide = sorted(axes, key=lambda axis: axis.name in "de")
        masks = tuple(Inside(axis.name) for axis in wide if axis.masked)
        value = Value(name, stored, found)
        body: list[Line] = [Load(value, Access(ref.buffer, offset_of(ref, at), (), found), masks, zero=True)]
        if stored != self.dtype:
            body.append(Op(replace(value, dtype=self.dtype), "cast", (value,)))
        self._side(name, axes, body)

    def _side(self, name: str, axes: Sequence[Axis], body: Sequence[Line]) -> None:
        variables = {**self.names.variables, **{D: "d", E: "e", SHARED: "shared", PART: "part"}}
        self.put(Side(name, self._tiling(*axes), variables, self.extents, tuple(body)))

    def _step(self) -> None:
        attention, put, maker = self.attention, self.put, self.maker
        precision = "ieee" if self.dtype == torch.float32 else ""
        # What bodies load is on its way while the keys are waited for.
        loads = [node for node in self.body.loads if node.buffer != SCORE]
        if (score := self.bodies.load_of(SCORE)) is not None:
            maker.values[score] = replace(self.scores, dtype=score.dtype)
        maker.compute(node for node in loads if all(each.op != "load" or each in loads for each in walk(node)))
        self._load("keys", attention.key, (BATCH, SHARED, KEY, D), (self.depth, self.columns))
        queries, keys = Value("queries", self.dtype, ROWS | {"d"}), Value("keys", self.dtype, frozenset("dx"))
        unscaled, scale = replace(self.scores, text=UNSCALED), float(attention.scale)
        put(Dot(unscaled, queries, keys, precision, new=True))
        factor = Const(scale if self.score is not None else scale * LOG2E, torch.float32)
        put(Op(self.scores, "mul", (unscaled, factor), "times"))
        shown: list[Operand | Inside] = [Inside("x")] * self.columns.masked
        if self.score is not None:
            maker.compute([self.score])
            # A mask of the least number there is leaves even weights where it leaves no key, and -inf leaves none.
            raw, powers = (replace(self.scores, text=name) for name in ("raw", "powers"))
            put(Op(raw, "same", (maker.spread(self.score, TILE),)))
            put(Op(powers, "maximum", (raw, Const(LOG2E, torch.float32), Const(LEAST, torch.float32)), "powers"))
            put(own.Next(self.scores, powers))
        if self.mask is not None:
            maker.compute([self.mask])
            counts = Value("counts", torch.bool, TILE)
            put(Op(counts, "same", (maker.spread(self.mask, TILE),)))
            shown.append(counts)
        if shown:
            put(own.Hidden(self.scores, tuple(shown), Const(-math.inf, torch.float32)))
        highest, shrink = (Value(name, torch.float32, ROWS) for name in ("highest", "shrink"))
        weights, rounded = Value("weights", torch.float32, TILE), Value("rounded", self.dtype, TILE)
        put(own.Weights((highest, weights, shrink), self.scores, self.state, 1.0, "plain"))
        self._load("values", attention.value, (BATCH, SHARED, KEY, E), (self.columns, self.across))
        put(Op(rounded, "cast", (weights,), "rounded"))
        put(Op(self.result, "mul", (self.result, shrink), "faded"))
        put(Dot(self.result, rounded, Value("values", self.dtype, frozenset("xe")), precision))
        put(own.Next(self.state[0], highest))

    def _results(self) -> None:
        row, put, masks = (BATCH, HEAD, QUERY), self.put, (Inside("y"),) * self.rows.masked
        result, sums = self.stored.result, self.stored.sums
        divisor = Value("divisor", torch.float32, ROWS)
        put(own.Finish(divisor, "some", self.state, 1.0))
        put(Op(replace(self.result, text="quotient"), "div", (self.result, divisor), "quotient"))
        put(own.Next(self.result, replace(self.result, text="quotient")))
        part = () if sums is None else (PART,)
        rounded = replace(self.result, text="rounded", dtype=result.dtype)
        put(Op(rounded, "cast", (self.result,), "rounded"))
        access = self._access(result, (*part, *row, E))
        ends = (*masks, *(Inside("e"),) * self.across.masked)
        self._side("out", (self.rows, self.across), [Store(access, rounded, ends, "set", access.axes)])
        if sums is not None:
            value = Value("log2", torch.float32, ROWS)
            put(own.Finish(value, "log2", self.state, 1.0))
            access = self._access(sums, (PART, *row))
            put(Store(access, value, masks, "set", ROWS))
