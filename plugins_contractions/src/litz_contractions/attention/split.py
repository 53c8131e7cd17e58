"""Attention of few queries: a kernel whose programs each look at a part of the keys. In: an `Attention` and a `Split`.
Out: a `KernelSource` of Triton text.

A program has one batch, one head of the key and one part of the keys; the rows of its tile are all queries of all heads
that share that head, so that a key is read once. The program keeps a running maximum, sum and result (Milakov and
Gimelshein, "Online normalizer calculation for softmax", 2018) and stores the result of its part and the logarithm of
its sum, from which the parts are put together (Dao et al., "Flash-Decoding for long-context inference", 2023).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch

from litz.ir import Buffer, Layout, Loop, Node, Program, Range, TensorRef
from litz.ir.dtypes import FLOAT8, short
from litz.ir.index import Expr
from litz.ir.node import walk
from litz.ir.transform import flatten
from litz.targets.triton.dialect import ELEMENTS, read
from litz.targets.triton.indices import index_type_of
from litz.targets.triton.text import IndexText, size_text
from litz.tiles.names import name_all
from litz.tiles.shape import Axis, Tiling
from litz_plugins import KernelSource

from ..module import write_module
from ..tile import Tile
from .in_place import operand_buffers
from .least import LEAST_SCALED
from .operation import SCORE, Attention

LOG2E = 1.4426950408889634
"""Weights are powers of two, which the hardware has: exp(x) = exp2(x * LOG2E)."""
LEAST = LEAST_SCALED * LOG2E
"""The least score, times LOG2E, but for -inf: the least number of float32 times that would be -inf."""


@dataclass(frozen=True)
class Split:
    """parts: of the keys. rows: of a tile, a power of two not below the queries of a head of the key. keys: of a tile.
    stages: tiles of keys and values in flight. warps: of a program."""

    parts: int
    rows: int
    keys: int
    stages: int
    warps: int

    def __str__(self) -> str:
        parts = f"{self.parts} part{'s' if self.parts > 1 else ''}"
        return f"{parts}, {self.rows}x{self.keys}, {self.stages} stages, {self.warps} warps"


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


BOTH = frozenset(("y", "x"))
"""The axes of a tile of scores."""
HELD = 8192
"""Elements of parts that a program puts together at a time: 64 a thread."""


def write_split(attention: Attention, split: Split, program: Program, name: str, stored: Stored) -> KernelSource:
    """Returns the text of the split kernel. Queries that may look at no key get 0, as torch's kernels give."""
    return _Writer(attention, split, program, name, stored).source()


