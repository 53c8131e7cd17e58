"""Attention's kernel in Gluon, for Hopper: while the tensor cores multiply for one tile of keys, the softmax of the
next one is computed (Shah et al., FlashAttention-3, 2024). In: an `AttentionPlan` and `Tiles`. Out: a `KernelSource`.

Triton waits for every product where it stands, so that its kernel (`forward.py`) does either. Here the walk is a
pipeline:

    step t          tensor cores                        other units
    --------------------------------------------------------------------------
    start           scores of tile t+1, weights(t) * value(t)     copies of key t+stages, value t+stages-1
    then            weights(t) * value(t)               softmax of tile t+1
    end             -                                   what was summed is scaled down

Tiles are numbered along the walk: those that need the mask first, then those of full blocks, in one pipeline. Numbers
past the end stand for the last tile again, whose copies nobody uses.
"""

from __future__ import annotations

import re

from litz.codegen.triton.dialect import ELEMENTS
from litz.codegen.triton.indices import write_axis
from litz.ir import Blocks, TensorRef
from litz.ir.dtypes import HALF
from litz.ir.index import ZERO
from litz_plugins import KernelSource

from .bounds import find_bounds
from .forward import TILE, Forward
from .plan import AttentionPlan, B, H, K, Q, Unsuitable
from .tiles import Tiles

KNOWN = frozenset({"_exact_float", "_exp2_flushed", "_kept", "_maximum", "_minimum", "_never", "_tanh_near"})
"""What `litz.runtime.gluon_helpers` has."""
LANGUAGE = ("async_copy", "fence_async_shared", "gluon", "tl", "triton_language", "warpgroup_mma", "warpgroup_mma_wait")
WIDTHS = frozenset({64, 128, 256})


def write_overlapped(plan: AttentionPlan, tiles: Tiles, name: str) -> KernelSource:
    """The kernel that writes `plan.outputs`. Unsuitable, with the reason, where it has to be Triton's."""
    why = unfit(plan, tiles)
    if why:
        raise Unsuitable(why)
    return Overlapped(plan, tiles).source(name)


def unfit(plan: AttentionPlan, tiles: Tiles) -> str:
    """Why this kernel cannot be; "" where it can."""
    attention = plan.attention
    refs = attention.query, attention.key, attention.value
    if plan.dtype not in HALF or not set(plan.widths) <= WIDTHS:
        return "operands are not half types with heads of 64, 128 or 256 elements"
    if not all(size.is_Integer for size in plan.size) or plan.index_type != "tl.int32":
        return "sizes are not constants of 32 bits"
    if int(plan.size[3]) % tiles.keys or not int(plan.size[3]):
        return f"keys are not a multiple of {tiles.keys}"
    for ref in refs:
        *outer, inner = ref.layout.stride
        if inner != 1 or any(not e.is_Integer or int(e) % 8 for e in (*outer, ref.layout.offset)):
            return "rows do not start at multiples of 16 bytes"
        if plan.is_unaligned(ref.buffer):
            return "an operand may start anywhere"
    blocks = attention.blocks
    if blocks is not None and (int(plan.size[3]) % int(blocks.keys) and int(blocks.keys) < int(plan.size[3])):
        return "the last block of the mask is shorter than others"
    if tiles.rows % (16 * tiles.warps) or tiles.warps % 4 or tiles.stages < 2:
        return f"no tile for groups of four warps: {tiles}"
    return ""


