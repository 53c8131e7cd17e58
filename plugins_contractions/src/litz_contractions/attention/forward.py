"""The kernel of attention: in, an `AttentionPlan` and `Tiles`; out, a `KernelSource` of Triton text.

A program has a tile of queries of one head and walks over tiles of keys, with the softmax's maximum and sum so far of
each row: what was added up before is scaled down when a greater score comes (Milakov and Gimelshein, 2018; Dao et al.,
2022). No score is ever in memory. What becomes of a score is core's own text (`litz.targets.triton.print`), on a tile
whose axis y are the queries and whose axis x are the keys; what does not vary along the keys is computed before.

With `Blocks` the walk goes over the listed blocks of keys: with the mask over those that are partly masked, without it
over the full ones. Without, the bounds that a mask's comparisons say (`bounds.py`) tell which tiles need it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate

from litz.ir import Layout, Node, Range, TensorRef
from litz.ir.index import ZERO, Expr, floordiv
from litz.ir.node import walk
from litz.targets.triton.dialect import ELEMENTS
from litz.targets.triton.text import IndexText
from litz.tiles.shape import Axis
from litz_plugins import KernelSource

from ..module import write_module
from ..tile import write_axis
from .bounds import Bounds, find_bounds
from .least import LEAST_SCALED, keeps_least, least_mask
from .operation import SCORE, Blocks
from .plan import AttentionPlan, B, H, K, Q, Unsuitable, offset_of
from .tiles import LEAST, Tiles, parts

LOG2_E = 1 / math.log(2)
TILE = frozenset("yx")
NOTHING_SEEN = -1e37
"""A row of no greater score has seen nothing but keys that are masked by the least number."""


@dataclass(frozen=True)
class Part:
    """Some of the elements of a key or value. name: of their positions, in the kernel. start: the first. size: how many
    a tile has. width: of the key or value."""

    name: str
    number: int
    start: int
    size: int
    width: int

    @property
    def block(self) -> str:
        """Returns the name of the part's extent."""
        return f"{self.name.upper()}BLOCK"

    def mask(self, expand: str) -> list[str]:
        """Returns the masks that keep the part within the key or value; none if it lies inside."""
        return [] if self.start + self.size <= self.width else [f"({self.name}{expand} < {self.width})"]

    @staticmethod
    def all(name: str, width: int) -> tuple[Part, ...]:
        """Returns the parts of a head of `width` elements; their names begin with `name`."""
        sizes = parts(width)
        starts = accumulate(sizes, initial=0)
        found = zip(starts, sizes)
        return tuple(Part(f"{name}{number}", number, start, size, width) for number, (start, size) in enumerate(found))


@dataclass(frozen=True)
class KeyAxis(Axis):
    """The keys of a tile. beyond: may the tile reach beyond the last key? Only the last tile does."""

    beyond: bool = False

    @property
    def masked(self) -> bool:
        """Returns whether the last tile may reach beyond the keys."""
        return self.beyond


def write_attention(plan: AttentionPlan, tiles: Tiles, name: str) -> KernelSource:
    """Returns the kernel that writes `plan.outputs`: the result, and perhaps logsumexp and maxima. Unsuitable where a
    tile may be part of two blocks."""
    return Forward(plan, tiles).source(name)


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


