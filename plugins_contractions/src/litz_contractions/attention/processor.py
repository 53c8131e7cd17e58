"""Attention on a processor: a C++ kernel that calls BLAS on blocks. In: an `Attention` and its context. Out: a choice.

A thread takes a block of queries of one head and walks over blocks of keys: a product of BLAS makes a block of scores,
loops change and mask them, raise them by the maximum so far, and a second product adds the values they weigh. Scores
are never more than one block. Blocks of keys that a mask's comparisons of positions or a BlockMask's lists rule out are
not looked at. Sums and scores are float32; half types are converted a block at a time. The kernel is a `Nest`, whose
text `nest_print.py` has.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from math import inf, log

import torch

from litz.ir import Node, TensorRef
from litz.ir.index import ONE, ZERO, Expr, Symbol, floordiv, product
from litz.ir.node import walk
from litz.schedule.choices import Replacement
from litz.target import figures_of
from litz.target.times import NONE, Limit, launches, matrix, time_of
from litz.targets.cpp.body import Body
from litz.targets.cpp.codegen import SYMBOL
from litz.targets.cpp.figures import CppFigures
from litz.targets.cpp.text import IndexText
from litz.tiles import program as tile
from litz.tiles.program import Access, Const, Each, Element, Held, Nest, Operand, Value
from litz_plugins import Choice, ChoiceContext, KernelSource

from ..module import TiledSource, Unsuitable, offer
from ..subprogram import Meaning, call_of, cut
from .masks import find_bounds
from .nest_lines import Keys, Listed, Matrix, Product, When
from .nest_print import BELOW, print_attention
from .offer import written as written_results
from .operation import DTYPES, SCORE, Attention
from .plan import AttentionPlan, B, H, K, Q, make_plan, offset_of

ROWS, KEYS = 64, 256
"""Queries and keys of a block: its scores are 64 KiB, and stay in the second-level cache with what makes them."""
ABILITY = "attention_blocks"
PASSES = 3
"""Eager's attention makes all scores and goes over them more often than this: many times what the kernel takes."""
D, PLACE = (Symbol(name, integer=True, nonnegative=True) for name in ("column", "place"))
"""An element of a row, and the place in a list of blocks."""
NAMES: Mapping[Symbol, str] = {B: "b", H: "h", Q: "q", K: "k", D: "d", PLACE: "n"}
FIRST, BLOCK = "first", "c"
"""The blocks of queries and of keys."""


@offer(ABILITY, of=Attention)
def offer_blocked(template: Attention, context: ChoiceContext) -> list[Choice]:
    """Returns the blocked kernel as a choice for a processor."""
    plan = make_plan(template, context.program, written_results(template, context.program), False, scaled=True)
    source = write_blocked(plan, template.name, figures_of(context.target, CppFigures).parallel_values)
    meaning = Meaning(cut(plan.program, [template], plan.outputs))
    batch, heads, rows, keys = map(plan.program.hint, plan.attention.size)
    bound = matrix(2.0 * batch * heads * rows * keys * sum(plan.widths), "fp32", context.target)
    own = time_of((bound,), context.target, NONE, why=f"{ROWS} queries by {KEYS} keys at a time")
    all_scores = Limit(PASSES * bound.us, why="all scores in memory, several times")
    other = time_of((all_scores,), context.target, launches(PASSES, context.target))
    return [Choice("blocked attention", "template", Replacement((call_of(template, meaning, source),)), own, other)]


def write_blocked(plan: AttentionPlan, name: str, parallel: int) -> KernelSource:
    """Returns the C++ source of a kernel for one attention. parallel: scores from which threads share the work.
    Errors: Unsuitable for a dtype or a body that the kernel cannot compute."""
    if plan.dtype not in DTYPES:
        raise Unsuitable(f"no kernel of {plan.dtype}")
    if any(node.op in ("bounded", "reduce", "scan") for node in plan.bodies.loop.nodes):
        raise Unsuitable("a position is checked in it")
    nest, names = _Maker(plan).nest(parallel), plan.naming.names
    text = print_attention(nest, f"attention, {ROWS} queries by {KEYS} keys at a time", plan.outputs, parallel)
    settings = {"bounds": [], "sizes": len(names.sizes), "threads": nest.threaded, "blas": True}
    arguments = (*names.buffers, *names.sizes)
    return TiledSource(name, "cpp", text, SYMBOL, arguments, settings, tiles=(nest,))


