"""What all kernels of one attention share. In: an `Attention` and its program. Out: an `AttentionPlan`: its sizes as
numbers or expressions, the bodies in flat form, names, and the type of indices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import sympy
import torch

from litz.ir import Buffer, Layout, Loop, Node, Program, Range, TensorRef
from litz.ir.dtypes import short
from litz.ir.index import Expr, loop_var
from litz.ir.operation import expressions
from litz.ir.ops import OPS
from litz.ir.transform import flatten, map_stores
from litz.targets.triton.dialect import POINTER_TYPES
from litz.targets.triton.indices import index_type_of
from litz.targets.triton.text import IndexText, size_text
from litz.tiles.names import Names, name_all
from litz.tiles.shape import Axis, Tiling

from ..tile import Tile
from .arithmetic import Exponent, lighter, peeled, position_texts
from .least import keeps_least
from .near import near_texts
from .operation import SCORE, Attention, Blocks
from .tiles import padded, parts

B, H, Q, K = map(loop_var, range(4))
"""The variables of the bodies: batch, head, query, key."""


class Unsuitable(Exception):
    """Raised where there is no kernel for an attention; the message says why."""


@dataclass(frozen=True)
class AttentionPlan:
    """attention: what is computed. body: score and mask as one flat loop over (b, h, q, k). exponent: what the body of
    the score gives. mask: the value of the other, None where there is none. outputs: the buffers that are written.
    index_type, limits: as core's kernels have them (`litz.targets.triton.indices`). tf32: may float32 lose bits?"""

    attention: Attention
    program: Program
    body: Loop
    exponent: Exponent
    mask: Node | None
    outputs: tuple[str, ...]
    names: Names
    index_type: str
    limits: Sequence[Expr]
    tf32: bool

    @property
    def score(self) -> Node | None:
        """Returns the node of a score without the exponent's factor; None where no body changes the scores."""
        return self.exponent.node

    @property
    def size(self) -> tuple[Expr, ...]:
        """Returns the extents of the scores: batches, heads of the query, queries, keys."""
        query, key = self.attention.query.layout.size, self.attention.key.layout.size
        return (*query[:3], key[2])

    @property
    def widths(self) -> tuple[int, int]:
        """Returns the number of elements of a key and of a value."""
        return int(self.attention.query.layout.size[3]), int(self.attention.value.layout.size[3])

    @property
    def padded(self) -> tuple[int, int]:
        """Returns the widths of key and value as powers of two."""
        return padded(self.widths[0]), padded(self.widths[1])

    @property
    def held(self) -> tuple[int, int]:
        """Returns the widths of key and value as tiles hold them."""
        return sum(parts(self.widths[0])), sum(parts(self.widths[1]))

    @property
    def read(self) -> tuple[int, int]:
        """Returns the bytes that the bodies read for each score, and for each key."""
        variables = self.body.variables
        inside = [node for node in self.body.loads if node.buffer != SCORE and K in variables[node]]
        sizes = [(Q in variables[node], self.buffers[node.buffer].dtype.itemsize) for node in inside]
        return sum(size for each, size in sizes if each), sum(size for each, size in sizes if not each)

    @property
    def dtype(self) -> torch.dtype:
        """Returns the dtype of the query."""
        return self.program.buffers[self.attention.query.buffer].dtype

    @property
    def buffers(self) -> Mapping[str, Buffer]:
        """Returns the program's buffers by name."""
        return self.program.buffers

    def text(self, expr: Expr) -> str:
        """Returns an expression over sizes and the bodies' variables, as text in the kernel."""
        return IndexText(self.names.index_names, self.body.extents)(expr)

    def precision(self) -> str:
        """Returns the text of tl.dot's last argument, with a comma before it; '' for half types."""
        if self.dtype != torch.float32:
            return ""
        return f', input_precision="{"tf32" if self.tf32 else "ieee"}"'

    def tile(self, rows: Axis, keys: Axis, warps: int) -> Tile:
        """Returns a tile of scores, for which core's code generator writes the values."""
        tile = Tile(self.body, self.buffers, Tiling((rows, keys), warps), self.names, self.index_type)
        tile.near = {
            **near_texts(self.dtype, self.score, self.exponent.factor),
            **position_texts(self.body, K, tile.index_text),
        }
        return tile

    def symbol(self, what: str) -> str:
        """Returns the kernel's name, which profiles show, such as "litz_attention_bf16_64_tanh"."""
        ops = [node.op for node in self.body.nodes if node.op in OPS]
        widths = "x".join(map(str, dict.fromkeys(self.widths)))
        return "_".join([f"litz_{what}", short(self.dtype), widths, *list(dict.fromkeys(ops))[:4]])

    def host_text(self, expr: Expr) -> str:
        """Returns a size as Python text for the launcher, which computes the grid from it."""
        return size_text(expr, self.names.sizes)


