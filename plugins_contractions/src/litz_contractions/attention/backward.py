"""The kernels of attention's backward: in, an `AttentionBackward` and a tile; out, two TilePrograms, and the
`KernelSource`s that are printed from them.

The first has a program for each tile of queries, which walks the keys: the gradient of the query, and on the way

    delta = sum over e of out * grad_out  -  grad_logsumexp / log(2)

The second, launched after it, has a program for each tile of keys, which walks the queries of all heads (and batches)
that share these keys: the gradients of key and value. So no sum is made by atomics, results repeat bit for bit, and
no score is ever in memory: both kernels compute scores and weights anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import sympy
import torch

from litz.ir import Node, Range, TensorRef
from litz.ir.dtypes import short
from litz.ir.index import ONE, ZERO, Symbol, floordiv, to_expr
from litz.targets.triton.indices import index_type_of
from litz.targets.triton.text import size_text
from litz.tiles.names import name_all
from litz.tiles.program import Access, Const, Dot, Inside, Line, Load, Op, Operand, Store, Value
from litz.tiles.shape import Axis, Tiling
from litz_plugins import KernelSource

from ..module import position_type, write_module
from ..products.lines import Scaled, Side
from . import lines as own
from .arithmetic import ScoreMaker, apart_positions
from .bodies import AT, BATCH, HEAD, KEY, QUERY
from .lines import LOG2E, ROWS, SHARED, TILE
from .near import near_forms
from .operation import GRADIENT, SCORE, AttentionBackward, Blocks
from .plan import SharedPlan, access_of
from .print import SLOPES
from .print_backward import BackwardPrinter
from .tiles import Tiles, padded

WIDTHS = {name: Symbol(name, integer=True, nonnegative=True) for name in ("depth", "width")}
"""The elements of a key and of a value."""


@dataclass(frozen=True)
class BackwardPlan(SharedPlan):
    """The plan of both kernels of one backward. delta: what the first hands to the second, float32 (B, H, Q)."""

    attention: AttentionBackward
    delta: TensorRef

    @property
    def shares_keys(self) -> bool:
        """Returns whether all batches of queries share one batch of keys and values."""
        query, key = (ref.layout.size[0] for ref in (self.attention.query, self.attention.key))
        return key == 1 and query != 1

    def output(self, number: int) -> TensorRef | None:
        """Returns the reference to a gradient (0: query, 1: key, 2: value) as it lies; None if nobody wants it."""
        name = self.outputs[number]
        return None if name is None else TensorRef(name, self.program.buffers[name].layout)


class _Maker:
    """What both kernels have in common: a step of the walk, from scores to their gradients.

    holds: "query" or "key", what a program has a tile of. tells_outside: must what is walked beyond the end be told
    from the rest?
    """

    holds: str
    tells_outside = True
    written: tuple[TensorRef | None, ...]

    def __init__(self, plan: BackwardPlan, tile: Tiles, blocks: Blocks | None, refs: Sequence[TensorRef | None]):
        """blocks: of the mask that is walked. refs: what the kernel reads and writes beside what both do."""
        self.plan, self.attention, self.bodies, self.config = plan, plan.attention, plan.bodies, tile
        attention, loop, buffers, self.blocks = plan.attention, plan.bodies.loop, plan.program.buffers, blocks
        self.batches, self.heads, queries, _ = attention.query.layout.size
        size = {"query": (QUERY, queries, tile.rows), "key": (KEY, attention.key.layout.size[2], tile.keys)}
        sides = []
        for axis, which in zip("yx", ("query", "key") if self.holds == "query" else ("key", "query")):
            var, extent, block = size[which]
            grain = None if blocks is None else blocks.queries if which == "query" else blocks.keys
            sides.append(own.Cut(axis, (Range(var, extent),), block, grain=grain))
        self.rows, self.walked = sides
        self.widths = {
            name: Axis(name, (Range(WIDTHS[name], to_expr(width)),), padded(width))
            for name, width in zip(WIDTHS, plan.widths)
        }
        tables = [] if blocks is None else blocks.tables
        operands = [attention.query, attention.key, attention.value, attention.grad_out, attention.logsumexp]
        self.refs = [ref for ref in (*operands, *self.read, *tables, plan.delta, *refs) if ref is not None]
        inside = [node.buffer for node in loop.loads if node.buffer not in (SCORE, GRADIENT)]
        touched = list(dict.fromkeys([*(ref.buffer for ref in self.refs), *inside]))
        spans = [*(buffers[name].layout.span for name in touched), *(ref.layout.span for ref in self.refs)]
        sizes = [self.rows.size, self.walked.size]
        layouts = [e for ref in self.refs for e in (*ref.layout.size, *ref.layout.stride, ref.layout.offset)]
        grains = [side.grain for side in sides if side.grain is not None]
        exprs = [*spans, *sizes, *grains, *layouts, *loop.expressions, self.batches, self.heads]
        variables = {BATCH: "batch", HEAD: "head", self.rows.ranges[0].var: "y0", self.walked.ranges[0].var: "x0"}
        self.names = name_all(touched, variables, exprs)
        self.index_type, self.limits = index_type_of([*spans, *sizes], bool(self.names.sizes))
        self.maker = ScoreMaker(loop, buffers, self._tiling(*sides), position_type(self.index_type))
        self.maker.near = near_forms(plan.dtype, plan.bodies.score, plan.bodies.factor, plan.bodies.gradient)
        self.maker.apart = apart_positions(loop, self.walked.ranges[0].var)
        self.put, self.late = self.maker.put, plan.bodies.late
        self.extents = {**dict(zip(AT, attention.size)), **loop.extents, SHARED: attention.key.layout.size[1]}
        self.extents |= {WIDTHS[name]: axis.size for name, axis in self.widths.items()}
        widths = {var: name for name, var in WIDTHS.items()}
        self.variables = {**self.names.variables, SHARED: "shared", **widths, **own.PLACES}
        self.weights, self.delta = Value("weights", torch.float32, TILE), Value("delta", torch.float32, ROWS)

    @property
    def read(self) -> Sequence[TensorRef | None]:
        """Returns what this kernel reads beside what both do."""
        return ()

    def _tiling(self, *axes: Axis) -> Tiling:
        return Tiling(axes, self.config.warps, pieces=self.pieces)

    @property
    def pieces(self) -> tuple[Range, ...]:
        """Returns the batches and heads that programs share out."""
        return Range(BATCH, self.batches), Range(HEAD, self.heads)

    def source(self, name: str) -> KernelSource:
        """Returns the kernel."""
        config, written, maker = self.config, {ref.buffer for ref in self.written if ref is not None}, self.maker
        lines = maker.block(self.lines)
        grid = (self.rows.tiles, *(r.size for r in reversed(self.pieces)), *(ONE,) * (2 - len(self.pieces)))
        program = own.Programs(lines, self.pieces[-1].size, self.attention.group, self.holds == "query")
        names = replace(self.names, variables=self.variables)
        made = maker.program(program, names, self.extents, self.limits)
        what, static = "dq" if self.holds == "query" else "dkdv", all(size.is_Integer for size in grid)
        texts = " * ".join(f"({size_text(size, self.names.sizes)})" for size in grid)
        return write_module(
            name,
            f"litz_attention_{what}_{short(self.plan.dtype)}_{config.rows}x{config.keys}",
            f"attention's backward, {what}: {config}",
            BackwardPrinter.lines_of(made),
            made,
            self.plan.program,
            written,
            config,
            int(sympy.prod(grid)) if static else texts,
        )

    def lines(self) -> None:
        """Adds the lines."""
        raise NotImplementedError

    # Operands and results.

    @property
    def scales_early(self) -> bool:
        """Are gradients of scores scaled before they are rounded? As eager does; in float16 they may not fit else."""
        return self.plan.dtype == torch.float16

    @property
    def scale(self) -> Const:
        """The number that scores are scaled by."""
        return _number(float(self.attention.scale))

    def _begins(self, name: str, ref: TensorRef, head: Symbol) -> None:
        self.put(own.Begins(name, access_of(ref, (BATCH, head), (ZERO,) * len(ref.layout.size[2:]))))

    def _access(self, ref: TensorRef, rows: own.Cut, columns: str = "") -> Access:
        var = rows.ranges[0].var
        head = SHARED if var == KEY else HEAD
        inner, axes = (var, *(WIDTHS[each] for each in [columns] if each)), {rows.name, *([columns] if columns else [])}
        return access_of(ref, (BATCH, head), inner, frozenset(axes))

    def _side(self, name: str, rows: own.Cut, columns: str, line: Line) -> None:
        self.put(Side(name, self._tiling(rows, self.widths[columns]), self.variables, self.extents, (line,)))

    def _masks(self, rows: own.Cut, columns: str) -> tuple[Inside, ...]:
        return tuple(Inside(axis.name) for axis in (rows, self.widths[columns]) if axis.masked)

    def _load(self, name: str, ref: TensorRef, rows: own.Cut, columns: str) -> Value:
        """Adds the load of a matrix's tile."""
        access = self._access(ref, rows, columns)
        value = Value(name, self.plan.dtype, access.axes)
        self._side(name, rows, columns, Load(value, access, self._masks(rows, columns), zero=True))
        return value

    def _store(self, name: str, ref: TensorRef, columns: str, total: Value, scaled: bool) -> None:
        """Adds the store of a gradient of what the program has a tile of."""
        self._begins(f"{name}result", ref, HEAD if self.holds == "query" else SHARED)
        value = replace(total, dtype=self.plan.program.buffers[ref.buffer].dtype)
        if scaled and not self.scales_early:
            value = replace(value, text=f"{total.text}scaled")
            self.put(Op(value, "mul", (total, self.scale), "product"))
        masks = tuple(self._stored if mask == Inside("y") else mask for mask in self._masks(self.rows, columns))
        access = self._access(ref, self.rows, columns)
        self._side(f"{name}result", self.rows, columns, Store(access, value, masks, "set", access.axes))

    @property
    def _stored(self) -> Inside:
        """The mask of the rows that this program stores."""
        return own.InBlock("y") if self.rows.is_cut else Inside("y")

    def _numbers(self, name: str, ref: TensorRef, number: float, opposite: bool = False) -> Value:
        """Adds the load of a number for each query."""
        axis = self.rows if self.holds == "query" else self.walked
        value, access = Value(name, torch.float32, frozenset(axis.name)), self._access(ref, axis)
        self.put(own.Numbers(value, access, (Inside(axis.name),) * axis.masked, number, axis.name, opposite))
        return value

    def _logsumexp(self) -> Value:
        """To the base of 2. Infinite for a query that looks at nothing, or that there is none of: its weights are 0.
        Where only the mask decides what is looked at, it decides here too, and no other query has -inf."""
        return self._numbers("logsumexp", self.attention.logsumexp, math.inf, self.bodies.score is not None)

    # The walk.

    def _walk(self, step: Callable[[bool], None]) -> None:
        """Over what is walked, with the lines of `step(masked)`. masked: does the mask say more than the lists do?"""
        blocks, masked, put = self.blocks, self.bodies.mask is not None, self.put
        if blocks is not None:
            assert self.rows.grain is not None and self.walked.grain is not None
            lists = [(masked, blocks.counts, blocks.indices)]
            if blocks.full_counts is not None and blocks.full_indices is not None:
                lists.append((False, blocks.full_counts, blocks.full_indices))
            for with_mask, counts, indices in lists:
                body = self.maker.inner(partial(step, with_mask))
                put(own.Listed(counts, indices, self.rows.grain, self.walked.grain, self.maker.tiling, body))
            return
        walked, size, block = self.walked, self.walked.size, self.walked.block
        if not walked.masked:
            put(own.Over("every", self.maker.tiling, self.maker.inner(partial(step, masked))))
            return
        put(own.Limits("all"))
        if floordiv(size, sympy.Integer(block)) != 0:
            self._use(replace(walked, inner=True))
            put(own.Over("whole", self.maker.tiling, self.maker.inner(partial(step, masked))))
            self._use(walked)
        put(own.Over("rest", self.maker.tiling, self.maker.inner(partial(step, masked))))

    def _use(self, walked: own.Cut) -> None:
        self.walked, self.maker.tiling = walked, self._tiling(self.rows, walked)

    def _hoist(self, *fixed: Symbol) -> None:
        self.maker.hoist((self.bodies.mask, self.bodies.score, self.bodies.gradient), self.late, fixed)

    def _body_value(self, stand_in: str, value: Value, body: Node) -> Operand:
        """Adds what a body makes of a stand-in's value."""
        node = self.bodies.load_of(stand_in)
        if node is not None:
            self.maker.values[node] = replace(value, dtype=node.dtype)
        self.maker.compute([body])
        return self.maker.spread(body, TILE)

    def _shown(self, masked: bool) -> tuple[Operand | Inside, ...]:
        """What has to hold for an element of the tile to count."""
        found: list[Operand | Inside] = []
        if masked and self.bodies.mask is not None:
            self.maker.compute([self.bodies.mask])
            found.append(self.maker.spread(self.bodies.mask, TILE))
        found += [own.InBlock("x")] * self.walked.is_cut
        found += [Inside("x")] * (self.walked.masked and self.tells_outside)
        return tuple(found)

    def _product(self, name: str, left: Value, right: Value) -> Value:
        """Adds the product of a tile of rows and one of what is walked."""
        turned = replace(right, text=f"{right.text}turned")
        value = Value(name, torch.float32, TILE)
        self.put(Op(turned, "same", (right,), "turned"))
        self.put(Dot(value, left, turned, self.plan.precision, new=True))
        return value

    def _weights(self, left: Value, right: Value, logsumexp: Value, masked: bool) -> bool:
        """Adds `weights` from queries and keys. Does anything have to hold for an element to count?"""
        bodies, shown = self.bodies, self._shown(masked)
        products = self._product("products", left, right)
        score = products if bodies.score is None else self._body_value(SCORE, products, bodies.score)
        if bodies.score is None and (node := bodies.load_of(SCORE)) is not None:
            self.maker.values[node] = replace(products, dtype=node.dtype)
        self.put(Op(self.weights, "exp2", (score, _number(bodies.factor * LOG2E), logsumexp), "weight"))
        if shown:
            live = Value("live", torch.bool, TILE)
            self.put(own.Shown(live, shown))
            self.put(own.Hidden(self.weights, (live,), _number(0.0)))
        return bool(shown)

    def _gradients(self, slopes: tuple[Value, ...], delta: Value, shown: bool) -> Value:
        """Adds `gradients`, of the raw scores, in the operands' type."""
        put, body, found = self.put, self.bodies.gradient, Value("gradients", torch.float32, TILE)
        put(Op(found, "mul", (self.weights, *(slopes or (_number(0.0),)), delta), "slope"))
        if body is not None:
            put(own.Next(found, self._body_value(GRADIENT, found, body)))
        if shown:
            # What does not count has a weight of 0, but perhaps a gradient of NaN. To keep `live` would take more.
            put(Op(found, "where", (self.weights, found), "alive"))
        if self.scales_early:
            put(Op(found, "mul", (found, self.scale), "times"))
        rounded = replace(found, dtype=self.plan.dtype)
        put(Op(rounded, "cast", (found,), "narrow"))
        return rounded


