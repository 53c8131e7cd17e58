"""The kernels of attention: in, an `AttentionPlan` and `Tiles`; out, a TileProgram, and the `KernelSource` that is
printed from it.

A program has a tile of queries of one head and walks over tiles of keys, with the softmax's maximum and sum so far of
each row: what was added up before is scaled down when a greater score comes (Milakov and Gimelshein, 2018; Dao et al.,
2022). No score is ever in memory. What becomes of a score are core's own lines (`litz.tiles.make`), on a tile whose
axis y are the queries and whose axis x are the keys; what does not vary along the keys is computed before.

Of few queries (`Tiles.parts`) a program has one head of the key and one part of the keys; the rows of its tile are all
queries of all heads that share that head, so that a key is read once. The program stores the result of its part and the
logarithm of its sum, from which the parts are put together (Dao et al., "Flash-Decoding for long-context inference",
2023).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from litz.ir import Buffer, Layout, TensorRef
from litz.ir.index import Expr
from litz.ir.node import walk
from litz.tiles.program import Const, Dot, Op, Value
from litz_plugins import KernelSource

from . import lines as own
from .bodies import BATCH, HEAD, KEY, QUERY
from .lines import LOG2E, PART, ROWS, SHARED, TILE
from .make import AttentionMaker
from .masks import LEAST_SCALED, find_bounds, keeps_least, least_mask
from .operation import SCORE, Attention, Blocks
from .plan import AttentionPlan
from .tiles import LEAST, Tiles, padded, parts

LEAST_POWER = LEAST_SCALED * LOG2E
"""The least score, times LOG2E, but for -inf: the least number of float32 times that would be -inf."""


@dataclass(frozen=True)
class Stored:
    """The buffers of the results. result: (batch, head, query, width); with several parts (part, batch, head, query,
    width), float32. sums, most: without the width: the base-2 logarithm of the sum of exponentials and the greatest
    score in powers of 2, None where nobody wants them. out: with several parts the attention's own result, which the
    last program of a head of the key puts together of all parts; None where a loop does that."""

    result: Buffer
    sums: Buffer | None = None
    most: Buffer | None = None
    out: Buffer | None = None

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """Returns the buffers that the kernel writes."""
        return tuple(each for each in (self.result, self.sums, self.most, self.out) if each is not None)


def write_attention(plan: AttentionPlan, tiles: Tiles, name: str, stored: Stored | None = None) -> KernelSource:
    """Returns the kernel that writes `plan.outputs`: the result, and perhaps logsumexp and maxima, or `stored`. With
    parts the plan's scores are scaled, and queries that may look at no key get 0, as torch's kernels give."""
    if stored is None:
        names = plan.attention.outputs[:3]
        result, *others = (plan.program.buffers[each] if each in plan.outputs else None for each in names)
        assert result is not None
        stored = Stored(result, *others)
    made, what, counters = _Forward(plan, tiles, stored), "attention", None
    if tiles.parts:
        pairs = plan.attention.key.layout.size[:2]
        what, counters = "attention_split", int(pairs[0] * pairs[1]) if stored.out is not None else 0
    return made.kernel(name, plan.symbol(what), f"attention: {tiles}", plan.outputs, counters)


def within_blocks(blocks: Blocks | None, tiles: Tiles) -> Tiles:
    """Returns the tiles, halved until each lies in one block of the mask; or until they are least, of blocks that no
    tile divides."""
    if blocks is None:
        return tiles

    def divisor(tile: int, extent: Expr, count: Expr) -> int:
        while count != 1 and extent.is_Integer and int(extent) % tile and tile > LEAST:
            tile //= 2
        return tile

    rows = divisor(tiles.rows, blocks.queries, blocks.counts.layout.size[2])
    keys = divisor(tiles.keys, blocks.keys, blocks.indices.layout.size[3])
    return Tiles(rows, keys, tiles.warps if rows == tiles.rows else min(tiles.warps, 4), tiles.stages)


class _Forward(AttentionMaker):
    attention: Attention

    def __init__(self, plan: AttentionPlan, tiles: Tiles, stored: Stored) -> None:
        self.few, self.stored = tiles.parts > 0, stored
        self.apart = self.hides = not self.few
        widths = [(padded(width),) if self.few else parts(width) for width in plan.widths]
        super().__init__(plan, tiles, plan.attention.blocks, plan.naming, widths)
        scale, factor, score = float(plan.attention.scale), plan.bodies.factor, plan.bodies.score
        self.first = self.few or (score is not None and keeps_least(plan.attention, score))
        """Is the greatest score subtracted before the factor? Masks of softmaxes that are written out are the least
        number there is, which times the factor is -inf: a row of nothing else has even weights all the same. It costs
        a subtraction a score."""
        # The scale is part of the exponent's factor, unless that is not above 0. Of few queries both go before, as what
        # parts are put together by counts in powers of 2.
        if self.few:
            self.times, self.factor = scale if score is not None else scale * LOG2E, 1.0
        else:
            self.times, self.factor = (1.0, factor * LOG2E) if factor > 0 else (scale, LOG2E)
        self.scores = Value("scores", torch.float32, TILE)
        self.state = Value("maximum", torch.float32, ROWS), Value("total", torch.float32, ROWS)
        self.sums = [Value(f"accumulator{e.number}", torch.float32, ROWS | {e.name}) for e in self.across]

    def lines(self) -> None:
        """Adds the lines."""
        attention, bodies, put = self.attention, self.bodies, self.put
        for name, ref, head in (
            ("query", attention.query, HEAD),
            ("key", attention.key, SHARED),
            ("value", attention.value, SHARED),
        ):
            self._begins(name, ref, head)
        self.queries = [self._load(f"query{d.number}", attention.query, self.rows, d) for d in self.depth]
        self._hoist(BATCH, HEAD, QUERY)
        for value, number in ((self.state[0], -math.inf), *((each, 0.0) for each in (self.state[1], *self.sums))):
            put(own.Begin(value, number))
        bounds = find_bounds(bodies.mask, QUERY, KEY)
        seen = find_bounds(least_mask(bodies.score) if self.first else None, QUERY, KEY)
        self._walk(self._step, bounds, seen, self.state)
        self._results()

    def _step(self, masked: bool) -> None:
        """The lines for one tile of keys."""
        plan, put, attention, maker = self.plan, self.put, self.attention, self.maker
        if (score := self.bodies.load_of(SCORE)) is not None:
            maker.values[score] = replace(self.scores, dtype=score.dtype)
        if self.few:  # what bodies load is on its way while the keys are waited for
            loads = [node for node in self.bodies.loop.loads if node.buffer != SCORE]
            maker.compute(node for node in loads if all(each.op != "load" or each in loads for each in walk(node)))
        for d, query in zip(self.depth, self.queries, strict=True):
            key = self._load(f"key{d.number}", attention.key, d, self.walked)
            self._product("scores", query, key, new=not d.number)
        if self.times != 1.0:
            put(Op(self.scores, "mul", (self.scores, Const(self.times, torch.float32)), "times"))
        self._body(masked)
        greatest, smaller = (Value(name, torch.float32, ROWS) for name in ("greatest", "smaller"))
        weights = Value("weights", torch.float32, TILE)
        put(own.Weights((greatest, weights, smaller), self.scores, self.state, self.factor, self.first))
        rounded = [Value("rounded", plan.dtype, TILE)]
        put(Op(rounded[0], "cast", (weights,), "narrow"))
        if attention.doubled:
            rounded.append(Value("rest", plan.dtype, TILE))
            put(Op(rounded[1], "sub", (weights, rounded[0]), "rest"))
        for e, total in zip(self.across, self.sums, strict=True):
            value = self._load(f"value{e.number}", attention.value, self.walked, e)
            put(Op(total, "mul", (total, smaller), "times_row"))
            for part in rounded:
                put(Dot(total, part, value, plan.precision))
        self._next(self.state[0], greatest)

    def _body(self, masked: bool) -> None:
        """Adds what becomes of the scores; -inf where no key is looked at."""
        score, maker = self.bodies.score, self.maker
        if score is not None:
            maker.compute([score])
        shown = self._shown(masked)
        if score is not None:
            self._next(self.scores, maker.spread(score, TILE))
            if self.few:
                # A mask of the least number there is leaves even weights where it leaves no key, and -inf leaves none.
                numbers = Const(LOG2E, torch.float32), Const(LEAST_POWER, torch.float32)
                self.put(Op(self.scores, "maximum", (self.scores, *numbers), "powers"))
        if shown:
            self.put(own.Hidden(self.scores, shown, Const(-math.inf, torch.float32)))

    # Results.

    def _results(self) -> None:
        """A row without a key gives 0 (or 0 / 0), and -inf as its logsumexp and maximum, both of which count in powers
        of 2."""
        put, stored, outer = self.put, self.stored, (PART,) if self.config.parts > 1 else ()

        def lies(buffer: Buffer) -> TensorRef:
            return TensorRef(buffer.name, Layout(buffer.layout.size, buffer.layout.stride))

        divisor = Value("divisor", torch.float32, ROWS)
        op, form = ("same", "sum") if math.isnan(self.attention.nothing) else ("where", "some")
        put(Op(divisor, op, (self.state[1],), form))
        self._begins("out", lies(stored.result), HEAD, *outer)
        for e, total in zip(self.across, self.sums, strict=True):
            value = replace(total, text=f"result{e.number}", dtype=stored.result.dtype)
            put(Op(value, "div", (total, divisor), "quotient"))
            self._store("out", lies(stored.result), value, self.rows, e, outer=outer)
        for kind, op, buffer in (("log2", "log2", stored.sums), ("most", "maximum", stored.most)):
            if buffer is not None:
                value = Value(kind, torch.float32, ROWS)
                put(Op(value, op, (*self.state, Const(self.factor, torch.float32)), kind))
                self._begins(kind, lies(buffer), HEAD, *outer)
                self._store(kind, lies(buffer), value, self.rows, outer=outer)
        if stored.out is not None:
            assert stored.sums is not None
            (across,) = self.across
            whole = self._access(lies(stored.out), (self.rows, across))
            made = self._access(lies(stored.result), (self.rows, across), PART)
            put(own.Merge(made, self._access(lies(stored.sums), (self.rows,), PART), whole, self.rows, across))