class Forward:
    """Writes the text of the kernel."""

    def __init__(self, plan: AttentionPlan, tiles: Tiles) -> None:
        self.plan, self.tiles, self.attention = plan, tiles, plan.attention
        check_blocks(plan.attention.blocks, tiles)
        self.wide = "" if plan.index_type == "tl.int32" else f".to({plan.index_type})"
        self.rows = Axis("y", (Range(Q, plan.size[2]),), tiles.rows)
        self.tile = plan.tile(self.rows, self.keys(False), tiles.warps)
        self.depth, self.across = Part.all("d", plan.widths[0]), Part.all("e", plan.widths[1])
        self.folded = plan.exponent.factor > 0
        """Is the scale part of the exponent's factor?"""
        self.factor = (plan.exponent.factor if self.folded else 1.0) * LOG2_E
        self.subtracts_first = plan.score is not None and keeps_least(plan.attention, plan.score)
        """Is the greatest score subtracted before the factor? Masks of softmaxes that are written out are the least
        number there is, which times the factor is -inf: a row of nothing else has even weights all the same. It costs
        a subtraction a score."""

    def keys(self, beyond: bool) -> KeyAxis:
        """Returns the tile's axis of keys. beyond: may the tile reach beyond the last key?"""
        return KeyAxis("x", (Range(K, self.plan.size[3]),), self.tiles.keys, beyond)

    # ---------------------------------------------------------------------------------------------------- the module

    def source(self, name: str) -> KernelSource:
        """Writes the kernel, and returns its text with the launcher's settings."""
        plan, tile = self.plan, self.tile
        self.write_place()
        self.write_operands()
        self.write_walk()
        self.write_results()
        grid: str | int = self.grid() if plan.names.sizes else int(eval(self.grid(), {}))
        return write_module(
            name,
            plan.symbol("attention"),
            f"attention: {self.tiles}",
            tile.lines,
            plan.names,
            plan.program,
            plan.outputs,
            (plan.index_type, [*plan.limits, *tile.limits]),
            {"num_warps": self.tiles.warps, "num_stages": self.tiles.stages, "grid": grid},
        )

    def grid(self) -> str:
        """Returns the number of programs as text: blocks of queries times heads times batches."""
        batch, heads, rows, _ = map(self.plan.host_text, self.plan.size)
        return f"(-(-{rows} // {self.tiles.rows})) * {heads} * {batch}"

    # ----------------------------------------------------------------------------------------- what a program works on

    def write_place(self) -> None:
        """Emits the program's place: its head and tile. Programs of one head are neighbours, as they read the same
        keys. The last queries come first: where a mask is causal they look at the most keys, and what takes long should
        not start last."""
        emit, plan, wide = self.tile.emit, self.plan, self.wide
        _, heads, rows, _ = plan.size
        emit(f"YBLOCK: tl.constexpr = {self.tiles.rows}", f"XBLOCK: tl.constexpr = {self.tiles.keys}")
        for part in (*self.depth, *self.across):
            emit(f"{part.block}: tl.constexpr = {part.size}")
        emit(f"columns = {self.blocks_of(rows, self.tiles.rows)}")
        emit("row = columns - 1 - tl.program_id(0) % columns", "outer = tl.program_id(0) // columns")
        emit(f"h0 = (outer % {plan.text(heads)}){wide}", f"b0 = (outer // {plan.text(heads)}){wide}")
        write_axis(self.tile, self.rows, f"row{wide} * YBLOCK + tl.arange(0, YBLOCK)[:, None]")
        emit(f"lane = tl.arange(0, XBLOCK){wide}")
        for part in (*self.depth, *self.across):
            emit(f"{part.name} = {f'{part.start} + ' if part.start else ''}tl.arange(0, {part.block}){wide}")

    def blocks_of(self, size: Expr, block: int) -> str:
        """Returns the number of blocks that cover `size`, rounded up, as text in the kernel."""
        return str(-(-int(size) // block)) if size.is_Integer else f"tl.cdiv({self.plan.text(size)}, {block})"

    def write_operands(self) -> None:
        """Emits the loads of the queries, and the pointers of the first tiles of keys (transposed) and values."""
        attention, emit = self.attention, self.tile.emit
        query, key, value = attention.query, attention.key, attention.value
        shared = self.shared_head()
        emit(f"queries = {self.pointer(query, (B, H, ZERO, ZERO))} + y0 * {self.stride(query, 2)}")
        for d in self.depth:
            masks = [*self.row_masks(), *d.mask("[None, :]")]
            emit(f"query{d.number} = tl.load(queries + {d.name}[None, :] * {self.stride(query, 3)}{self.given(masks)})")
        emit(f"keys = {self.pointer(key, (B, shared, ZERO, ZERO))}")
        emit(f"values = {self.pointer(value, (B, shared, ZERO, ZERO))}")
        for d in self.depth:
            along, across = f"{d.name}[:, None] * {self.stride(key, 3)}", f"lane[None, :] * {self.stride(key, 2)}"
            emit(f"keytile{d.number} = {along} + {across}")
        for e in self.across:
            along, across = f"lane[:, None] * {self.stride(value, 2)}", f"{e.name}[None, :] * {self.stride(value, 3)}"
            emit(f"valuetile{e.number} = {along} + {across}")

    def shared_head(self) -> Expr:
        """Returns the number of the key's head that the program's head of the query reads."""
        heads = self.attention.query.layout.size[1]
        return floordiv(H, floordiv(heads, self.attention.key.layout.size[1]), {H: heads})

    def pointer(self, ref: TensorRef, position: tuple[Expr, ...]) -> str:
        """Returns the address of an operand's element at `position`, as text in the kernel."""
        return f"{self.plan.names.buffers[ref.buffer]} + {self.plan.text(offset_of(ref, position))}"

    def stride(self, ref: TensorRef, dim: int) -> str:
        """Returns the operand's stride along `dim`, in elements, as text in the kernel."""
        return self.plan.text(ref.layout.stride[dim])

    def row_masks(self) -> list[str]:
        """Returns the mask of the tile's queries where the last tile may reach beyond the last query."""
        return ["ymask"] if self.rows.masked else []

    @staticmethod
    def given(masks: list[str]) -> str:
        """Returns the arguments of `tl.load` for masks: masked elements are 0. '' without masks."""
        return f", mask={' & '.join(masks)}, other=0.0" if masks else ""

    # -------------------------------------------------------------------------------------------------- over the keys

    def write_walk(self) -> None:
        """Emits the walk over the keys: over listed blocks, between the mask's bounds, or over all of them."""
        emit = self.tile.emit
        self.write_outside()
        emit('maximum = tl.full([YBLOCK], float("-inf"), tl.float32)', "total = tl.zeros([YBLOCK], tl.float32)")
        emit(*(f"accumulator{e.number} = tl.zeros([YBLOCK, {e.block}], tl.float32)" for e in self.across))
        blocks = self.attention.blocks
        if blocks is None:
            emit("zero = h0 * 0")  # of the type of indices
            bounds = find_bounds(self.plan.mask, Q, K)
            seen = find_bounds(least_mask(self.plan.score) if self.subtracts_first else None, Q, K)
            if bounds:
                self.walk_between(bounds)
            elif seen.upper:
                self.walk_seen(seen)
            else:
                self.walk_all()
            return
        self.walk_blocks(blocks, blocks.counts, blocks.indices, True)
        if blocks.full_counts is not None and blocks.full_indices is not None:
            self.walk_blocks(blocks, blocks.full_counts, blocks.full_indices, False)

    def write_outside(self) -> None:
        """Emits the values of the bodies that do not vary along the keys."""
        inside: set[Node] = set()
        outside: list[Node] = []
        for node in walk(*self.roots(True)):
            varies = K in self.plan.body.variables[node] or (node.op == "load" and node.buffer == SCORE)
            if varies or not inside.isdisjoint(node.args):
                inside.add(node)
            elif node.op != "const":
                outside.append(node)
        self.tile.compute(outside)

    def roots(self, with_mask: bool) -> list[Node]:
        """Returns the nodes that a tile of scores needs: the score, and the mask if wanted, as far as there are bodies
        for them."""
        plan = self.plan
        found = [plan.score, plan.mask if with_mask else None]
        return [node for node in found if node is not None]

    def walk_all(self) -> None:
        """Emits the walk over all keys: a loop over whole tiles, and a last tile that may reach beyond the end."""
        text, keys = self.plan.text(self.plan.size[3]), self.plan.size[3]
        block = self.tiles.keys
        if keys.is_Integer:
            # Always times one, which ptxas does not know: it unrolls a loop of known length for seconds.
            self.tile.emit(f"end = {int(keys) // block * block} * tl.num_programs(1)")
        else:
            self.tile.emit(f"end = {text} // XBLOCK * XBLOCK")
        if not keys.is_Integer or int(keys) >= block:
            self.walk("0", "end", True, False)
        if self.uneven:
            self.walk("end", text, True, True)

    def walk_between(self, bounds: Bounds) -> None:
        """Emits the walk over the tiles that the mask's bounds leave: with the mask where a bound goes through a tile,
        then without it those in between. For queries beyond the last there is no tighter bound than for others.

        In the order of keys, ptxas would wait after each instruction of the tensor cores (CUDA 12.8, causal masks)."""
        emit, keys = self.tile.emit, self.plan.text(self.plan.size[3])
        emit(f"yfirst = row{self.wide} * YBLOCK", "ylast = yfirst + YBLOCK - 1")
        begin, opened = (self.limit(bounds.lower, greatest, "tl.maximum", "zero") for greatest in (False, True))
        end, closed = (self.limit(bounds.upper, greatest, "tl.minimum", f"{keys} - 1") for greatest in (True, False))
        emit(f"begin = {begin} // XBLOCK * XBLOCK", f"end = {end} + 1")
        if not bounds.exact:
            self.walk("begin", "end", True, self.uneven)
            return
        emit(f"opened = tl.cdiv({opened}, XBLOCK) * XBLOCK")
        emit(f"closed = tl.maximum({closed} + 1, 0) // XBLOCK * XBLOCK")
        if bounds.lower:
            self.walk("begin", "tl.minimum(opened, end)", True, self.uneven)
        if bounds.upper or self.uneven:
            self.walk("tl.maximum(opened, closed)", "end", True, self.uneven)
        self.walk("opened", "closed", False, False)

    def walk_seen(self, bounds: Bounds) -> None:
        """Emits the walk over the tiles up to the last key that a mask of the least number leaves, and over those
        behind only if some row has seen nothing by then: what is masked weighs nothing beside any other score, but in
        such a row all keys count."""
        emit, keys = self.tile.emit, self.plan.text(self.plan.size[3])
        emit(f"yfirst = row{self.wide} * YBLOCK", "ylast = yfirst + YBLOCK - 1")
        last = self.limit(bounds.upper, True, "tl.minimum", f"{keys} - 1")
        emit(f"end = tl.cdiv(tl.maximum({last} + 1, 0), XBLOCK) * XBLOCK")
        self.walk("0", f"tl.minimum(end, {keys})", True, self.uneven)
        emit(f"last = tl.where(tl.min(maximum, 0) < {NOTHING_SEEN!r}, {keys}, 0)")
        self.walk("end", "last", True, self.uneven)

    def limit(self, limits: tuple[Expr, ...], greatest: bool, combine: str, found: str) -> str:
        """Returns the text of `combine` over `found` and each limit's extreme among the tile's queries."""
        for limit in limits:
            last = (limit.coeff(Q) > 0) == greatest
            names = {**self.plan.names.index_names, Q: "ylast" if last else "yfirst"}
            found = f"{combine}({IndexText(names, self.plan.body.extents)(limit)} + zero, {found})"
        return found

    def walk(self, begin: str, end: str, with_mask: bool, beyond: bool) -> None:
        """Emits a loop over tiles of keys from position `begin` to `end`. beyond: may a tile reach beyond the last
        key?"""
        with self.loop(f"for place in range({begin}, {end}, XBLOCK):"):
            self.tile.emit("start = place + zero")
            self.step(with_mask, beyond)

    @property
    def uneven(self) -> bool:
        """Returns whether the last tile may reach beyond the last key."""
        keys = self.plan.size[3]
        return not (keys.is_Integer and int(keys) % self.tiles.keys == 0)

    def walk_blocks(self, blocks: Blocks, counts: TensorRef, indices: TensorRef, with_mask: bool) -> None:
        """Emits the walk over the blocks of keys that the mask lists for the program's queries."""
        plan, emit, tiles, wide = self.plan, self.tile.emit, self.tiles, self.wide
        keys, block = plan.size[3], int(blocks.keys)
        several = max(1, int(blocks.queries) // tiles.rows)
        emit(f"listed = tl.minimum(row // {several}, {plan.text(counts.layout.size[2] - 1)}){wide}")
        place = [self.stride(ref, 2) for ref in (counts, indices)]
        count = f"tl.load({self.pointer(counts, (B, H, ZERO))} + listed * {place[0]})"
        emit(f"count = tl.minimum({count}, {plan.text(indices.layout.size[3])})")
        emit(f"indices = {self.pointer(indices, (B, H, ZERO, ZERO))} + listed * {place[1]}")
        emit(f"each = {self.tiles_of_block(keys, block)}")
        whole = bool(keys.is_Integer) and int(keys) % block == 0 and block % tiles.keys == 0
        # The next block is read a step ahead: were keys read from where this step's load says, Triton's pipeline would
        # hold the list instead of a stage of keys and values.
        room = f"{plan.text(indices.layout.size[3])} - 1"
        emit("following = tl.load(indices, mask=count > 0, other=0)")
        with self.loop("for step in range(0, count * each):"):
            # Whatever is listed, no key outside of the tensor is read.
            emit(f"block = tl.minimum(tl.maximum(following, 0), ({plan.text(keys)} - 1) // {block}){wide}")
            emit(f"following = tl.load(indices + tl.minimum((step + 1) // each, {room}) * {self.stride(indices, 3)})")
            emit(f"start = tl.multiple_of(block * {block} + step % each * XBLOCK, XBLOCK)")
            self.step(with_mask, not whole)

    def tiles_of_block(self, keys: Expr, block: int) -> str:
        """Returns the text of how many tiles of keys a block has. A block may be larger than all the keys."""
        if keys.is_Integer:
            return str(-(-min(block, int(keys)) // self.tiles.keys))
        if block < 2**30:
            return str(-(-block // self.tiles.keys))
        return f"tl.cdiv({self.plan.text(keys)}, XBLOCK)"

    @contextmanager
    def loop(self, head: str) -> Iterator[None]:
        """Emits a loop with the head line `head` around what is written inside. Its values are forgotten at its end."""
        tile = self.tile
        kept = dict(tile.values)
        tile.emit(head)
        tile.depth += 1
        yield
        tile.depth -= 1
        tile.values = kept

    def step(self, with_mask: bool, beyond: bool) -> None:
        """Emits the work on one tile of keys, the first of which is `start`. beyond: some keys of the tile may be
        outside."""
        plan, tile, emit = self.plan, self.tile, self.tile.emit
        axis = self.keys(beyond)
        self.use(axis)
        write_axis(tile, axis, "start + lane[None, :]")
        outside = ["(start + lane[:, None] < " + plan.text(plan.size[3]) + ")"] if beyond else []
        key, value = self.attention.key, self.attention.value
        for d in self.depth:
            masks = [*(["xmask"] if beyond else []), *d.mask("[:, None]")]
            emit(
                f"key{d.number} = tl.load(keys + start * {self.stride(key, 2)} + keytile{d.number}{self.given(masks)})"
            )
            so_far = ", scores" if d.number else ""
            emit(f"scores = tl.dot(query{d.number}, key{d.number}{so_far}{plan.precision()})")
        if not self.folded:
            emit(f"scores = scores * {float(self.attention.scale)!r}")
        self.write_body(with_mask, beyond)
        factor = repr(self.factor)
        emit("greatest = tl.maximum(maximum, tl.max(scores, 1))")
        # A row without a key so far has -inf, and -inf - -inf would be NaN.
        finite = f"tl.where(greatest < {LEAST_SCALED!r}, 0.0, greatest)"
        if self.subtracts_first:
            emit(
                'shift = tl.where(greatest == float("-inf"), 0.0, greatest)',
                f"weights = _exp2_flushed((scores - shift[:, None]) * {factor})",
                f"smaller = _exp2_flushed((maximum - shift) * {factor})",
            )
        else:
            emit(
                f"shift = {finite} * {factor}",
                f"weights = _exp2_flushed(scores * {factor} - shift[:, None])",
                f"smaller = _exp2_flushed(maximum * {factor} - shift)",
            )
        emit("total = total * smaller + tl.sum(weights, 1)")
        element = ELEMENTS[plan.dtype]
        rounded = [f"weights.to({element})"]
        if self.attention.doubled:
            emit(f"most = {rounded[0]}", f"rest = (weights - most.to(tl.float32)).to({element})")
            rounded = ["most", "rest"]
        for e in self.across:
            masks = [*outside, *e.mask("[None, :]")]
            place = f"values + start * {self.stride(value, 2)} + valuetile{e.number}"
            emit(f"value{e.number} = tl.load({place}{self.given(masks)})")
            emit(f"accumulator{e.number} = accumulator{e.number} * smaller[:, None]")
            for part in rounded:
                product = f"{part}, value{e.number}, accumulator{e.number}{plan.precision()}"
                emit(f"accumulator{e.number} = tl.dot({product})")
        emit("maximum = greatest")

    def use(self, axis: Axis) -> None:
        """Makes core's code generator write for the keys of `axis` from here on."""
        self.tile.tiling = self.plan.tile(self.rows, axis, self.tiles.warps).tiling

    def write_body(self, with_mask: bool, beyond: bool) -> None:
        """Emits what becomes of the scores: `scores` again, -inf where no key is looked at."""
        plan, tile = self.plan, self.tile
        for node in plan.body.loads:
            if node.buffer == SCORE:
                tile.give(node, "scores", TILE)
        tile.compute(self.roots(with_mask))
        looked_at = ["xmask"] if beyond else []
        if with_mask and plan.mask is not None:
            looked_at.insert(0, tile.full(plan.mask, TILE))
        if plan.score is not None:
            tile.emit(f"scores = {tile.full(plan.score, TILE)}")
        if looked_at:
            tile.emit(f'scores = tl.where({" & ".join(looked_at)}, scores, float("-inf"))')

    # -------------------------------------------------------------------------------------------------------- results

    def write_results(self) -> None:
        """Emits the stores of the results. A row without a key gives 0 (or 0 / 0), and -inf as its logsumexp and
        maximum, both of which count in powers of 2."""
        attention, plan, emit = self.attention, self.plan, self.tile.emit
        empty = "total" if math.isnan(attention.nothing) else "tl.where(total == 0.0, 1.0, total)"
        emit(f"divisor = ({empty})[:, None]")
        out, *others = attention.outputs
        assert out is not None
        for e in self.across:
            masks = [*self.row_masks(), *e.mask("[None, :]")]
            place = f"{self.rows_of(out)} + {e.name}[None, :] * {self.plan.text(plan.buffers[out].layout.stride[3])}"
            self.store(place, f"accumulator{e.number} / divisor", masks)
        for name, write in zip(others, (self.write_sums, self.write_maxima)):
            if name is not None and name in plan.outputs:
                self.store(self.rows_of(name), write(), self.row_masks())

    def write_sums(self) -> str:
        """Emits what logsumexp needs, and returns its text as a column: the base-2 logarithm of each row's sum."""
        self.tile.emit(f'shift = tl.where(maximum == float("-inf"), 0.0, maximum) * {self.factor!r}')
        return "(shift + tl.log2(total))[:, None]"

    def write_maxima(self) -> str:
        """Emits what the rows' maxima need, and returns them as a column of text; NaN for a row with a NaN."""
        # The maximum of a row with a NaN is NaN.
        self.tile.emit('nan = (total != total) & (maximum != float("inf"))')
        return f"tl.where(nan, total, maximum * {self.factor!r})[:, None]"

    def rows_of(self, name: str) -> str:
        """Returns Triton text for pointers to the program's rows of a result."""
        layout = self.plan.buffers[name].layout
        place = self.pointer(
            TensorRef(name, Layout(layout.size, layout.stride)), (B, H, *(ZERO for _ in layout.size[2:]))
        )
        return f"{place} + y0 * {self.plan.text(layout.stride[2])}"

    def store(self, place: str, text: str, masks: list[str]) -> None:
        """Emits a store of `text` at `place`, where all masks hold."""
        given = f", {' & '.join(masks)}" if masks else ""
        self.tile.emit(f"tl.store({place}, {text}{given})")


__all__ = ["Forward", "write_attention"]