class _Writer:
    def __init__(self, attention: Attention, split: Split, program: Program, name: str, stored: Stored) -> None:
        self.attention, self.split, self.program, self.name, self.stored = attention, split, program, name, stored
        written = stored.buffers
        self.buffers: dict[str, Buffer] = {
            **{name: program.buffers[name] for name in operand_buffers(attention)},
            **{buffer.name: buffer for buffer in written},
        }
        size = (*attention.query.layout.size[:3], attention.key.layout.size[2])
        self.batch, self.heads, self.queries, self.keys = size
        self.width, self.out_width = attention.query.layout.size[3], attention.value.layout.size[3]
        body = attention.score or attention.mask
        variables = [r.var for r in body.ranges] if body is not None else [sympy.Symbol(f"i{n}") for n in range(4)]
        texts = dict(zip(variables, ("batch", "head", "query", "key"), strict=True))
        self.rows = Axis("y", (Range(variables[1], attention.group), Range(variables[2], self.queries)), split.rows)
        self.columns = Axis("x", (Range(variables[3], self.keys),), split.keys)
        self.body = self._flat(size)
        values = [] if self.body is None else [store.value for store in self.body.stores]
        self.mask = values.pop() if attention.mask is not None else None
        self.score = values.pop() if attention.score is not None else None
        refs = (attention.query, attention.key, attention.value)
        exprs = [expr for ref in refs for expr in (*ref.layout.size, *ref.layout.stride, ref.layout.offset)]
        exprs += [step for buffer in written for step in buffer.layout.stride]
        spans = [buffer.layout.span for buffer in self.buffers.values()]
        exprs += [] if self.body is None else self.body.expressions
        exprs += spans
        self.names = name_all(self.buffers, texts, exprs)
        self.index_type, self.limits = index_type_of(spans, bool(self.names.sizes))
        self.wide = "" if self.index_type == "tl.int32" else f".to({self.index_type})"
        self.lines: list[str] = []
        self.depth = 1
        self.dtype = program.buffers[attention.query.buffer].dtype

    def _flat(self, size: tuple[Expr, ...]) -> Loop | None:
        """Score and mask as one loop in flat form; None where there is neither."""
        loops = [loop for loop in (self.attention.score, self.attention.mask) if loop is not None]
        if not loops:
            return None
        both = replace(loops[0], stores=tuple(store for loop in loops for store in loop.stores))
        scores = Buffer(SCORE, torch.float32, both.device, Layout.contiguous(size))
        stand_ins = {SCORE: scores, **{store.buffer: scores for store in both.stores}}
        return flatten(both, {**self.program.buffers, **stand_ins})

    # The text.

    def source(self) -> KernelSource:
        self._write_place()
        self._write_query()
        self._write_parts()
        self._write_stores()
        if self.stored.out is not None:
            self._write_finish(self.stored.out)
        return write_module(
            self.name,
            f"litz_attention_split_{short(self.dtype)}_{self.split.rows}x{self.split.keys}",
            f"attention of few queries: {self.split}",
            self.lines,
            self.names,
            replace(self.program, buffers={**self.program.buffers, **self.buffers}),
            {buffer.name for buffer in self.stored.buffers},
            (self.index_type, self.limits),
            self._launch(),
        )

    def _emit(self, *lines: str) -> None:
        self.lines += ("    " * self.depth + line for line in lines)

    def _text(self, expr: Expr) -> str:
        return IndexText(self.names.index_names, {})(expr)

    def _blocks(self, expr: Expr) -> int:
        """A power of two that holds a width; tl.dot takes no less than 16."""
        return max(16, 1 << (int(expr) - 1).bit_length())

    def _at(self, ref: TensorRef, outer: Sequence[str], inner: Sequence[str]) -> str:
        """Pointers into a reference at (batch, head, ...): where neighbouring heads share one, `head` is the key's."""
        terms = [self._text(ref.layout.offset)] if ref.layout.offset != 0 else []
        for step, size, index in zip(ref.layout.stride, ref.layout.size, (*outer, *inner), strict=True):
            if step != 0 and size != 1:
                terms.append(index if step == 1 else f"{index} * {self._text(step)}")
        return " + ".join([self.names.buffers[ref.buffer], *terms])

    def _write_place(self) -> None:
        split, heads = self.split, self._text(self.attention.key.layout.size[1])
        self._emit(
            f"YBLOCK: tl.constexpr = {split.rows}",
            f"XBLOCK: tl.constexpr = {split.keys}",
            f"DBLOCK: tl.constexpr = {self._blocks(self.width)}",
            f"EBLOCK: tl.constexpr = {self._blocks(self.out_width)}",
            f"part = tl.program_id(0) % {split.parts}",
            f"shared = (tl.program_id(0) // {split.parts} % {heads}){self.wide}",
            f"batch = (tl.program_id(0) // {split.parts} // {heads}){self.wide}",
            f"yindex = tl.arange(0, YBLOCK)[:, None]{self.wide}",
        )
        if self.rows.masked:
            self._emit(f"ymask = yindex < {self._text(self.rows.size)}")
        queries = self._text(self.queries)
        self._emit(
            f"head = shared * {self._text(self.attention.group)} + yindex // {queries}",
            f"query = yindex % {queries}",
            f"d = tl.arange(0, DBLOCK){self.wide}",
            f"e = tl.arange(0, EBLOCK){self.wide}",
        )

    def _masked(self, texts: Mapping[str, bool], other: str = ", other=0") -> str:
        """The mask of an access, of those texts that are needed."""
        masks = " & ".join(text for text, needed in texts.items() if needed)
        return f", mask={masks}{other}" if masks else ""

    def _load(self, name: str, pointer: str, shape: str, masks: Mapping[str, bool], ref: TensorRef) -> None:
        """A tile of an operand, in the type that is multiplied in."""
        stored = self.buffers[ref.buffer].dtype
        converted = "" if stored == self.dtype else f".to({ELEMENTS[self.dtype]})"
        mask = self._masked(masks)
        zeros = f"tl.zeros({shape}, {self.index_type})"
        text = f"tl.load({pointer} + {zeros}{mask})"
        self._emit(f"{name} = {read(stored, text, self.dtype) if stored in FLOAT8 else text}{converted}")

    @property
    def _odd(self) -> bool:
        return int(self.width) != self._blocks(self.width)

    @property
    def _odd_out(self) -> bool:
        return int(self.out_width) != self._blocks(self.out_width)

    def _write_query(self) -> None:
        ref = self.attention.query
        pointer = self._at(ref, ("batch", "head"), ("query", "d[None, :]"))
        masks = {"ymask": self.rows.masked, f"(d[None, :] < {self._text(self.width)})": self._odd}
        self._load("queries", pointer, "[YBLOCK, DBLOCK]", masks, ref)

    def _write_parts(self) -> None:
        keys, parts = self._text(self.keys), self.split.parts
        if parts > 1:
            self._emit(
                f"length = tl.cdiv(tl.cdiv({keys}, XBLOCK), {parts}) * XBLOCK",
                "begin = part * length",
                f"end = tl.minimum(begin + length, {keys})",
            )
        else:
            # Always times one, which ptxas does not know: it would unroll a loop of known length.
            self._emit("begin = 0", f"end = {keys} * tl.num_programs(1)")
        self._emit(
            'maximum = tl.full([YBLOCK], float("-inf"), tl.float32)',
            "total = tl.zeros([YBLOCK], tl.float32)",
            "result = tl.zeros([YBLOCK, EBLOCK], tl.float32)",
            "for start in range(begin, end, XBLOCK):",
        )
        self.depth += 1
        self._write_scores()
        self._emit(
            "highest = tl.maximum(maximum, tl.max(scores, 1))",
            "# Where all keys so far are masked, -inf - -inf would be no number.",
            'shift = tl.where(highest == float("-inf"), 0.0, highest)',
            "weights = tl.exp2(scores - shift[:, None])",
            "shrink = tl.exp2(maximum - shift)",
            "total = total * shrink + tl.sum(weights, 1)",
        )
        ref, masks = self.attention.value, {}
        masks[f"(along[:, None] < {keys})"] = self.columns.masked
        masks[f"(e[None, :] < {self._text(self.out_width)})"] = self._odd_out
        pointer = self._at(ref, ("batch", "shared"), ("along[:, None]", "e[None, :]"))
        self._load("values", pointer, "[XBLOCK, EBLOCK]", masks, ref)
        rounded = f"weights.to({ELEMENTS[self.dtype]})"
        self._emit(
            f"result = tl.dot({rounded}, values, result * shrink[:, None]{self._precision()})",
            "maximum = highest",
        )
        self.depth -= 1

    def _write_scores(self) -> None:
        """A tile of scores, times LOG2E; -inf where a key does not count."""
        keys, ref = self._text(self.keys), self.attention.key
        self._emit(f"along = (start + tl.arange(0, XBLOCK)){self.wide}", "xindex = along[None, :]", "key = xindex")
        masks = {}
        if self.columns.masked:
            self._emit(f"xmask = xindex < {keys}")
            masks["xmask"] = True
        # What bodies load is on its way while the keys are waited for.
        tile = None if self.body is None else self._tile(self.body)
        masks[f"(d[:, None] < {self._text(self.width)})"] = self._odd
        pointer = self._at(ref, ("batch", "shared"), ("xindex", "d[:, None]"))
        self._load("keys", pointer, "[DBLOCK, XBLOCK]", masks, ref)
        scale = float(self.attention.scale)
        factor = scale if self.score is not None else scale * LOG2E
        self._emit(f"scores = tl.dot(queries, keys{self._precision()}) * {factor!r}")
        valid = ["xmask"] if self.columns.masked else []
        if tile is not None and self.score is not None:
            self._emit(f"raw = {self._value(tile, self.score)}")
            # A mask of the least number there is leaves even weights where it leaves no key, and -inf leaves none.
            finite = f"tl.maximum(raw * {LOG2E!r}, {LEAST!r})"
            self._emit(f'scores = tl.where(raw == float("-inf"), raw, {finite})')
        if tile is not None and self.mask is not None:
            self._emit(f"counts = {self._value(tile, self.mask)}")
            valid.append("counts")
        if valid:
            self._emit(f'scores = tl.where({" & ".join(valid)}, scores, float("-inf"))')

    def _tile(self, body: Loop) -> Tile:
        """The tile of scores for which the code generator for loops writes a body, with what the body loads."""
        tile = Tile(
            body, self.buffers, Tiling((self.rows, self.columns), self.split.warps), self.names, self.index_type
        )
        tile.depth = self.depth
        loads = [node for node in body.loads if node.buffer != SCORE]
        for node in body.loads:
            if node.buffer == SCORE:
                tile.give(node, "scores", BOTH)
        tile.compute(node for node in loads if all(each.op != "load" or each in loads for each in walk(node)))
        self._take(tile)
        return tile

    def _value(self, tile: Tile, node: Node) -> str:
        tile.compute([node])
        text = tile.full(node, BOTH)
        self._take(tile)
        return text

    def _take(self, tile: Tile) -> None:
        """What was written to a tile, as the next lines."""
        self.lines += tile.lines
        self.limits = [*self.limits, *tile.limits]
        tile.lines, tile.limits = [], []

    def _write_stores(self) -> None:
        result, sums = self.stored.result, self.stored.sums
        place = ("batch", "head", "query")
        masks = {"ymask": self.rows.masked, f"(e[None, :] < {self._text(self.out_width)})": self._odd_out}
        self._emit("result = result / tl.where(total == 0.0, 1.0, total)[:, None]")
        part = () if sums is None else (f"part{self.wide}",)
        pointer = self._pointer(result, (*part, *place, "e[None, :]"), "[YBLOCK, EBLOCK]")
        mask = self._masked(masks, "")
        self._emit(f"tl.store({pointer}, result.to({ELEMENTS[result.dtype]}){mask})")
        if sums is not None:
            pointer = self._pointer(sums, (*part, *place), "[YBLOCK, 1]")
            mask = self._masked({"ymask": self.rows.masked}, "")
            self._emit(f"tl.store({pointer}, (maximum + tl.log2(total))[:, None]{mask})")

    def _write_finish(self, out: Buffer) -> None:
        """Count this program; the last one of its head of the key sees what all others have stored, and puts it
        together."""
        parts, sums, rows = self.split.parts, self.stored.sums, int(self.rows.size)
        assert sums is not None
        height, width = 1 << (rows - 1).bit_length(), self._blocks(self.out_width)
        depth = max(1, min(1 << (parts - 1).bit_length(), HELD // (height * width)))
        queries, group = self._text(self.queries), self._text(self.attention.group)
        self._emit(
            "# Every thread has stored before this program is counted, and whoever counts the last sees it all.",
            "tl.debug_barrier()",
            f'if tl.atomic_add(counters + tl.program_id(0) // {parts}, 1, sem="acq_rel") == {parts} - 1:',
        )
        self.depth += 1
        place = ("batch", f"(shared * {group} + row // {queries})", f"(row % {queries})")
        masks = {f"(row < {rows})": height != rows}
        every = self._pointer(sums, ("every", *place), f"[{1 << (parts - 1).bit_length()}, {height}]")
        known = {f"(every < {parts})": parts & (parts - 1) != 0, **masks}
        infinite = ', other=float("-inf")'
        self._emit(
            f"row = tl.arange(0, {height})[None, :]{self.wide}",
            f"every = tl.arange(0, {1 << (parts - 1).bit_length()})[:, None]{self.wide}",
            f"sums = tl.load({every}{self._masked(known, infinite)})",
            "best = tl.max(sums, 0)",
            'best = tl.where(best == float("-inf"), 0.0, best)',
            "sums = tl.sum(tl.exp2(sums - best[None, :]), 0)",
            f"whole = tl.zeros([{height}, EBLOCK], tl.float32)",
            f"for first in tl.static_range(0, {parts}, {depth}):",
        )
        self.depth += 1
        known = {f"(every < {parts})": parts % depth != 0, **masks}
        inner = [text.replace("row", "row[:, :, None]") for text in place]
        wide = {
            text.replace("every", "every[:, :, None]").replace("row", "row[:, :, None]"): on
            for text, on in known.items()
        }
        wide[f"(e[None, None, :] < {self._text(self.out_width)})"] = self._odd_out
        some = self._pointer(sums, ("every", *place), f"[{depth}, {height}]")
        piece = self._pointer(
            self.stored.result, ("every[:, :, None]", *inner, "e[None, None, :]"), f"[{depth}, {height}, EBLOCK]"
        )
        self._emit(
            f"every = first + tl.arange(0, {depth})[:, None]{self.wide}",
            f"shares = tl.exp2(tl.load({some}{self._masked(known, infinite)}) - best[None, :])",
            f"whole += tl.sum(shares[:, :, None] * tl.load({piece}{self._masked(wide)}), 0)",
        )
        self.depth -= 1
        upright = [text.replace("row", "upright") for text in place]
        pointer = self._pointer(out, (*upright, "e[None, :]"), f"[{height}, EBLOCK]")
        ends = {text.replace("row", "upright"): on for text, on in masks.items()}
        ends[f"(e[None, :] < {self._text(self.out_width)})"] = self._odd_out
        self._emit(
            f"upright = tl.arange(0, {height})[:, None]{self.wide}",
            "whole = whole / tl.where(sums == 0.0, 1.0, sums)[:, None]",
            f"tl.store({pointer}, whole.to({ELEMENTS[out.dtype]}){self._masked(ends, '')})",
        )
        self.depth -= 1

    def _pointer(self, buffer: Buffer, index: Sequence[str], shape: str) -> str:
        """Pointers to elements of a buffer that is written, for a tile of `shape`."""
        layout = Layout(buffer.layout.size, buffer.layout.stride)
        return f"{self._at(TensorRef(buffer.name, layout), (), index)} + tl.zeros({shape}, {self.index_type})"

    def _precision(self) -> str:
        return ', input_precision="ieee"' if self.dtype == torch.float32 else ""

    # For the launcher.

    def _launch(self) -> dict[str, Any]:
        outer = (self.batch, self.attention.key.layout.size[1])
        grid = " * ".join([*(size_text(size, self.names.sizes) for size in outer), str(self.split.parts)])
        return {
            "counters": int(outer[0] * outer[1]) if self.stored.out is not None else 0,
            "num_warps": self.split.warps,
            "num_stages": self.split.stages,
            "grid": int(eval(grid, {})) if all(size.is_Integer for size in outer) else grid,
        }


__all__ = ["LOG2E", "Split", "Stored", "write_split"]