class QueryGradient(_Maker):
    """The kernel that writes the query's gradient and delta."""

    holds = "query"

    def __init__(self, plan: BackwardPlan, tile: Tiles) -> None:
        self.result, self.written = plan.output(0), (plan.delta, plan.output(0))
        super().__init__(plan, tile, plan.attention.blocks, self.written)

    @property
    def read(self) -> Sequence[TensorRef | None]:
        """Returns what this kernel reads beside what both do."""
        return self.plan.attention.out, self.plan.attention.grad_logsumexp

    def lines(self) -> None:
        """Adds the lines."""
        attention, put = self.attention, self.put
        for name, ref in (("query", attention.query), ("grad", attention.grad_out), ("out", attention.out)):
            if ref is not None:
                self._begins(name, ref, HEAD)
        self._begins("key", attention.key, SHARED)
        self._begins("value", attention.value, SHARED)
        self.query = self._load("query", attention.query, self.rows, "depth")
        self._begins("logsumexp", attention.logsumexp, HEAD)
        self.logsumexp = self._logsumexp()
        self._delta()
        if self.result is not None:
            self.total = Value("total", torch.float32, ROWS | {"depth"})
            put(own.Begin(self.total))
            self._hoist(BATCH, HEAD, QUERY)
            self._walk(self._step)
            self._store("", self.result, "depth", self.total, True)

    def _delta(self) -> None:
        attention, put, delta = self.attention, self.put, self.delta
        if attention.grad_out is None:
            put(own.Begin(delta))
        else:
            self.grad = self._load("grad", attention.grad_out, self.rows, "width")
            put(own.RowProduct(delta, self._load("out", attention.out, self.rows, "width"), self.grad))
        if attention.grad_logsumexp is not None:
            self._begins("slope", attention.grad_logsumexp, HEAD)
            slope = self._numbers("slope", attention.grad_logsumexp, 0.0)
            put(Scaled(delta, slope, _number(LOG2E), less=True))
        self._begins("delta", self.plan.delta, HEAD)
        access = self._access(self.plan.delta, self.rows)
        put(Store(access, delta, (self._stored,) * self.rows.masked, "set", ROWS))

    def _step(self, masked: bool) -> None:
        attention = self.attention
        slopes: tuple[Value, ...] = ()
        key = self._load("key", attention.key, self.walked, "depth")
        shown = self._weights(self.query, key, self.logsumexp, masked)
        if attention.grad_out is not None:
            value = self._load("value", attention.value, self.walked, "width")
            slopes = (self._product(SLOPES, self.grad, value),)
        self.put(Dot(self.total, self._gradients(slopes, self.delta, shown), key, self.plan.precision))