class Overlapped(Forward):
    """The text while it is written. first: of the first tile along the keys, with a plus behind it."""

    first = ""
    copies_first = False

    def source(self, name: str) -> KernelSource:
        plan = self.plan
        self.write_place()
        self.write_operands()
        self.write_walk()
        self.write_results()
        body = "\n".join(self.tile.lines)
        limits = plan.size_texts([*plan.limits, *self.tile.limits])
        helpers = set(re.findall(r"(?<![\w.])_[a-z]\w*", body))
        if "libdevice." in body or not helpers <= KNOWN or limits or "device_assert" in body or "broadcast_to" in body:
            raise Unsuitable("a body needs what Gluon's kernels do not have")
        symbol = plan.symbol("attention_overlapped")
        imports = ", ".join(sorted({*LANGUAGE, *helpers}, key=str.lower))
        lines = plan.header(f"attention: {self.tiles}")
        lines += [f"from litz.runtime.gluon_helpers import {imports}", "", "", "@gluon.jit"]
        lines += [f"def {symbol}({', '.join(plan.names.buffers.values())}):", body, ""]
        settings = plan.settings(body, limits, self.grid(), self.tiles.warps, self.tiles.stages)
        arguments = (*plan.names.buffers, *plan.names.sizes)
        return KernelSource(
            name, "triton", "\n".join(lines), symbol, arguments, {**settings, "gluon": True}, suffix="py"
        )

    # ------------------------------------------------------------------------------------------------------- operands

    def write_place(self) -> None:
        emit, plan, tiles = self.tile.emit, self.plan, self.tiles
        _, heads, rows, _ = plan.size
        constants = {"YBLOCK": tiles.rows, "XBLOCK": tiles.keys, "STAGES": tiles.stages, "WARPS": tiles.warps}
        depth, width = plan.widths
        emit(
            *(
                f"{name}: tl.constexpr = {value}"
                for name, value in {**constants, "DEPTH": depth, "WIDTH": width}.items()
            )
        )
        layouts = {
            "scoresin": "tl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, XBLOCK, 16])",
            "resultin": "tl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, WIDTH, 16])",
            "weightsin": "tl.DotOperandLayout(0, resultin, 2)",
            "keysin": f"tl.BlockedLayout([1, 8], [{256 // depth}, {depth // 8}], [WARPS, 1], [1, 0])",
            "valuesin": f"tl.BlockedLayout([1, 8], [{256 // width}, {width // 8}], [WARPS, 1], [1, 0])",
            "shared": "tl.NVMMASharedLayout(128, 16, 2)",
        }
        emit(*(f"{name}: tl.constexpr = {text}" for name, text in layouts.items()))
        emit(f"columns = {self.blocks_of(rows, tiles.rows)}")
        emit("row = columns - 1 - tl.program_id(0) % columns", "outer = tl.program_id(0) // columns")
        emit(f"h0 = (outer % {plan.text(heads)})", f"b0 = (outer // {plan.text(heads)})")
        write_axis(self.tile, self.rows, f"row * YBLOCK + {self.arange('YBLOCK', 1, 'scoresin')}")
        emit(f"lane = {self.arange('XBLOCK', 0, 'scoresin')}")

    @staticmethod
    def arange(size: str, dim: int, layout: str) -> str:
        """A row (dim 0) or a column (dim 1) of positions."""
        at = "[:, None]" if dim else "[None, :]"
        return f"tl.arange(0, {size}, layout=tl.SliceLayout({dim}, {layout})){at}"

    def write_operands(self) -> None:
        attention, emit, plan = self.attention, self.tile.emit, self.plan
        query, key, value = attention.query, attention.key, attention.value
        shared = self.shared_head()
        element = ELEMENTS[plan.dtype]
        emit(f"rows = row * YBLOCK + {self.arange('YBLOCK', 1, 'keysin')}")
        emit(f"depth = {self.arange('DEPTH', 0, 'keysin')}", f"width = {self.arange('WIDTH', 0, 'valuesin')}")
        given = f", mask=rows < {plan.text(plan.size[2])}, other=0.0" if self.rows.masked else ""
        place = f"{self.pointer(query, (B, H, ZERO, ZERO))} + rows * {self.stride(query, 2)} + depth"
        emit(f"querytile = tl.allocate_shared_memory({element}, [YBLOCK, DEPTH], shared, tl.load({place}{given}))")
        for name, ref, layout, width in (("key", key, "keysin", "depth"), ("value", value, "valuesin", "width")):
            emit(f"{name}tiles = tl.allocate_shared_memory({element}, [STAGES, XBLOCK, {width.upper()}], shared)")
            start = self.pointer(ref, (B, shared, ZERO, ZERO))
            lanes = self.arange("XBLOCK", 1, layout)
            emit(f"{name}s = {start} + {lanes} * {self.stride(ref, 2)} + {width}")

    # ------------------------------------------------------------------------------------------------------- the walk

    def write_walk(self) -> None:
        emit, stages = self.tile.emit, self.tiles.stages
        self.write_outside()
        emit("zero = h0 * 0")
        segments, masked = self.write_tiles()
        emit("scoreless = tl.zeros([YBLOCK, XBLOCK], tl.float32, scoresin)")
        emit("accumulator = tl.zeros([YBLOCK, WIDTH], tl.float32, resultin)")
        emit('maximum = tl.full([YBLOCK], float("-inf"), tl.float32, tl.SliceLayout(1, scoresin))')
        emit("total = tl.zeros([YBLOCK], tl.float32, tl.SliceLayout(1, scoresin))")
        for number in range(stages + 1):
            self.write_position(f"place{number}", str(number))
        self.copy("key", "0", "place0")
        emit("async_copy.commit_group()")
        for number in range(stages - 1):
            self.copy("key", str(number + 1), f"place{number + 1}")
            self.copy("value", str(number), f"place{number}")
            emit("async_copy.commit_group()")
        self.wait(stages - 1)
        emit(self.product("scores", "0"), "scores = warpgroup_mma_wait(0, deps=[scores])")
        kept = dict(self.tile.values)
        self.write_scores("place0", self.plan.mask is not None, masked)
        self.tile.values = kept
        emit(f"weights = tl.convert_layout(weights.to({ELEMENTS[self.plan.dtype]}), weightsin)")
        emit("never = amount + tl.num_programs(1)")
        for begin, end, with_mask in segments:
            with self.loop(f"for turn in range({begin}, {end}):"):
                self.write_step(with_mask)
        self.wait(0)
        emit("last = tl.maximum(amount - 1, 0) % STAGES")
        emit("accumulator = warpgroup_mma(weights, valuetiles.index(last), accumulator, is_async=True)")
        emit("accumulator = warpgroup_mma_wait(0, deps=[accumulator])")

    def write_tiles(self) -> tuple[list[tuple[str, str, bool]], str]:
        """Emit `amount`, how many tiles there are. The turns of the loops, each with whether it needs the mask (turn t
        makes the weights of tile t + 1), and what must hold for the first tile to be looked at, or not to be masked."""
        blocks = self.attention.blocks
        if blocks is not None:
            return self.write_lists(blocks), "looked"
        emit, keys = self.tile.emit, self.plan.text(self.plan.size[3])
        bounds = find_bounds(self.plan.mask, Q, K)
        if not bounds:
            emit(f"amount = {int(self.plan.size[3]) // self.tiles.keys} * tl.num_programs(1)")  # as `walk_all` does
            return [("0", "amount - 1", self.plan.mask is not None)], ""
        emit("yfirst = row * YBLOCK", "ylast = yfirst + YBLOCK - 1")
        begin, opened = (self.limit(bounds.lower, greatest, "tl.maximum", "zero") for greatest in (False, True))
        end, closed = (self.limit(bounds.upper, greatest, "tl.minimum", f"{keys} - 1") for greatest in (True, False))
        self.first = "first + "
        emit(f"first = {begin} // XBLOCK", f"amount = tl.maximum(tl.cdiv({end} + 1, XBLOCK) - first, 0)")
        if not bounds.exact:
            return [("0", "amount - 1", True)], ""
        emit(f"opened = tl.minimum(tl.maximum(tl.cdiv({opened}, XBLOCK) - first - 1, 0), tl.maximum(amount - 1, 0))")
        emit(f"closed = tl.minimum(tl.maximum(tl.maximum({closed} + 1, 0) // XBLOCK - first - 1, opened), amount - 1)")
        turns = [("0", "opened", True)] if bounds.lower else []
        return [*turns, ("opened", "closed", False), ("tl.maximum(opened, closed)", "amount - 1", True)], ""

    def write_lists(self, blocks: Blocks) -> list[tuple[str, str, bool]]:
        """Two lists, one after the other: `partial` tiles of the first."""
        emit, plan, tiles = self.tile.emit, self.plan, self.tiles
        several = max(1, int(blocks.queries) // tiles.rows)
        emit(f"each = {self.tiles_of_block(plan.size[3], int(blocks.keys))}")
        full = blocks.full_counts is not None
        for name, counts, indices in (
            ("partial", blocks.counts, blocks.indices),
            ("full", blocks.full_counts, blocks.full_indices),
        ):
            if counts is None or indices is None:
                emit("fulltiles = zero")
                continue
            emit(f"listed = tl.minimum(row // {several}, {plan.text(counts.layout.size[2] - 1)})")
            count = f"tl.load({self.pointer(counts, (B, H, ZERO))} + listed * {self.stride(counts, 2)})"
            emit(f"{name}tiles = tl.minimum({count}, {plan.text(indices.layout.size[3])}) * each")
            emit(f"{name}list = {self.pointer(indices, (B, H, ZERO, ZERO))} + listed * {self.stride(indices, 2)}")
        emit("amount = partialtiles + fulltiles", "looked = amount > 0", "bare = partialtiles == 0")
        middle = [("tl.maximum(partialtiles - 1, 0)", "amount - 1", False)] if full else []
        return [("0", "tl.minimum(partialtiles, amount) - 1", True), *middle]

    def write_position(self, name: str, number: str) -> None:
        """Emit where the tile of a number begins along the keys. Whatever is listed, it lies within the tensor."""
        emit, blocks, plan = self.tile.emit, self.attention.blocks, self.plan
        if blocks is None:
            last = int(plan.size[3]) // self.tiles.keys - 1
            number = f"{self.first}tl.minimum({number}, tl.maximum(amount - 1, 0))"
            emit(f"{name} = tl.minimum({number}, {last}) * XBLOCK")
            return
        step = "" if blocks.indices.layout.stride[3] == 1 else f" * {self.stride(blocks.indices, 3)}"
        emit(f"at = tl.minimum({number}, amount - 1)", "behind = at >= partialtiles")
        found = f"tl.load(partiallist + at // each{step}, mask=(at >= 0) & (at < partialtiles), other=0)"
        if blocks.full_indices is not None:
            other = blocks.full_indices.layout.stride[3]
            step = "" if other == 1 else f" * {self.stride(blocks.full_indices, 3)}"
            emit("rest = at - partialtiles")
            found += f" + tl.load(fulllist + rest // each{step}, mask=(at >= 0) & behind, other=0)"
        else:
            emit("rest = at")
        emit(f"block = tl.minimum(tl.maximum({found}, 0), {(int(plan.size[3]) - 1) // int(blocks.keys)})")
        emit("inner = tl.where(behind, rest, at) % each", f"{name} = block * {int(blocks.keys)} + inner * XBLOCK")
        emit(f"{name} = tl.where(looked, {name}, 0)")

    def copy(self, name: str, slot: str, place: str) -> None:
        ref: TensorRef = self.attention.key if name == "key" else self.attention.value
        source = f"{name}s + {place} * {self.stride(ref, 2)}"
        self.tile.emit(f"async_copy.async_copy_global_to_shared({name}tiles.index({slot}), {source})")

    def wait(self, pending: int) -> None:
        """For copies, until so many groups of them are under way; and for all warps to have come as far."""
        emit = self.tile.emit
        emit(f"async_copy.wait_group({pending})", "triton_language.debug_barrier()", "fence_async_shared()")

    @staticmethod
    def product(name: str, slot: str) -> str:
        key = f"keytiles.index({slot}).permute((1, 0))"
        return f"{name} = warpgroup_mma(querytile, {key}, scoreless, use_acc=False, is_async=True)"

    def write_step(self, with_mask: bool) -> None:
        emit, stages = self.tile.emit, self.tiles.stages
        self.wait(stages - 2)
        if self.copies_first:
            self.write_copies()
        emit(self.product("scores", "(turn + 1) % STAGES"))
        emit("accumulator = warpgroup_mma(weights, valuetiles.index(turn % STAGES), accumulator, is_async=True)")
        if not self.copies_first:
            self.write_copies()
        emit("scores = warpgroup_mma_wait(1, deps=[scores])")
        self.write_scores("place1", with_mask, "")
        emit(f"coming = tl.convert_layout(weights_of.to({ELEMENTS[self.plan.dtype]}), weightsin)")
        emit("if turn == never:", "    total = _never(total)")
        # The next weights are among what is waited for, so that they are computed before.
        emit("accumulator, weights, coming = warpgroup_mma_wait(0, deps=[accumulator, weights, coming])")
        emit("weights = coming", "shrink = tl.convert_layout(smaller, tl.SliceLayout(1, resultin))")
        emit("accumulator = accumulator * shrink[:, None]")
        for number in range(1, stages):
            emit(f"place{number} = place{number + 1}")
        self.write_position(f"place{stages}", "turn + STAGES + 1")

    def write_copies(self) -> None:
        """Everyone is done with the key and the value of the step before."""
        stages = self.tiles.stages
        self.copy("key", "turn % STAGES", f"place{stages}")
        self.copy("value", "(turn + STAGES - 1) % STAGES", f"place{stages - 1}")
        self.tile.emit("async_copy.commit_group()")

    def write_scores(self, place: str, with_mask: bool, looked: str) -> None:
        """From `scores` to the weights, and the maximum and the total so far. looked: for the first tile, which may not
        be looked at, or not be masked."""
        emit, tile, plan = self.tile.emit, self.tile, self.plan
        first = place == "place0"
        emit(f"start = {place}")
        write_axis(tile, self.keys(False), "start + lane")
        if not self.folded:
            emit(f"scores = scores * {float(self.attention.scale)!r}")
        self.write_body(with_mask and not looked, False)
        if looked:
            if plan.mask is not None:
                tile.compute([plan.mask])
                looked = f"({tile.full(plan.mask, TILE)} | bare) & {looked}"
            emit(f'scores = tl.where({looked}, scores, float("-inf"))')
        factor = repr(self.factor)
        name = "weights" if first else "weights_of"
        emit(
            "greatest = tl.maximum(maximum, tl.max(scores, 1))",
            f'shift = tl.where(greatest == float("-inf"), 0.0, greatest) * {factor}',
            f"{name} = _exp2_flushed(scores * {factor} - shift[:, None])",
            f"smaller = _exp2_flushed(maximum * {factor} - shift)",
            f"total = _kept(total * smaller + tl.sum({name}, 1))",
            "maximum = greatest",
        )

    # -------------------------------------------------------------------------------------------------------- results

    def write_results(self) -> None:
        attention, plan, emit = self.attention, self.plan, self.tile.emit
        out, *others = attention.outputs
        assert out is not None
        emit("divisor = tl.convert_layout(tl.where(total == 0.0, 1.0, total), tl.SliceLayout(1, resultin))")
        emit(f"result = (accumulator / divisor[:, None]).to({ELEMENTS[plan.dtype]})")
        emit(f"rows = row * YBLOCK + {self.arange('YBLOCK', 1, 'valuesin')}")
        layout = plan.buffers[out].layout
        start = self.pointer(TensorRef(out, layout), (B, H, ZERO, ZERO))
        place = f"{start} + rows * {plan.text(layout.stride[2])} + width * {plan.text(layout.stride[3])}"
        given = f", rows < {plan.text(plan.size[2])}" if self.rows.masked else ""
        emit(f"tl.store({place}, tl.convert_layout(result, valuesin){given})")
        for name, write in zip(others, (self.write_sums, self.write_maxima)):
            if name is not None and name in plan.outputs:
                self.store(self.rows_of(name), write(), self.row_masks())


__all__ = ["Overlapped", "unfit", "write_overlapped"]
