"""The kernels of attention's backward: in, an `AttentionBackward` and a tile; out, two `KernelSource`s of Triton text.

The first has a program for each tile of queries, which walks the keys: the gradient of the query, and on the way

    delta = sum over e of out * grad_out  -  grad_logsumexp / log(2)

The second, launched after it, has a program for each tile of keys, which walks the queries of all heads (and batches)
that share these keys: the gradients of key and value. So no sum is made by atomics, results repeat bit for bit, and
no score is ever in memory: both kernels compute scores and weights anew.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from litz.ir import Node, Program, Range, TensorRef
from litz.ir.dtypes import short
from litz.ir.index import ONE, Expr
from litz.targets.triton.dialect import ELEMENTS
from litz_plugins import KernelSource

from .arithmetic import position_texts
from .backward_operation import AttentionBackward
from .backward_tiles import BackwardTile
from .near import near_texts
from .operation import GRADIENT, SCORE, Blocks
from .score_tile import BATCH, HEAD, KEY, QUERY, Bodies, ScoreTile, Side, make_bodies
from .tiles import padded

LOG2_E = 1 / math.log(2)


@dataclass(frozen=True)
class BackwardPlan:
    """The plan that all kernels of one backward share. bodies: of its scores. delta: what the first hands to the
    second, float32 (B, H, Q). outputs: the buffers of the gradients of query, key and value, None for one that nobody
    uses. tf32: may float32 operands lose bits?"""

    attention: AttentionBackward
    program: Program
    bodies: Bodies
    delta: TensorRef
    outputs: tuple[str | None, ...]
    tf32: bool

    @property
    def dtype(self) -> torch.dtype:
        """Returns the dtype of the query."""
        return self.program.buffers[self.attention.query.buffer].dtype

    @property
    def widths(self) -> tuple[int, int]:
        """Returns the number of elements of a key and of a value."""
        return int(self.attention.query.layout.size[3]), int(self.attention.value.layout.size[3])

    @property
    def precision(self) -> str:
        """Returns the text of tl.dot's last argument, with a comma before it; '' for half types."""
        if self.dtype != torch.float32:
            return ""
        return f', input_precision="{"tf32" if self.tf32 else "ieee"}"'

    @property
    def shares_keys(self) -> bool:
        """Returns whether all batches of queries share one batch of keys and values."""
        query, key = (ref.layout.size[0] for ref in (self.attention.query, self.attention.key))
        return key == 1 and query != 1

    def output(self, number: int) -> TensorRef | None:
        """Returns the reference to a gradient (0: query, 1: key, 2: value) as it lies; None if nobody wants it."""
        name = self.outputs[number]
        return None if name is None else TensorRef(name, self.program.buffers[name].layout)


def make_plan(
    attention: AttentionBackward, program: Program, delta: TensorRef, outputs: tuple[str | None, ...], tf32: bool
) -> BackwardPlan:
    """Returns the plan of a backward's two kernels. program: has the buffer of `delta`. outputs, tf32: as
    `BackwardPlan` has them."""
    sizes = (*attention.query.layout.size[:3], attention.key.layout.size[2])
    bodies = make_bodies(
        sizes,
        program,
        attention.device,
        float(attention.scale),
        score=attention.score,
        mask=attention.mask,
        gradient=attention.gradient,
    )
    return BackwardPlan(attention, program, bodies, delta, outputs, tf32)


def write_query_gradient(plan: BackwardPlan, tile: BackwardTile, name: str) -> KernelSource:
    """Returns the source of the kernel that writes the query's gradient and delta."""
    return _QueryGradient(plan, tile, name).write()


def write_key_gradients(plan: BackwardPlan, tile: BackwardTile, name: str) -> KernelSource:
    """Returns the source of the kernel that writes the gradients of key and value."""
    return _KeyGradients(plan, tile, name).write()


