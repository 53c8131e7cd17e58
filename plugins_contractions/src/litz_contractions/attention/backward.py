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
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from litz.ir import Node, TensorRef
from litz.ir.dtypes import short
from litz.ir.index import ONE
from litz.tiles.program import Const, Dot, Inside, Op, Operand, Value
from litz_plugins import KernelSource

from . import lines as own
from .bodies import BATCH, HEAD, KEY, QUERY
from .lines import LOG2E, ROWS, SHARED, TILE
from .make import AttentionMaker
from .operation import GRADIENT, SCORE, AttentionBackward
from .plan import SharedPlan, name_attention
from .tiles import Tiles, padded


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


class _Backward(AttentionMaker):
    """The common part of both kernels: a step of the walk, from scores to their gradients. tells_outside: whether what
    is walked beyond the end must be told from the rest."""

    attention: AttentionBackward
    plan: BackwardPlan
    tells_outside = True

    def __init__(self, plan: BackwardPlan, tile: Tiles, written: Sequence[TensorRef | None], *read: TensorRef | None):
        """read: what the kernel reads beside what both do."""
        attention, queries = plan.attention, self.holds == "query"
        blocks = attention.blocks if queries else attention.transposed
        operands = (attention.query, attention.key, attention.value, attention.grad_out, attention.logsumexp, *read)
        tables, grains = ([], []) if blocks is None else (blocks.tables, [blocks.queries, blocks.keys])
        refs = [ref for ref in (*operands, *tables, plan.delta, *written) if ref is not None]
        naming = name_attention(plan.program, plan.bodies, refs, (), attention.size, grains, QUERY if queries else KEY)
        self.written = [ref.buffer for ref in written if ref is not None]
        super().__init__(plan, tile, blocks, naming, [(padded(width),) for width in plan.widths])
        self.weights, self.delta = Value("weights", torch.float32, TILE), Value("delta", torch.float32, ROWS)
        (self.deep,), (self.wide,) = self.depth, self.across

    def source(self, name: str) -> KernelSource:
        """Returns the kernel."""
        what, tile = "dq" if self.holds == "query" else "dkdv", self.config
        symbol = f"litz_attention_{what}_{short(self.plan.dtype)}_{tile.rows}x{tile.keys}"
        return self.kernel(name, symbol, f"attention's backward, {what}: {tile}", self.written)

    # Operands and results.

    @property
    def scales_early(self) -> bool:
        """Returns whether scores' gradients are scaled before rounding, as in eager: else float16 may not hold them."""
        return self.plan.dtype == torch.float16

    @property
    def scale(self) -> Const:
        """The number that scores are scaled by."""
        return _number(float(self.attention.scale))

    def _result(self, name: str, ref: TensorRef, part: own.Part, total: Value, scaled: bool) -> None:
        """Adds the store of a gradient of what the program has a tile of."""
        self._begins(f"{name}result", ref, HEAD if self.holds == "query" else SHARED)
        value = replace(total, dtype=self.plan.program.buffers[ref.buffer].dtype)
        if scaled and not self.scales_early:
            value = replace(value, text=f"{total.text}scaled")
            self.put(Op(value, "mul", (total, self.scale), "times"))
        self._store(f"{name}result", ref, value, self.rows, part)

    def _numbers(self, name: str, ref: TensorRef, number: float, opposite: bool = False) -> Value:
        """Adds the load of a number for each query."""
        axis = self.rows if self.holds == "query" else self.walked
        value, access = Value(name, torch.float32, frozenset(axis.name)), self._access(ref, (axis,))
        self.put(own.Numbers(value, access, (Inside(axis.name),) * axis.masked, number, axis.name, opposite))
        return value

    def _logsumexp(self) -> Value:
        """To the base of 2. Infinite for a query that looks at nothing, or that there is none of: its weights are 0.
        Where only the mask decides what is looked at, it decides here too, and no other query has -inf."""
        return self._numbers("logsumexp", self.attention.logsumexp, math.inf, self.bodies.score is not None)

    # The walk.

    def _body_value(self, stand_in: str, value: Value, body: Node) -> Operand:
        """Adds what a body makes of a stand-in's value."""
        node = self.bodies.load_of(stand_in)
        if node is not None:
            self.maker.values[node] = replace(value, dtype=node.dtype)
        self.maker.compute([body])
        return self.maker.spread(body, TILE)

    def _weights(self, left: Value, right: Value, logsumexp: Value, masked: bool) -> bool:
        """Adds `weights` from queries and keys. Returns whether anything has to hold for an element to count."""
        bodies, shown = self.bodies, self._shown(masked, self.tells_outside)
        products = self._product("products", left, right, turned=True)
        score = products if bodies.score is None else self._body_value(SCORE, products, bodies.score)
        if bodies.score is None and (node := bodies.load_of(SCORE)) is not None:
            self.maker.values[node] = replace(products, dtype=node.dtype)
        self.put(Op(self.weights, "exp2", (score, _number(bodies.factor * LOG2E), logsumexp), "weight"))
        if shown:
            self.put(own.Hidden(self.weights, shown, _number(0.0)))
        return bool(shown)

    def _gradients(self, slopes: Operand, delta: Value, shown: bool) -> Value:
        """Adds `gradients`, of the raw scores, in the operands' type."""
        put, body, found = self.put, self.bodies.gradient, Value("gradients", torch.float32, TILE)
        put(Op(found, "mul", (self.weights, slopes, delta), "slope"))
        if body is not None:
            self._next(found, self._body_value(GRADIENT, found, body))
        if shown:
            # What does not count has a weight of 0, but perhaps a gradient of NaN. To keep the masks would take more.
            put(Op(found, "where", (self.weights, found), "alive"))
        if self.scales_early:
            put(Op(found, "mul", (found, self.scale), "times"))
        rounded = replace(found, dtype=self.plan.dtype)
        put(Op(rounded, "cast", (found,), "narrow"))
        return rounded