class KeyGradients(_Maker):
    """The kernel that writes the gradients of key and value."""

    holds = "key"

    def __init__(self, plan: BackwardPlan, tile: Tiles) -> None:
        self.written = plan.output(1), plan.output(2)
        super().__init__(plan, tile, plan.attention.transposed, self.written)

    @property
    def tells_outside(self) -> bool:  # type: ignore[override]
        """A query beyond the end has scores of 0 and weights of 0, unless a body makes something of them, NaN say."""
        return self.bodies.score is not None or self.bodies.gradient is not None

    @property
    def pieces(self) -> tuple[Range, ...]:
        """Returns the batches and heads that programs share out."""
        batches = () if self.plan.shares_keys else (Range(BATCH, self.batches),)
        return *batches, Range(SHARED, self.attention.key.layout.size[1])

    def lines(self) -> None:
        """Adds the lines."""
        attention, plan, put, group = self.attention, self.plan, self.put, self.attention.group
        self.own_tiles: dict[str, Value] = {}
        for name, ref, columns in (("key", attention.key, "depth"), ("value", attention.value, "width")):
            self._begins(name, ref, SHARED)
            self.own_tiles[name] = self._load(name, ref, self.rows, columns)
        self.totals: dict[str, Value] = {}
        for name, result, columns in zip(("key", "value"), self.written, ("depth", "width"), strict=True):
            if result is not None:
                self.totals[name] = Value(f"{name}total", torch.float32, ROWS | {columns})
                put(own.Begin(self.totals[name]))
        self._hoist(KEY, *() if plan.shares_keys else (BATCH,))
        put(own.Turns(group, self.batches if plan.shares_keys else ONE, self.maker.inner(self._head)))
        for name, result, columns in zip(("key", "value"), self.written, ("depth", "width"), strict=True):
            if result is not None:
                self._store(name, result, columns, self.totals[name], name == "key")

    def _head(self) -> None:
        """What is done for a head of the query that shares the program's keys."""
        attention = self.attention
        for name, ref in (
            ("query", attention.query),
            ("grad", attention.grad_out),
            ("logsumexp", attention.logsumexp),
            ("delta", self.plan.delta),
        ):
            if ref is not None:
                self._begins(name, ref, HEAD)
        self._hoist(BATCH, HEAD, KEY)
        self._walk(self._step)

    def _step(self, masked: bool) -> None:
        """The tile of scores is transposed here: its rows are keys."""
        attention, put, precision = self.attention, self.put, self.plan.precision
        slopes: tuple[Value, ...] = ()
        query = self._load("query", attention.query, self.walked, "depth")
        shown = self._weights(self.own_tiles["key"], query, self._logsumexp(), masked)
        if attention.grad_out is not None:
            grad = self._load("grad", attention.grad_out, self.walked, "width")
            if "value" in self.totals:
                rounded = replace(self.weights, text="rounded", dtype=self.plan.dtype)
                put(Op(rounded, "cast", (self.weights,), "narrow"))
                put(Dot(self.totals["value"], rounded, grad, precision))
        if "key" in self.totals:
            delta = self._numbers("delta", self.plan.delta, 0.0)
            if attention.grad_out is not None:
                slopes = (self._product(SLOPES, self.own_tiles["value"], grad),)
            put(Dot(self.totals["key"], self._gradients(slopes, delta, shown), query, precision))


def _number(value: float) -> Const:
    return Const(value, torch.float32)