def make_plan(
    attention: Attention,
    program: Program,
    outputs: Sequence[str],
    tf32: bool,
    others: Sequence[TensorRef] = (),
    scaled: bool = False,
) -> AttentionPlan:
    """Returns the plan of a kernel that writes `outputs`. others: what else it reads. scaled: bodies get the product
    times the scale and give the whole score, where else both are part of the exponent's factor. Unsuitable where there
    is none.
    """
    dims = (attention.query.layout.size[3], attention.value.layout.size[3])
    if not all(width.is_Integer for width in dims):
        raise Unsuitable("the width of a head is not a number")
    if not isinstance(attention.scale, (int, float)) and not attention.scale.is_number:
        raise Unsuitable("the scale is known at run time only")
    ranges = tuple(
        Range(var, size)
        for var, size in zip(
            (B, H, Q, K), (*attention.query.layout.size[:3], attention.key.layout.size[2]), strict=True
        )
    )
    stores = [loop.stores[0] for loop in (attention.score, attention.mask) if loop is not None]
    stand_in = Buffer(SCORE, torch.float32, attention.device, Layout.contiguous(tuple(r.size for r in ranges)))
    body = flatten(
        Loop(attention.name, attention.device, ranges, (), tuple(stores), attention.origins),
        {**program.buffers, SCORE: stand_in},
    )
    stores = list(map_stores(body.stores, lighter(1.0 if scaled else float(attention.scale))))
    score = stores[0].value if attention.score is not None else None
    whole = score is not None and (scaled or keeps_least(attention, score))
    exponent = Exponent(score, 1.0) if whole else peeled(score, float(attention.scale))
    if exponent.node is not None:
        stores[0] = replace(stores[0], value=exponent.node)
    body = replace(body, stores=tuple(stores))
    mask = stores[-1].value if attention.mask is not None else None
    refs = [attention.query, attention.key, attention.value, *_of(attention.blocks), *others]
    loaded = [node.buffer for node in body.loads if node.buffer != SCORE]
    touched = list(dict.fromkeys([*(ref.buffer for ref in refs), *loaded, *outputs]))
    if any(program.buffers[name].dtype not in POINTER_TYPES for name in touched):
        raise Unsuitable("a tensor of a type that kernels do not have")
    spans = [program.buffers[name].layout.span for name in touched]
    layouts = [*(ref.layout for ref in refs), *(program.buffers[name].layout for name in outputs)]
    exprs = [r.size for r in ranges]
    exprs += [expr for layout in layouts for expr in (*layout.size, *layout.stride, layout.offset)]
    exprs += spans + [expr for node in body.nodes for expr in expressions(node)]
    if attention.blocks is not None:
        exprs += [attention.blocks.queries, attention.blocks.keys]
    names = name_all(touched, {B: "b0", H: "h0", Q: "y0", K: "x0"}, exprs)
    index = index_type_of([*spans, *(r.size for r in ranges)], bool(names.sizes))
    return AttentionPlan(attention, program, body, exponent, mask, tuple(outputs), names, *index, tf32)


def _of(blocks: Blocks | None) -> list[TensorRef]:
    if blocks is None:
        return []
    found = (blocks.counts, blocks.indices, blocks.full_counts, blocks.full_indices)
    return [ref for ref in found if ref is not None]


def refuse_sizes(attention: Attention, widest: int) -> None:
    """Raises Unsuitable for an attention over nothing, of heads of more than `widest` elements, or whose scale is no
    number."""
    refs = (attention.query, attention.key, attention.value)
    if any(size == 0 for ref in refs for size in ref.layout.size):
        raise Unsuitable("there are no elements")
    widths = (attention.query.layout.size[3], attention.value.layout.size[3])
    if not all(width.is_Integer and int(width) <= widest for width in widths):
        raise Unsuitable(f"heads of {' and '.join(map(str, widths))} elements; the kernel takes {widest} at most")
    if sympy.sympify(attention.scale).free_symbols:
        raise Unsuitable("the scale is a symbol")


def offset_of(ref: TensorRef, position: Sequence[Expr]) -> Expr:
    """Returns the offset, in elements, of a reference's element at `position` from the start of its buffer's data."""
    found = ref.layout.offset
    for index, size, stride in zip(position, ref.layout.size, ref.layout.stride, strict=True):
        found = found + (0 if size == 1 else index * stride)
    return found


__all__ = ["AttentionPlan", "B", "H", "K", "Q", "Unsuitable", "make_plan", "offset_of", "refuse_sizes"]