class _Writer:
    """What both kernels have in common: a step of the walk, from scores to their gradients.

    tells_outside: must what is walked beyond the end be told from the rest?
    """

    tells_outside = True

    def __init__(self, plan: BackwardPlan, tile: BackwardTile, name: str) -> None:
        self.plan, self.attention, self.bodies, self.config = plan, plan.attention, plan.bodies, tile
        self.kernel_name = name
        self.widths = dict(zip(("depth", "width"), plan.widths))
        """Elements of a key and of a value, by the name of their index."""
        self.text: ScoreTile

    def begin(self, own: str, blocks: Blocks | None, written: tuple[TensorRef | None, ...]) -> None:
        """own: "query" or "key", what a program has a tile of."""
        attention, config = self.attention, self.config
        batches, heads, queries, _ = attention.query.layout.size
        keys = attention.key.layout.size[2]
        variables = {"query": (QUERY, queries, config.queries), "key": (KEY, keys, config.keys)}
        names = ("query", "key") if own == "query" else ("key", "query")
        sides = []
        for axis, which in zip("yx", names):
            var, size, block = variables[which]
            grain = None if blocks is None else blocks.queries if which == "query" else blocks.keys
            sides.append(Side(axis, (Range(var, size),), block, grain=grain))
        tables = [] if blocks is None else [blocks.counts, blocks.indices, blocks.full_counts, blocks.full_indices]
        operands = [attention.query, attention.key, attention.value, attention.grad_out, attention.logsumexp]
        own_operands = [attention.out, attention.grad_logsumexp] if own == "query" else []
        refs = [ref for ref in (*operands, *own_operands, *tables, self.plan.delta, *written) if ref is not None]
        results = {ref.buffer for ref in written if ref is not None}
        self.text = ScoreTile(
            self.bodies, self.plan.program, batches, heads, sides[0], sides[1], config.warps, config.stages, refs,
            results,
        )  # fmt: skip
        tile, walked = self.text.tile, self.text.walked.ranges[0].var
        tile.near = {
            **near_texts(self.plan.dtype, self.bodies.score, self.bodies.factor, self.bodies.gradient),
            **position_texts(self.bodies.loop, walked, tile.index_text),
        }
        self.text.write_blocks(**{name: padded(width) for name, width in self.widths.items()})
        for name, width in self.widths.items():
            self.text.emit(f"{name} = tl.arange(0, {name.upper()}BLOCK)[None, :]")
            if self.is_padded(name):
                self.text.emit(f"{name}mask = {name} < {width}")

    def is_padded(self, columns: str) -> bool:
        return self.widths[columns] != padded(self.widths[columns])

    @property
    def scales_early(self) -> bool:
        """Are gradients of scores scaled before they are rounded? As eager does; in float16 they may not fit else."""
        return self.plan.dtype == torch.float16

    @property
    def scaled(self) -> str:
        """What a sum of gradients is multiplied by, with the sign before it."""
        return "" if self.scales_early else f" * {self.scale}"

    @property
    def scale(self) -> str:
        return repr(float(self.attention.scale))

    def start(self, name: str, ref: TensorRef, batch: str, head: str) -> None:
        """Emit where the matrix of a batch and a head begins."""
        size = ref.layout.size
        indices = ("" if size[0] == 1 else batch, "" if size[1] == 1 else head)
        self.text.emit(f"{name}start = {self.text.element(ref, *indices)}")

    def masks(self, rows: str, columns: str) -> str:
        """The arguments of a load or store of a matrix: rows is the name of a mask, "" for none."""
        found = [rows] if rows else []
        found += [f"{columns}mask"] if columns and self.is_padded(columns) else []
        return f", mask={' & '.join(found)}" if found else ""

    def load(self, name: str, ref: TensorRef, rows: str, mask: str, columns: str) -> None:
        """Emit the load of a matrix's tile. rows: "own" or "walked"."""
        index, block = {"own": ("yindex", "YBLOCK"), "walked": ("column", "XBLOCK")}[rows]
        pointers = self.text.matrix(ref, f"{name}start", index, columns, f"[{block}, {columns.upper()}BLOCK]")
        given = self.masks(mask, columns)
        self.text.emit(f"{name} = tl.load({pointers}{given}{', other=0' if given else ''})")

    def load_row(self, name: str, ref: TensorRef, index: str, mask: str, other: str) -> None:
        """Emit the load of a number for each query."""
        pointer = self.text.row(ref, f"{name}start", index)
        given = f", mask={mask}, other={other}" if mask else ""
        self.text.emit(f"{name} = tl.load({pointer}{given}).to(tl.float32)")

    def load_logsumexp(self, index: str, mask: str) -> None:
        """To the base of 2. Infinite for a query that looks at nothing, or that there is none of: its weights are 0.
        Where only the mask decides what is looked at, it decides here too, and no other query has -inf."""
        self.load_row("logsumexp", self.attention.logsumexp, index, mask, 'float("inf")')
        if self.bodies.score is not None:
            self.text.emit('logsumexp = tl.where(logsumexp == -float("inf"), float("inf"), logsumexp)')

    def weights(self, dot: str, live: list[str]) -> str:
        """Emit `weights` from the product of queries and keys; what has to hold for an element to count."""
        text, bodies = self.text, self.bodies
        text.emit(f"products = {dot}")
        text.give(SCORE, "products")
        score = "products" if bodies.score is None else text.value(bodies.score)
        text.emit(f"weights = _exp2_flushed({score} * {bodies.factor * LOG2_E!r} - logsumexp)")
        condition = " & ".join(live)
        if condition:
            text.emit(f"live = {condition}", "weights = tl.where(live, weights, 0.0)")
        return condition

    def gradients(self, dot: str, condition: str) -> None:
        """Emit `gradients`, of the raw scores, in the operands' type."""
        text, body = self.text, self.bodies.gradient
        text.emit(f"gradients = weights * ({dot} - delta)" if dot else "gradients = weights * (0.0 - delta)")
        if body is not None:
            text.give(GRADIENT, "gradients")
            text.emit(f"gradients = {text.value(body)}")
        if condition:
            # What does not count has a weight of 0, but perhaps a gradient of NaN. To keep `live` would take more.
            text.emit("gradients = tl.where(weights == 0.0, 0.0, gradients)")
        if self.scales_early:
            text.emit(f"gradients = gradients * {self.scale}")
        text.emit(f"gradients = gradients.to({ELEMENTS[self.plan.dtype]})")

    def live(self, masked: bool) -> list[str]:
        """What has to hold for an element of the tile to count."""
        found = []
        if masked and self.bodies.mask is not None:
            found.append(self.text.value(self.bodies.mask))
        if self.text.walked.is_cut:
            found.append("xinside")
        if self.text.walked.masked and self.tells_outside:
            found.append("xmask")
        return found

    def roots(self, masked: bool) -> list[Node | None]:
        bodies = self.bodies
        return [bodies.mask if masked else None, bodies.score, bodies.gradient]

    def dot(self, left: str, right: str, onto: str = "") -> str:
        return f"tl.dot({left}, {right}{', ' + onto if onto else ''}{self.plan.precision})"

    def finish(self, what: str, grid: tuple[Expr, ...]) -> KernelSource:
        symbol = f"litz_attention_{what}_{short(self.plan.dtype)}_{self.config.queries}x{self.config.keys}"
        return self.text.source(self.kernel_name, symbol, grid, f"attention's backward, {what}: {self.config}")