class QueryGradient(_Backward):
    """The kernel that writes the query's gradient and delta."""

    def __init__(self, plan: BackwardPlan, tile: Tiles) -> None:
        self.result = plan.output(0)
        super().__init__(plan, tile, (plan.delta, self.result), plan.attention.out, plan.attention.grad_logsumexp)

    def lines(self) -> None:
        """Adds the lines."""
        attention, put = self.attention, self.put
        for name, ref in (("query", attention.query), ("grad", attention.grad_out), ("out", attention.out)):
            if ref is not None:
                self._begins(name, ref, HEAD)
        self._begins("key", attention.key, SHARED)
        self._begins("value", attention.value, SHARED)
        self.query = self._load("query", attention.query, self.rows, self.deep)
        self._begins("logsumexp", attention.logsumexp, HEAD)
        self.logsumexp = self._logsumexp()
        self._delta()
        if self.result is not None:
            self.total = Value("total", torch.float32, ROWS | {self.deep.name})
            put(own.Begin(self.total))
            self._hoist(BATCH, HEAD, QUERY)
            self._walk(self._step)
            self._result("", self.result, self.deep, self.total, True)

    def _delta(self) -> None:
        attention, put, delta = self.attention, self.put, self.delta
        if attention.grad_out is None:
            put(Op(delta, "same", (replace(_number(0.0), axes=ROWS),)))
        else:
            self.grad = self._load("grad", attention.grad_out, self.rows, self.wide)
            put(own.RowProduct(delta, self._load("out", attention.out, self.rows, self.wide), self.grad))
        if attention.grad_logsumexp is not None:
            self._begins("slope", attention.grad_logsumexp, HEAD)
            slope = self._numbers("slope", attention.grad_logsumexp, 0.0)
            put(Op(delta, "sub", (delta, slope, _number(LOG2E)), "less"))
        self._begins("delta", self.plan.delta, HEAD)
        self._store("delta", self.plan.delta, delta, self.rows)

    def _step(self, masked: bool) -> None:
        attention = self.attention
        slopes: Operand = _number(0.0)
        key = self._load("key", attention.key, self.walked, self.deep)
        shown = self._weights(self.query, key, self.logsumexp, masked)
        if attention.grad_out is not None:
            value = self._load("value", attention.value, self.walked, self.wide)
            slopes = self._product("slopes", self.grad, value, turned=True)
        self.put(Dot(self.total, self._gradients(slopes, self.delta, shown), key, self.plan.precision))


class KeyGradients(_Backward):
    """The kernel that writes the gradients of key and value."""

    holds = "key"

    def __init__(self, plan: BackwardPlan, tile: Tiles) -> None:
        self.results, self.shares = (plan.output(1), plan.output(2)), plan.shares_keys
        super().__init__(plan, tile, self.results)

    @property
    def tells_outside(self) -> bool:  # type: ignore[override]
        """A query beyond the end has scores of 0 and weights of 0, unless a body makes something of them, NaN say."""
        return self.bodies.score is not None or self.bodies.gradient is not None

    def lines(self) -> None:
        """Adds the lines."""
        attention, put = self.attention, self.put
        self.tiles_of: dict[str, Value] = {}
        for name, ref, part in (("key", attention.key, self.deep), ("value", attention.value, self.wide)):
            self._begins(name, ref, SHARED)
            self.tiles_of[name] = self._load(name, ref, self.rows, part)
        self.totals: dict[str, Value] = {}
        results = [each for each in zip(("key", "value"), self.results, (self.deep, self.wide)) if each[1] is not None]
        for name, _, part in results:
            self.totals[name] = Value(f"{name}total", torch.float32, ROWS | {part.name})
            put(own.Begin(self.totals[name]))
        self._hoist(KEY, *() if self.shares else (BATCH,))
        put(own.Turns(attention.group, self.batches if self.shares else ONE, self.maker.inner(self._head)))
        for name, result, part in results:
            assert result is not None
            self._result(name, result, part, self.totals[name], name == "key")

    def _head(self) -> None:
        """Adds the work for a head of the query that shares the program's keys."""
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
        slopes: Operand = _number(0.0)
        query = self._load("query", attention.query, self.walked, self.deep)
        shown = self._weights(self.tiles_of["key"], query, self._logsumexp(), masked)
        if attention.grad_out is not None:
            grad = self._load("grad", attention.grad_out, self.walked, self.wide)
            if "value" in self.totals:
                rounded = replace(self.weights, text="rounded", dtype=self.plan.dtype)
                put(Op(rounded, "cast", (self.weights,), "narrow"))
                put(Dot(self.totals["value"], rounded, grad, precision))
        if "key" in self.totals:
            delta = self._numbers("delta", self.plan.delta, 0.0)
            if attention.grad_out is not None:
                slopes = self._product("slopes", self.tiles_of["value"], grad, turned=True)
            put(Dot(self.totals["key"], self._gradients(slopes, delta, shown), query, precision))


def _number(value: float) -> Const:
    return Const(value, torch.float32)