class _Maker:
    def __init__(self, plan: AttentionPlan) -> None:
        self.plan, self.attention = plan, plan.attention
        self.names = replace(plan.naming.names, variables=NAMES)
        self.wide, self.deep = plan.widths
        # Lists of blocks are a hint where a mask says the same: they are used if no block of queries has two.
        self.blocks, blocks = None, plan.attention.blocks
        if blocks is not None and blocks.queries.is_Integer and blocks.keys.is_Integer:
            self.blocks = blocks if int(blocks.queries) % ROWS == 0 and int(blocks.keys) > 0 else None
        self.extents = {**plan.bodies.loop.extents, D: ONE * max(self.wide, self.deep)}
        if self.blocks is not None:
            self.extents[PLACE] = self.blocks.indices.layout.size[-1]
        self.body = Body(plan.bodies.loop, IndexText(self.names.index_names, self.extents))
        self.put, self.bounds = self.body.put, find_bounds(plan.bodies.mask, Q, K)

    def nest(self, parallel: int) -> Nest:
        batch, heads, rows, keys = self.plan.attention.size
        work = product((batch, heads, floordiv(rows + ROWS - 1, ROWS * ONE), ROWS * ONE, keys))
        threaded = not work.is_Integer or int(work) >= parallel
        blocks = Each(FIRST, rows, step=ROWS)
        with self._in(Each("b", batch, shared=3 * threaded, uneven=threaded)), self._in(Each("h", heads)):
            with self._in(blocks):
                self._block()
        lines = tuple(self.body.made)
        buffers = {name: self.plan.program.buffers[name] for name in self.names.buffers}
        return Nest(buffers, self.names, self.extents, lines, threaded=threaded, work=work)

    # Lines.

    def _in(self, line: Each | Keys | When) -> AbstractContextManager[None]:
        """Adds a line, whose body is what is made within."""
        return self.body.each(line)  # type: ignore[arg-type]

    def _rows(self) -> Each:
        return Each("q", self.plan.attention.size[2], within=FIRST)

    def _columns(self, width: int, vector: bool = True) -> Each:
        return Each("d", ONE * width, vector=vector)

    def _op(self, op: str, *args: Operand, near: str = "", dtype: torch.dtype = torch.float32) -> Value:
        value = Value(self.body.name(), dtype, frozenset[str]().union(*(arg.axes for arg in args)))
        self.put(tile.Op(value, op, args, near))
        return value

    def _room(self, name: str, *at: tuple[Expr, str, int]) -> Element:
        axes = frozenset(NAMES[symbol] for expr, _, _ in at for symbol in expr.free_symbols)
        return Element(name, at, torch.float32, axes)

    def _of_row(self, name: str, width: int = 0) -> Element:
        """Returns the element that a room has for a query, or an element of the row that it has."""
        return self._room(name, (Q, FIRST, max(width, 1)), *([(D, "", 1)] if width else []))

    def _access(self, ref: TensorRef, *position: Expr, at: Mapping[Symbol, str] | None = None) -> Access:
        offset, at = offset_of(ref, position), at or {}
        axes = {{**NAMES, **at}[symbol] for symbol in offset.free_symbols if symbol in NAMES}
        return Access(ref.buffer, offset, (), frozenset(axes), at=tuple(at.items()))

    # A block of queries, from `first` on.

    def _block(self) -> None:
        rooms = {"query": ROWS * self.wide, "score": ROWS * KEYS, "out": ROWS * self.deep, "top": ROWS, "total": ROWS}
        factors = {"key": (self.attention.key, self.wide), "value": (self.attention.value, self.deep)}
        rooms |= {name: KEYS * width for name, (ref, width) in factors.items() if not self._direct(ref, width)}
        self.put(*(tile.Room(name, torch.float32, count) for name, count in rooms.items()))
        with self._in(self._rows()):
            self._copy(self.attention.query, "query", self.wide, Q, FIRST, (B, H))
        with self._in(self._rows()):
            self.put(tile.Put(self._of_row("top"), _const(-inf)), tile.Put(self._of_row("total"), _const(0.0)))
            with self._in(self._columns(self.deep, vector=False)):
                self.put(tile.Put(self._of_row("out", self.deep), _const(0.0)))
        mask, bounds, (*_, keys) = self.plan.bodies.mask, self.bounds, self.plan.attention.size
        open_, exact = Value("open", torch.bool), mask is None or (bool(bounds) and bounds.exact)
        limits = (tuple(bounds.lower), tuple(bounds.upper))
        with self._in(Keys(BLOCK, keys, KEYS, FIRST, Q, *limits, exact, tuple(self._lists()), open_)):
            self._keys(factors, open_)
        self._finish()

    def _lists(self) -> list[Listed]:
        if self.blocks is None:
            return []
        length, row = int(self.blocks.keys), floordiv(Q, self.blocks.queries, self.extents)
        at = {Q: FIRST}
        return [
            Listed(
                self._access(counts, B, H, row, at=at),
                self._access(listed, B, H, row, PLACE, at=at),
                PLACE,
                length,
                known,
            )
            for counts, listed, known in self.blocks.lists
        ]

    def _direct(self, ref: TensorRef, width: int) -> bool:
        """Returns whether BLAS can read an operand as it lies."""
        step, along = ref.layout.stride[2:]
        dense = along == ONE and step.is_Integer and int(step) >= width
        return bool(dense) and self.plan.program.buffers[ref.buffer].dtype == torch.float32

    def _copy(self, ref: TensorRef, room: str, width: int, row: Symbol, block: str, batch: tuple[Expr, Expr]) -> None:
        """A row of a reference, as float32."""
        with self._in(self._columns(width)):
            access = self._access(ref, *batch, row, D)
            value = Value(self.body.name(), self.plan.program.buffers[ref.buffer].dtype, access.axes)
            self.put(tile.Load(value, access, ()), tile.Put(self._room(room, (row, block, width), (D, "", 1)), value))

    # A block of keys, from `c` on.

    def _keys(self, factors: Mapping[str, tuple[TensorRef, int]], open_: Value) -> None:
        key, value = (self._factor(name, *factor) for name, factor in factors.items())
        score, scale = Matrix("score", KEYS), float(self.attention.scale)
        query, out = Matrix("query", self.wide), Matrix("out", self.deep)
        self.put(Product(score, query, key, (FIRST, BLOCK, self.wide), scale, turned=True))
        with self._in(self._rows()):
            top = Held("max", torch.float32, (self.body.name("top"),))
            self.put(tile.Fold("make", top), tile.Fold("join", top, (self._of_row("top"),)))
            if self.plan.bodies.mask is None:
                self._change(top, None)
            for mask in (None, self.plan.bodies.mask) if self.plan.bodies.mask is not None else ():
                with self._in(When(open_, otherwise=mask is not None)):
                    self._change(top, mask)
            self._weigh(top)
        self.put(Product(out, score, value, (FIRST, self.deep, BLOCK), adds=True))

    def _factor(self, name: str, ref: TensorRef, width: int) -> Matrix:
        """Keys or values as BLAS reads them: where they lie, or copied."""
        group = floordiv(self.plan.attention.size[1], ref.layout.size[1])
        batch = (B if ref.layout.size[0] != ONE else ZERO, floordiv(H, group, self.extents))
        if self._direct(ref, width):
            return Matrix(self._access(ref, *batch, K, ZERO, at={K: BLOCK}), int(ref.layout.stride[2]))
        with self._in(Each("k", self.plan.attention.size[3], within=BLOCK)):
            self._copy(ref, name, width, K, BLOCK, batch)
        return Matrix(name, width)

    def _lanes(self, merged: Held) -> Each:
        return Each("k", self.plan.attention.size[3], within=BLOCK, vector=True, merged=(merged,))

    def _score(self) -> Element:
        return self._room("score", (Q, FIRST, KEYS), (K, BLOCK, 1))

    def _change(self, top: Held, mask: Node | None) -> None:
        """The scores of a query as the bodies change them, and their maximum."""
        body, score = self.body, self._score()
        given = [node for node in self.plan.bodies.loop.nodes if node.op == "load" and node.buffer == SCORE]
        roots = [node for node in (self.plan.bodies.score, mask) if node is not None]
        inner = [node for node in body.missing(roots) if node not in given]
        varying = {node for node in inner if K in body.variables[node] or not {*walk(node)}.isdisjoint(given)}
        body.write([node for node in inner if node not in varying])
        with self._in(self._lanes(top)):
            body.visible.update(dict.fromkeys(given, score))
            body.write([node for node in inner if node in varying])
            value: Operand = score if self.plan.bodies.score is None else body.operand(self.plan.bodies.score)
            if mask is not None:
                value = self._op("where", body.operand(mask), value, _const(-inf))
            if value != score:
                self.put(tile.Put(score, value))
            self.put(tile.Fold("join", top, (value,)))

    def _weigh(self, top: Held) -> None:
        """Scores become weights; what the query came to so far fades, as its maximum grows."""
        score, total, row = self._score(), self._of_row("total"), frozenset({"q"})
        most = self._op("same", tile.Result(top, "max", torch.float32, row))
        nothing = self._op("eq", most, _const(-inf), dtype=torch.bool)
        shift = self._op("where", nothing, _const(0.0), most)
        added = Held("sum", torch.float32, (self.body.name("sum"),))
        self.put(tile.Fold("make", added))
        with self._in(self._lanes(added)):
            weight = self._op("exp", self._op("sub", score, shift), near=BELOW)
            self.put(tile.Put(score, weight), tile.Fold("join", added, (weight,)))
        fades = self._op("exp", self._op("sub", self._of_row("top"), shift), near=BELOW)
        self.put(
            tile.Put(
                total, self._op("add", self._op("mul", total, fades), tile.Result(added, "sum", torch.float32, row))
            )
        )
        self.put(tile.Put(self._of_row("top"), most))
        with self._in(When(self._op("ne", fades, _const(1.0), dtype=torch.bool))):
            with self._in(self._columns(self.deep)):
                out = self._of_row("out", self.deep)
                self.put(tile.Put(out, self._op("mul", out, fades)))

    # Results.

    def _finish(self) -> None:
        first, *others = self.attention.outputs
        assert first is not None
        with self._in(self._rows()):
            top, total = self._of_row("top"), self._of_row("total")
            none = self._op("eq", total, _const(0.0), dtype=torch.bool)
            by = self._op("where", none, _const(0.0), self._op("div", _const(1.0), total))
            with self._in(self._columns(self.deep)):
                self._store(first, self._op("mul", self._of_row("out", self.deep), by), D)
            log_2 = _const(1 / log(2))
            for number, name in enumerate(others):  # logarithms of the sums, then the maxima
                if name is None or name not in self.plan.outputs:
                    continue
                value = self._op("add", top, self._op("log", total)) if number == 0 else top
                value = self._op("mul", value, log_2)
                self._store(name, self._op("where", none, _const(-inf), value) if number == 0 else value)

    def _store(self, name: str, value: Value, *column: Expr) -> None:
        buffer = self.plan.program.buffers[name]
        access = self._access(TensorRef(name, replace(buffer.layout, offset=ZERO)), B, H, Q, *column)
        operand = value if buffer.dtype == value.dtype else tile.As(value, buffer.dtype)
        self.put(tile.Store(access, operand, (), "set", access.axes | value.axes))


def _const(value: float) -> Const:
    return Const(value, torch.float32)
