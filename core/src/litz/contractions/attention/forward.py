"""The kernel of attention: in, an `AttentionPlan` and `Tiles`; out, a `KernelSource` of Triton text.

A program has a tile of queries of one head and walks over tiles of keys, with the softmax's maximum and sum so far of
each row: what was added up before is scaled down when a greater score comes (Milakov and Gimelshein, 2018; Dao et al.,
2022). No score is ever in memory. What becomes of a score is core's own text (`litz.codegen.triton.values`), on a tile
whose axis y are the queries and whose axis x are the keys; what does not vary along the keys is computed before.

With `Blocks` the walk goes over the listed blocks of keys: with the mask over those that are partly masked, without it
over the full ones. Without, the bounds that a mask's comparisons say (`bounds.py`) tell which tiles need it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from litz.codegen.triton.dialect import ELEMENTS
from litz.codegen.triton.indices import write_axis
from litz.codegen.triton.text import IndexText
from litz.codegen.triton.tiling import Axis
from litz.codegen.triton.values import Value
from litz.ir import Blocks, Layout, Node, Range, TensorRef
from litz.ir.attention import SCORE
from litz.ir.index import ZERO, Expr, floordiv
from litz.ir.node import walk
from litz_plugins import KernelSource

from .bounds import Bounds, find_bounds
from .plan import AttentionPlan, B, H, K, Q, Unsuitable, offset_of
from .tiles import Tiles

LOG2_E = 1 / math.log(2)
TILE = frozenset("yx")
LANES = {"lane": "XBLOCK", "d": "DBLOCK", "e": "EBLOCK"}
"""Along the keys of a tile, the elements of a key and those of a value."""


@dataclass(frozen=True)
class KeyAxis(Axis):
    """The keys of a tile. beyond: may the tile reach beyond the last key? Only the last tile does."""

    beyond: bool = False

    @property
    def masked(self) -> bool:
        return self.beyond


def write_attention(plan: AttentionPlan, tiles: Tiles, name: str) -> KernelSource:
    """The kernel that writes `plan.outputs`: the result, and perhaps logsumexp and maxima. Unsuitable where a tile may
    be part of two blocks."""
    return Forward(plan, tiles).source(name)


def check_blocks(blocks: Blocks | None, tiles: Tiles) -> None:
    """Unsuitable unless a tile is part of one block. One block for all is as good as none."""
    if blocks is None:
        return
    sides = ((blocks.queries, tiles.rows, blocks.counts, 2), (blocks.keys, tiles.keys, blocks.indices, 3))
    for extent, tile, listed, dim in sides:
        if not extent.is_Integer:
            raise Unsuitable("a mask whose blocks are not of a constant size")
        if int(extent) % tile and listed.layout.size[dim] != 1:
            raise Unsuitable(f"a mask of blocks of {extent}, of which {tile} is not a divisor")


class Forward:
    """The text while it is written."""

    def __init__(self, plan: AttentionPlan, tiles: Tiles) -> None:
        self.plan, self.tiles, self.attention = plan, tiles, plan.attention
        check_blocks(plan.attention.blocks, tiles)
        self.wide = "" if plan.index_type == "tl.int32" else f".to({plan.index_type})"
        self.rows = Axis("y", (Range(Q, plan.size[2]),), tiles.rows)
        self.tile = plan.tile(self.rows, self.keys(False), tiles.warps)
        self.folded = plan.score is None and float(self.attention.scale) > 0
        """Is the scale part of the exponent's factor? Scores are then what the product gives."""
        self.factor = (float(self.attention.scale) if self.folded else 1.0) * LOG2_E

    def keys(self, beyond: bool) -> KeyAxis:
        return KeyAxis("x", (Range(K, self.plan.size[3]),), self.tiles.keys, beyond)

    # ---------------------------------------------------------------------------------------------------- the module

    def source(self, name: str) -> KernelSource:
        plan, tile = self.plan, self.tile
        self.write_place()
        self.write_operands()
        self.write_walk()
        self.write_results()
        limits = plan.size_texts([*plan.limits, *tile.limits])
        parameters = [*plan.names.buffers.values(), *plan.names.sizes.values()]
        if limits:
            parameters.append("INDEX: tl.constexpr")
        elif plan.index_type == "INDEX":
            tile.lines.insert(0, "    INDEX: tl.constexpr = tl.int32")
        symbol, body = plan.symbol("attention"), "\n".join(tile.lines)
        lines = [*plan.header(f"attention: {self.tiles}"), "import triton", "import triton.language as tl"]
        helpers = sorted(set(re.findall(r"(?<![\w.])_[a-z]\w*", body)))
        helpers += ["libdevice"] if "libdevice." in body else []
        if helpers:
            lines.append(f"from litz.runtime.triton_helpers import {', '.join(helpers)}")
        lines += ["", "", "@triton.jit", f"def {symbol}({', '.join(parameters)}):", body, ""]
        arguments = (*plan.names.buffers, *plan.names.sizes)
        settings = plan.settings(body, limits, self.grid(), self.tiles.warps, self.tiles.stages)
        return KernelSource(name, "triton", "\n".join(lines), symbol, arguments, settings, suffix="py")

    def grid(self) -> str:
        batch, heads, rows, _ = map(self.plan.host_text, self.plan.size)
        return f"(-(-{rows} // {self.tiles.rows})) * {heads} * {batch}"

    # ----------------------------------------------------------------------------------------- what a program works on

    def write_place(self) -> None:
        """Programs of one head are neighbours, as they read the same keys. The last queries come first: where a mask is
        causal they look at the most keys, and what takes long should not start last."""
        emit, plan, wide = self.tile.emit, self.plan, self.wide
        _, heads, rows, _ = plan.size
        emit(f"YBLOCK: tl.constexpr = {self.tiles.rows}", f"XBLOCK: tl.constexpr = {self.tiles.keys}")
        emit(f"DBLOCK: tl.constexpr = {plan.padded[0]}", f"EBLOCK: tl.constexpr = {plan.padded[1]}")
        emit(f"columns = {self.blocks_of(rows, self.tiles.rows)}")
        emit("row = columns - 1 - tl.program_id(0) % columns", "outer = tl.program_id(0) // columns")
        emit(f"h0 = (outer % {plan.text(heads)}){wide}", f"b0 = (outer // {plan.text(heads)}){wide}")
        write_axis(self.tile, self.rows, f"row{wide} * YBLOCK + tl.arange(0, YBLOCK)[:, None]")
        emit(*(f"{name} = tl.arange(0, {size}){wide}" for name, size in LANES.items()))

    def blocks_of(self, size: Expr, block: int) -> str:
        return str(-(-int(size) // block)) if size.is_Integer else f"tl.cdiv({self.plan.text(size)}, {block})"

    def write_operands(self) -> None:
        """The queries, and where the tiles of keys and values begin. Keys lie transposed in their tile."""
        attention, emit = self.attention, self.tile.emit
        query, key, value = attention.query, attention.key, attention.value
        group = floordiv(query.layout.size[1], key.layout.size[1])
        shared = floordiv(H, group, {H: query.layout.size[1]})
        place = self.pointer(query, (B, H, ZERO, ZERO))
        offset = f"y0 * {self.stride(query, 2)} + d[None, :] * {self.stride(query, 3)}"
        masks = [*self.row_masks(), *self.width_mask("d[None, :]", 0)]
        emit(f"query = tl.load({place} + {offset}{self.given(masks)})")
        for name, ref, tile in (
            ("key", key, f"d[:, None] * {self.stride(key, 3)} + lane[None, :] * {self.stride(key, 2)}"),
            ("value", value, f"lane[:, None] * {self.stride(value, 2)} + e[None, :] * {self.stride(value, 3)}"),
        ):
            emit(f"{name}s = {self.pointer(ref, (B, shared, ZERO, ZERO))}", f"{name}tile = {tile}")

    def pointer(self, ref: TensorRef, position: tuple[Expr, ...]) -> str:
        return f"{self.plan.names.buffers[ref.buffer]} + {self.plan.text(offset_of(ref, position))}"

    def stride(self, ref: TensorRef, dim: int) -> str:
        return self.plan.text(ref.layout.stride[dim])

    def row_masks(self) -> list[str]:
        return ["ymask"] if self.rows.masked else []

    def width_mask(self, index: str, which: int) -> list[str]:
        width, block = self.plan.widths[which], self.plan.padded[which]
        return [] if width == block else [f"({index} < {width})"]

    @staticmethod
    def given(masks: list[str]) -> str:
        return f", mask={' & '.join(masks)}, other=0.0" if masks else ""

    # -------------------------------------------------------------------------------------------------- over the keys

    def write_walk(self) -> None:
        emit = self.tile.emit
        self.write_outside()
        emit('maximum = tl.full([YBLOCK], float("-inf"), tl.float32)', "total = tl.zeros([YBLOCK], tl.float32)")
        emit("accumulator = tl.zeros([YBLOCK, EBLOCK], tl.float32)")
        blocks = self.attention.blocks
        if blocks is None:
            emit("zero = h0 * 0")  # of the type of indices
            bounds = find_bounds(self.plan.mask, Q, K)
            if bounds:
                self.walk_between(bounds)
            else:
                self.walk_all()
            return
        self.walk_blocks(blocks, blocks.counts, blocks.indices, True)
        if blocks.full_counts is not None and blocks.full_indices is not None:
            self.walk_blocks(blocks, blocks.full_counts, blocks.full_indices, False)

    def write_outside(self) -> None:
        """The values of the bodies that do not vary along the keys."""
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
        plan = self.plan
        found = [plan.score, plan.mask if with_mask else None]
        return [node for node in found if node is not None]

    def walk_all(self) -> None:
        """Over all keys: whole tiles, and one that reaches beyond the end where there is one."""
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
        """Over the tiles that the mask's bounds leave: with the mask where a bound goes through a tile, without it in
        between. For queries beyond the last there is no tighter bound than for others."""
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
        self.walk("opened", "closed", False, False)
        if bounds.upper or self.uneven:
            self.walk("tl.maximum(opened, closed)", "end", True, self.uneven)

    def limit(self, limits: tuple[Expr, ...], greatest: bool, combine: str, found: str) -> str:
        """The text of the least or greatest value of each limit among the tile's queries, and `found`, combined."""
        for limit in limits:
            last = (limit.coeff(Q) > 0) == greatest
            names = {**self.plan.names.index_names, Q: "ylast" if last else "yfirst"}
            found = f"{combine}({IndexText(names, self.plan.body.extents)(limit)} + zero, {found})"
        return found

    def walk(self, begin: str, end: str, with_mask: bool, beyond: bool) -> None:
        with self.loop(f"for place in range({begin}, {end}, XBLOCK):"):
            self.tile.emit("start = place + zero")
            self.step(with_mask, beyond)

    @property
    def uneven(self) -> bool:
        """May the last tile reach beyond the last key?"""
        keys = self.plan.size[3]
        return not (keys.is_Integer and int(keys) % self.tiles.keys == 0)

    def walk_blocks(self, blocks: Blocks, counts: TensorRef, indices: TensorRef, with_mask: bool) -> None:
        """Over the blocks that are listed for the program's queries."""
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
        with self.loop("for step in range(0, count * each):"):
            # Whatever is listed, no key outside of the tensor is read.
            emit(f"block = tl.load(indices + step // each * {self.stride(indices, 3)})")
            emit(f"block = tl.minimum(tl.maximum(block, 0), ({plan.text(keys)} - 1) // {block}){wide}")
            emit(f"start = tl.multiple_of(block * {block} + step % each * XBLOCK, XBLOCK)")
            self.step(with_mask, not whole)

    def tiles_of_block(self, keys: Expr, block: int) -> str:
        """How many tiles of keys a block has. A block may be larger than all the keys."""
        if keys.is_Integer:
            return str(-(-min(block, int(keys)) // self.tiles.keys))
        if block < 2**30:
            return str(-(-block // self.tiles.keys))
        return f"tl.cdiv({self.plan.text(keys)}, XBLOCK)"

    @contextmanager
    def loop(self, head: str) -> Iterator[None]:
        """A loop over keys; its values are gone at its end."""
        tile = self.tile
        kept = dict(tile.values)
        tile.emit(head)
        tile.depth += 1
        yield
        tile.depth -= 1
        tile.values = kept

    def step(self, with_mask: bool, beyond: bool) -> None:
        """One tile of keys, the first of which is `start`. beyond: some may be outside."""
        plan, tile, emit = self.plan, self.tile, self.tile.emit
        axis = self.keys(beyond)
        self.use(axis)
        write_axis(tile, axis, "start + lane[None, :]")
        outside = ["(start + lane[:, None] < " + plan.text(plan.size[3]) + ")"] if beyond else []
        key, value = self.attention.key, self.attention.value
        masks = [*(["xmask"] if beyond else []), *self.width_mask("d[:, None]", 0)]
        emit(f"key = tl.load(keys + start * {self.stride(key, 2)} + keytile{self.given(masks)})")
        emit(f"scores = tl.dot(query, key{plan.precision()})")
        if not self.folded:
            emit(f"scores = scores * {float(self.attention.scale)!r}")
        self.write_body(with_mask, beyond)
        factor = repr(self.factor)
        emit(
            "greatest = tl.maximum(maximum, tl.max(scores, 1))",
            # A row without a key so far has -inf, and -inf - -inf would be NaN.
            f'shift = tl.where(greatest == float("-inf"), 0.0, greatest) * {factor}',
            f"weights = tl.exp2(scores * {factor} - shift[:, None])",
            f"smaller = tl.exp2(maximum * {factor} - shift)",
            "total = total * smaller + tl.sum(weights, 1)",
            "accumulator = accumulator * smaller[:, None]",
        )
        masks = [*outside, *self.width_mask("e[None, :]", 1)]
        emit(f"value = tl.load(values + start * {self.stride(value, 2)} + valuetile{self.given(masks)})")
        element = ELEMENTS[plan.dtype]
        emit(f"accumulator = tl.dot(weights.to({element}), value, accumulator{plan.precision()})")
        emit("maximum = greatest")

    def use(self, axis: Axis) -> None:
        """Have core's code generator write for these keys from here on."""
        self.tile.tiling = self.plan.tile(self.rows, axis, self.tiles.warps).tiling

    def write_body(self, with_mask: bool, beyond: bool) -> None:
        """What becomes of the scores: `scores` again, -inf where there is no key."""
        plan, tile = self.plan, self.tile
        for node in plan.body.loads:
            if node.buffer == SCORE:
                tile.values[node] = Value("scores", TILE)
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
        """A row without a key gives 0, and -inf as its logsumexp and maximum, both of which count in powers of 2."""
        attention, plan, emit = self.attention, self.plan, self.tile.emit
        emit("result = accumulator / tl.where(total == 0.0, 1.0, total)[:, None]")
        out, *others = attention.outputs
        for name, text in zip((out, *others), ("result", "sums[:, None]", "most[:, None]")):
            if name not in plan.outputs or name is None:
                continue
            if text.startswith("sums"):
                emit(f'shift = tl.where(maximum == float("-inf"), 0.0, maximum) * {self.factor!r}')
                emit("sums = shift + tl.log2(total)")
            elif text.startswith("most"):
                # The maximum of a row with a NaN is NaN.
                emit('nan = (total != total) & (maximum != float("inf"))')
                emit(f"most = tl.where(nan, total, maximum * {self.factor!r})")
            self.store(name, text)

    def store(self, name: str, text: str) -> None:
        buffer = self.plan.buffers[name]
        whole = TensorRef(name, Layout(buffer.layout.size, buffer.layout.stride))
        place = f"{self.pointer(whole, (B, H, *(ZERO for _ in buffer.layout.size[2:])))} + y0 * {self.stride(whole, 2)}"
        masks = self.row_masks()
        if len(buffer.layout.size) == 4:
            place += f" + e[None, :] * {self.stride(whole, 3)}"
            masks += self.width_mask("e[None, :]", 1)
        given = f", {' & '.join(masks)}" if masks else ""
        self.tile.emit(f"tl.store({place}, {text}{given})")


__all__ = ["Forward", "write_attention"]