class _QueryGradient(_Writer):
    def write(self) -> KernelSource:
        attention, plan = self.attention, self.plan
        result = plan.output(0)
        self.begin("query", attention.blocks, (plan.delta, result))
        text, sizes = self.text, self.text.sizes
        heads = sizes(text.heads)
        tiles = text.own.tiles
        text.emit("number = tl.program_id(0)", f"tiles = {sizes(tiles)}")
        # The last queries first: under a causal mask they have most to do.
        text.emit("place = tiles - 1 - number % tiles", "number = number // tiles")
        text.emit(f"head = (number % {heads}){text.wide}", f"batch = (number // {heads}){text.wide}")
        group = sizes(attention.group)
        text.emit("shared = head" if group == "1" else f"shared = head // {group}")
        text.write_own("place")
        for name, ref in (("query", attention.query), ("grad", attention.grad_out), ("out", attention.out)):
            if ref is not None:
                self.start(name, ref, "batch", "head")
        self.start("key", attention.key, "batch", "shared")
        self.start("value", attention.value, "batch", "shared")
        mask = text.own_mask
        self.load("query", attention.query, "own", mask, "depth")
        self.start("logsumexp", attention.logsumexp, "batch", "head")
        self.load_logsumexp("yindex", mask)
        self._write_delta(mask)
        if result is not None:
            text.emit("total = tl.zeros([YBLOCK, DEPTHBLOCK], tl.float32)")
            text.hoist(self.roots(True), {BATCH, HEAD, QUERY})
            text.write_walk(attention.blocks, self._step)
            self.start("result", result, "batch", "head")
            pointers = text.matrix(result, "resultstart", "yindex", "depth", "[YBLOCK, DEPTHBLOCK]")
            given = self.masks(text.stored_mask, "depth")
            text.emit(f"tl.store({pointers}, total{self.scaled}{given})")
        return self.finish("dq", (tiles, text.heads, text.batches))

    def _write_delta(self, mask: str) -> None:
        attention, text = self.attention, self.text
        if attention.grad_out is None:
            text.emit("delta = tl.zeros([YBLOCK, 1], tl.float32)")
        else:
            self.load("grad", attention.grad_out, "own", mask, "width")
            self.load("out", attention.out, "own", mask, "width")
            text.emit("delta = tl.sum(out.to(tl.float32) * grad.to(tl.float32), 1)[:, None]")
        if attention.grad_logsumexp is not None:
            self.start("slope", attention.grad_logsumexp, "batch", "head")
            self.load_row("slope", attention.grad_logsumexp, "yindex", mask, "0.0")
            text.emit(f"delta -= slope * {LOG2_E!r}")
        self.start("delta", self.plan.delta, "batch", "head")
        pointer = text.row(self.plan.delta, "deltastart", "yindex")
        given = f", mask={text.stored_mask}" if text.stored_mask else ""
        text.emit(f"tl.store({pointer}, delta{given})")

    def _step(self, masked: bool) -> None:
        text, attention = self.text, self.attention
        mask = "columnmask" if text.walked.masked else ""
        self.load("key", attention.key, "walked", mask, "depth")
        dot = ""
        condition = self.weights(self.dot("query", "tl.trans(key)"), self.live(masked))
        if attention.grad_out is not None:
            self.load("value", attention.value, "walked", mask, "width")
            dot = self.dot("grad", "tl.trans(value)")
        self.gradients(dot, condition)
        text.emit(f"total = {self.dot('gradients', 'key', 'total')}")


