"""The kernel of attention: in, an `AttentionPlan` and `Tiles`; out, its TileProgram, and the `KernelSource` that is
printed from it.

A program has a tile of queries of one head and walks over tiles of keys, with the softmax's maximum and sum so far of
each row: what was added up before is scaled down when a greater score comes (Milakov and Gimelshein, 2018; Dao et al.,
2022). No score is ever in memory. What becomes of a score are core's own lines (`litz.tiles.make`), on a tile whose
axis y are the queries and whose axis x are the keys; what does not vary along the keys is computed before.

With `Blocks` the walk goes over the listed blocks of keys: with the mask over those that are partly masked, without it
over the full ones. Without, the bounds that a mask's comparisons say (`masks.py`) tell which tiles need it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import torch

from litz.ir import Layout, Range, TensorRef
from litz.ir.index import Expr, Symbol, floordiv, to_expr
from litz.targets.triton.text import size_text
from litz.tiles.program import Const, Dot, Inside, Line, Load, Op, Operand, Store, TileProgram, Value
from litz.tiles.shape import Axis, Tiling
from litz_plugins import KernelSource

from ..module import Unsuitable, counted, write_module
from ..products.lines import Side
from . import lines as own
from .lines import LOG2E, ROWS, TILE
from .masks import find_bounds, keeps_least, least_mask
from .operation import SCORE, Blocks
from .plan import AttentionPlan, B, H, K, Q, access_of
from .print import ForwardPrinter
from .tiles import LEAST, Tiles, parts


def head_parts(name: str, width: int) -> tuple[own.Part, ...]:
    """Returns the parts of a head of `width` elements; their names begin with `name`."""
    sizes = parts(width)
    found = enumerate(zip(accumulate(sizes, initial=0), sizes))

    def part(number: int, start: int, block: int) -> own.Part:
        var = Symbol(f"{name}{number}", integer=True, nonnegative=True)
        return own.Part(f"{name}{number}", (Range(var, to_expr(min(block, width - start))),), block, start=start)

    return tuple(part(number, start, block) for number, (start, block) in found)


def write_attention(plan: AttentionPlan, tiles: Tiles, name: str) -> KernelSource:
    """Returns the kernel that writes `plan.outputs`: the result, and perhaps logsumexp and maxima. Unsuitable where a
    tile may be part of two blocks."""
    made = _Forward(plan, tiles).tiles()
    batch, heads, rows, _ = (size_text(size, plan.names.sizes) for size in plan.attention.size)
    grid = f"(-(-{rows} // {tiles.rows})) * {heads} * {batch}"
    return write_module(
        name,
        plan.symbol("attention"),
        f"attention: {tiles}",
        ForwardPrinter.lines_of(made),
        made,
        plan.program,
        plan.outputs,
        tiles,
        counted(grid, not plan.names.sizes),
    )


def check_blocks(blocks: Blocks | None, tiles: Tiles) -> None:
    """Raises Unsuitable unless each tile lies in one block of the mask. One block for all fits any tile."""
    if blocks is None:
        return
    sides = ((blocks.queries, tiles.rows, blocks.counts, 2), (blocks.keys, tiles.keys, blocks.indices, 3))
    for extent, tile, listed, dim in sides:
        if not extent.is_Integer:
            raise Unsuitable("a mask whose blocks are not of a constant size")
        if int(extent) % tile and listed.layout.size[dim] != 1:
            raise Unsuitable(f"a mask of blocks of {extent}, of which {tile} is not a divisor")


def within_blocks(blocks: Blocks | None, tiles: Tiles) -> Tiles:
    """Returns the tiles, halved until each lies in one block of the mask. Raises Unsuitable if none do."""
    if blocks is None or not (blocks.queries.is_Integer and blocks.keys.is_Integer):
        check_blocks(blocks, tiles)
        return tiles

    def divisor(tile: int, extent: Expr, count: Expr) -> int:
        while count != 1 and int(extent) % tile and tile > LEAST:
            tile //= 2
        return tile

    rows = divisor(tiles.rows, blocks.queries, blocks.counts.layout.size[2])
    keys = divisor(tiles.keys, blocks.keys, blocks.indices.layout.size[3])
    found = Tiles(rows, keys, tiles.warps if rows == tiles.rows else min(tiles.warps, 4), tiles.stages)
    check_blocks(blocks, found)
    return found


class _Forward:
    def __init__(self, plan: AttentionPlan, tiles: Tiles) -> None:
        self.plan, self.sizes, self.attention = plan, tiles, plan.attention
        check_blocks(plan.attention.blocks, tiles)
        self.rows = Axis("y", (Range(Q, plan.attention.size[2]),), tiles.rows)
        self.maker = plan.maker(self._tiling(self.rows, self._keys(False)))
        self.put = self.maker.put
        self.names = replace(plan.names, variables={**plan.names.variables, **own.PLACES})
        self.depth, self.across = head_parts("d", plan.widths[0]), head_parts("e", plan.widths[1])
        self.folded = plan.bodies.factor > 0
        """Is the scale part of the exponent's factor?"""
        self.factor = (plan.bodies.factor if self.folded else 1.0) * LOG2E
        self.subtracts_first = plan.bodies.score is not None and keeps_least(plan.attention, plan.bodies.score)
        """Is the greatest score subtracted before the factor? Masks of softmaxes that are written out are the least
        number there is, which times the factor is -inf: a row of nothing else has even weights all the same. It costs
        a subtraction a score."""
        self.extents = {
            **dict(zip((B, H, Q, K), plan.attention.size)),
            **plan.bodies.loop.extents,
            **{e.var: to_expr(e.end) for e in (*self.depth, *self.across)},
        }
        self.scores = Value("scores", torch.float32, TILE)
        self.state = Value("maximum", torch.float32, ROWS), Value("total", torch.float32, ROWS)
        self.sums = [Value(f"accumulator{e.number}", torch.float32, ROWS | {e.name}) for e in self.across]

    def _tiling(self, *axes: Axis) -> Tiling:
        batch, heads = self.plan.attention.size[:2]
        return Tiling(axes, self.sizes.warps, pieces=(Range(B, batch), Range(H, heads)))

    def _keys(self, beyond: bool) -> own.Keys:
        return own.Keys("x", (Range(K, self.plan.attention.size[3]),), self.sizes.keys, beyond)

    def tiles(self) -> TileProgram:
        """Returns the TileProgram."""
        plan, maker = self.plan, self.maker

        def body() -> None:
            query = self.attention.query
            for d in self.depth:
                self._load(f"query{d.number}", query, (self.rows, d), (H, Q))
            self.maker.hoist((plan.bodies.score, plan.bodies.mask), plan.bodies.late, (B, H, Q))
            for value, number in ((self.state[0], -math.inf), *((each, 0.0) for each in (self.state[1], *self.sums))):
                self.put(own.Begin(value, number))
            self._walks()
            self._results()

        line = own.Programs(maker.block(body), plan.attention.size[1], back=True)
        return maker.program(line, self.names, self.extents, plan.limits)

    def _side(self, name: str, axes: Sequence[Axis], line: Line) -> None:
        """Adds a load or store of a tile of rows or keys by a part of a head."""
        parts = {axis.var: axis.name for axis in axes if isinstance(axis, own.Part)}
        self.put(Side(name, self._tiling(*axes), {**self.names.variables, **parts}, self.extents, (line,)))

    def _load(self, name: str, ref: TensorRef, axes: Sequence[Axis], at: tuple[Expr, Symbol]) -> None:
        """Adds the load of an operand. at: the head, and the position of a row or key."""
        (part,) = (axis for axis in axes if isinstance(axis, own.Part))
        access = access_of(ref, (B, at[0]), (at[1], part.var), frozenset(axis.name for axis in axes))
        masks = tuple(
            Inside(axis.name) for axis in sorted(axes, key=lambda axis: isinstance(axis, own.Part)) if axis.masked
        )
        value = Value(name, self.plan.dtype, access.axes)
        self._side(name.rstrip("0123456789"), axes, Load(value, access, masks, zero=True))

    @property
    def _shared_head(self) -> Expr:
        """The number of the key's head that the program's head of the query reads."""
        heads = self.attention.query.layout.size[1]
        return floordiv(H, floordiv(heads, self.attention.key.layout.size[1]), {H: heads})

    # Over the keys.

    def _walks(self) -> None:
        """Over listed blocks, between the mask's bounds, or over all keys."""
        plan, blocks, keys = self.plan, self.attention.blocks, self.plan.attention.size[3]
        # May the last tile reach beyond the last key?
        uneven = not (keys.is_Integer and int(keys) % self.sizes.keys == 0)
        if blocks is not None:
            self._listed(blocks, blocks.counts, blocks.indices, True)
            if blocks.full_counts is not None and blocks.full_indices is not None:
                self._listed(blocks, blocks.full_counts, blocks.full_indices, False)
            return
        bounds = find_bounds(plan.bodies.mask, Q, K)
        seen = find_bounds(least_mask(plan.bodies.score) if self.subtracts_first else None, Q, K)
        if bounds:
            self.put(own.Limits("between", bounds.lower, bounds.upper, bounds.exact))
            # In the order of keys, ptxas would wait after each instruction of the tensor cores (CUDA 12.8, causal
            # masks).
            if not bounds.exact:
                self._over("within", True, uneven)
                return
            if bounds.lower:
                self._over("enter", True, uneven)
            if bounds.upper or uneven:
                self._over("leave", True, uneven)
            self._over("open", False, False)
        elif seen.upper:
            # What is masked weighs nothing beside any other score, but in a row of nothing else all keys count.
            self.put(own.Limits("seen", upper=seen.upper))
            self._over("seen", True, uneven)
            self._over("unseen", True, uneven)
        else:
            self.put(own.Limits("all"))
            if not keys.is_Integer or int(keys) >= self.sizes.keys:
                self._over("whole", True, False)
            if uneven:
                self._over("rest", True, True)

    def _over(self, which: str, with_mask: bool, beyond: bool) -> None:
        body = self._step(with_mask, beyond)
        self.put(own.Over(which, self.maker.tiling, body, self.state if which == "unseen" else ()))

    def _listed(self, blocks: Blocks, counts: TensorRef, indices: TensorRef, with_mask: bool) -> None:
        keys, block = self.plan.attention.size[3], int(blocks.keys)
        whole = bool(keys.is_Integer) and int(keys) % block == 0 and block % self.sizes.keys == 0
        body = self._step(with_mask, not whole)
        self.put(own.Listed(counts, indices, blocks.queries, blocks.keys, self.maker.tiling, body))

    def _step(self, with_mask: bool, beyond: bool) -> tuple[Line, ...]:
        """The lines for one tile of keys. beyond: some keys of the tile may be outside."""
        maker, keys = self.maker, self._keys(beyond)
        maker.tiling = self._tiling(self.rows, keys)
        return maker.inner(lambda: self._attend(keys, with_mask))

    def _attend(self, keys: own.Keys, with_mask: bool) -> None:
        plan, put, attention = self.plan, self.put, self.attention
        for d in self.depth:
            self._load(f"key{d.number}", attention.key, (d, keys), (self._shared_head, K))
            query, key = (Value(f"{name}{d.number}", plan.dtype) for name in ("query", "key"))
            query, key = replace(query, axes=ROWS | {d.name}), replace(key, axes=frozenset((d.name, "x")))
            put(Dot(self.scores, query, key, plan.precision, new=not d.number))
        if not self.folded:
            put(Op(self.scores, "mul", (self.scores, Const(float(attention.scale), torch.float32)), "times"))
        self._body(with_mask, keys.beyond)
        greatest, smaller = (Value(name, torch.float32, ROWS) for name in ("greatest", "smaller"))
        weights, form = Value("weights", torch.float32, TILE), "first" if self.subtracts_first else "scaled"
        put(own.Weights((greatest, weights, smaller), self.scores, self.state, self.factor, form))
        most, rest = Value("most", plan.dtype, TILE), Value("rest", plan.dtype, TILE)
        rounded = (most, rest) if attention.doubled else (replace(most, text="rounded"),)
        put(Op(rounded[0], "cast", (weights,), "narrow" if attention.doubled else "rounded"))
        if attention.doubled:
            put(Op(rest, "sub", (weights, most), "rest"))
        for e, total in zip(self.across, self.sums, strict=True):
            self._load(f"value{e.number}", attention.value, (keys, e), (self._shared_head, K))
            put(Op(total, "mul", (total, smaller), "times_row"))
            value = Value(f"value{e.number}", plan.dtype, frozenset(("x", e.name)))
            for part in rounded:
                put(Dot(total, part, value, plan.precision))
        put(own.Next(self.state[0], greatest))

    def _body(self, with_mask: bool, beyond: bool) -> None:
        """What becomes of the scores; -inf where no key is looked at."""
        plan, maker = self.plan, self.maker
        for node in plan.bodies.loop.loads:
            if node.buffer == SCORE:
                maker.values[node] = replace(self.scores, dtype=node.dtype)
        roots = (plan.bodies.score, plan.bodies.mask if with_mask else None)
        maker.compute(node for node in roots if node is not None)
        looked_at: list[Operand | Inside] = [Inside("x")] * beyond
        if with_mask and plan.bodies.mask is not None:
            looked_at.insert(0, maker.spread(plan.bodies.mask, TILE))
        if plan.bodies.score is not None:
            self.put(own.Next(self.scores, maker.spread(plan.bodies.score, TILE)))
        if looked_at:
            self.put(own.Hidden(self.scores, tuple(looked_at), Const(-math.inf, torch.float32)))

    # Results.

    def _results(self) -> None:
        """A row without a key gives 0 (or 0 / 0), and -inf as its logsumexp and maximum, both of which count in powers
        of 2."""
        attention, plan, put = self.attention, self.plan, self.put
        divisor = Value("divisor", torch.float32, ROWS)
        put(own.Finish(divisor, "total" if math.isnan(attention.nothing) else "some", self.state, self.factor))
        out, *others = attention.outputs
        assert out is not None
        for e, total in zip(self.across, self.sums, strict=True):
            value = replace(total, text=f"result{e.number}", dtype=plan.program.buffers[out].dtype)
            put(Op(value, "div", (total, divisor), "quotient"))
            self._side("out", (self.rows, e), self._stored(out, value, (self.rows, e)))
        for name, kind in zip(others, ("log2", "most")):
            if name is not None and name in plan.outputs:
                value = Value(kind, torch.float32, ROWS)
                put(own.Finish(value, kind, self.state, self.factor))
                put(self._stored(name, value, (self.rows,)))

    def _stored(self, name: str, value: Value, axes: Sequence[Axis]) -> Store:
        layout = self.plan.program.buffers[name].layout
        inner = (Q, *(axis.var for axis in axes if isinstance(axis, own.Part)))
        access = access_of(TensorRef(name, Layout(layout.size, layout.stride)), (B, H), inner, value.axes)
        return Store(access, value, tuple(Inside(axis.name) for axis in axes if axis.masked), "set", value.axes)