class _KeyGradients(_Writer):
    @property
    def tells_outside(self) -> bool:  # type: ignore[override]
        """A query beyond the end has scores of 0 and weights of 0, unless a body makes something of them, NaN say."""
        return self.bodies.score is not None or self.bodies.gradient is not None

    def write(self) -> KernelSource:
        attention, plan = self.attention, self.plan
        results = plan.output(1), plan.output(2)
        self.begin("key", attention.transposed, results)
        text, sizes = self.text, self.text.sizes
        shared_heads, tiles = attention.key.layout.size[1], text.own.tiles
        text.emit("number = tl.program_id(0)", f"tiles = {sizes(tiles)}")
        text.emit("place = number % tiles", "number = number // tiles")
        text.emit(f"shared = (number % {sizes(shared_heads)}){text.wide}")
        text.emit(f"batch = (number // {sizes(shared_heads)}){text.wide}")
        text.write_own("place")
        mask = text.own_mask
        for name, ref, columns in (("key", attention.key, "depth"), ("value", attention.value, "width")):
            self.start(name, ref, "batch", "shared")
            self.load(name, ref, "own", mask, columns)
        wanted = [
            (name, ref, columns, scale)
            for name, ref, columns, scale in zip(
                ("key", "value"), results, ("depth", "width"), (self.scaled, ""), strict=True
            )
            if ref is not None
        ]
        for name, _, columns, _ in wanted:
            text.emit(f"{name}total = tl.zeros([YBLOCK, {columns.upper()}BLOCK], tl.float32)")
        self._write_heads()
        for name, ref, columns, scale in wanted:
            block = f"[YBLOCK, {columns.upper()}BLOCK]"
            self.start(f"{name}result", ref, "batch", "shared")
            pointers = text.matrix(ref, f"{name}resultstart", "yindex", columns, block)
            text.emit(f"tl.store({pointers}, {name}total{scale}{self.masks(text.stored_mask, columns)})")
        batches = ONE if plan.shares_keys else text.batches
        return self.finish("dkdv", (tiles, shared_heads, batches))

    def _write_heads(self) -> None:
        """The loop over the heads of the query, and the batches, that share the program's keys."""
        text, attention, shares = self.text, self.attention, self.plan.shares_keys
        group = text.sizes(attention.group)
        fixed = {KEY} if shares else {KEY, BATCH}
        text.hoist(self.roots(True), fixed)
        if group == "1" and not shares:
            text.emit("head = shared")
            self._write_head()
            return
        count = f"{group} * {text.sizes(text.batches)}" if shares else group
        with text.indented(f"for turn in range(0, {count}):"):
            text.emit(f"head = shared * {group} + turn % {group}" if shares else f"head = shared * {group} + turn")
            if shares:
                text.emit(f"batch = tl.full([], 0, {text.index_type}) + turn // {group}")
            self._write_head()

    def _write_head(self) -> None:
        text, attention = self.text, self.attention
        for name, ref in (
            ("query", attention.query),
            ("grad", attention.grad_out),
            ("logsumexp", attention.logsumexp),
            ("delta", self.plan.delta),
        ):
            if ref is not None:
                self.start(name, ref, "batch", "head")
        text.hoist(self.roots(True), {BATCH, HEAD, KEY})
        text.write_walk(attention.transposed, self._step)

    def _step(self, masked: bool) -> None:
        """The tile of scores is transposed here: its rows are keys."""
        text, attention = self.text, self.attention
        mask = "columnmask" if text.walked.masked else ""
        self.load("query", attention.query, "walked", mask, "depth")
        self.load_logsumexp("xindex", "xmask" if text.walked.masked else "")
        condition = self.weights(self.dot("key", "tl.trans(query)"), self.live(masked))
        if attention.grad_out is not None:
            self.load("grad", attention.grad_out, "walked", mask, "width")
            if self.plan.output(2) is not None:
                text.emit(f"rounded = weights.to({ELEMENTS[self.plan.dtype]})")
                text.emit(f"valuetotal = {self.dot('rounded', 'grad', 'valuetotal')}")
        if self.plan.output(1) is not None:
            self.load_row("delta", self.plan.delta, "xindex", "xmask" if text.walked.masked else "", "0.0")
            self.gradients(self.dot("value", "tl.trans(grad)") if attention.grad_out is not None else "", condition)
            text.emit(f"keytotal = {self.dot('gradients', 'query', 'keytotal')}")


__all__ = ["BackwardPlan", "make_plan", "write_key_gradients", "write_query_gradient"]
