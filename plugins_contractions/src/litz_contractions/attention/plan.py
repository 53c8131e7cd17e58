"""What all kernels of one attention share. In: an `Attention` and its program. Out: an `AttentionPlan`: its sizes as
numbers or expressions, the bodies in flat form, names, and the type of indices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import sympy
import torch

from litz.ir import Program, TensorRef
from litz.ir.dtypes import short
from litz.ir.index import ZERO, Expr, Symbol, flat_index
from litz.ir.ops import OPS
from litz.targets.triton.dialect import POINTER_TYPES
from litz.tiles.program import Access

from ..module import Naming, Unsuitable, name_kernel
from .bodies import BATCH, HEAD, KEY, QUERY, Bodies, make_bodies
from .masks import keeps_least
from .operation import DTYPES, GRADIENT, SCORE, WIDEST, Attention, AttentionBackward
from .tiles import parts

B, H, Q, K = BATCH, HEAD, QUERY, KEY


@dataclass(frozen=True)
class SharedPlan:
    """The plan that all kernels of an attention, or of its backward, share. bodies: of its scores. outputs: the buffers
    that are written; of a backward those of the gradients of query, key and value, None for one that nobody uses. tf32:
    may float32 operands lose bits?"""

    attention: Attention | AttentionBackward
    program: Program
    bodies: Bodies
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
        """Returns how float32 is multiplied; '' for half types."""
        return ("tf32" if self.tf32 else "ieee") if self.dtype == torch.float32 else ""


@dataclass(frozen=True)
class AttentionPlan(SharedPlan):
    """naming: of the one kernel."""

    attention: Attention
    outputs: tuple[str, ...]
    naming: Naming

    @property
    def held(self) -> tuple[int, int]:
        """Returns the widths of key and value as tiles hold them."""
        return sum(parts(self.widths[0])), sum(parts(self.widths[1]))

    @property
    def read(self) -> tuple[int, int]:
        """Returns the bytes that the bodies read for each score, and for each key."""
        variables = self.bodies.loop.variables
        inside = [node for node in self.bodies.loop.loads if node.buffer != SCORE and K in variables[node]]
        sizes = [(Q in variables[node], self.program.buffers[node.buffer].dtype.itemsize) for node in inside]
        return sum(size for each, size in sizes if each), sum(size for each, size in sizes if not each)

    def symbol(self, what: str) -> str:
        """Returns the kernel's name, which profiles show, such as "litz_attention_bf16_64_tanh"."""
        ops = [node.op for node in self.bodies.loop.nodes if node.op in OPS]
        widths = "x".join(map(str, dict.fromkeys(self.widths)))
        return "_".join([f"litz_{what}", short(self.dtype), widths, *list(dict.fromkeys(ops))[:4]])


def make_plan(
    attention: Attention,
    program: Program,
    outputs: Sequence[str],
    tf32: bool,
    scaled: bool = False,
) -> AttentionPlan:
    """Returns the plan of a kernel that writes `outputs`. scaled: bodies get the product
    times the scale and give the whole score, where else both are part of the exponent's factor. Unsuitable where there
    is none.
    """
    dims = (attention.query.layout.size[3], attention.value.layout.size[3])
    if not all(width.is_Integer for width in dims):
        raise Unsuitable("the width of a head is not a number")
    if not isinstance(attention.scale, (int, float)) and not attention.scale.is_number:
        raise Unsuitable("the scale is known at run time only")
    bodies = make_bodies(attention, program, scaled, partial(keeps_least, attention))
    blocks = attention.blocks
    tables, grains = ([], []) if blocks is None else (blocks.tables, [blocks.queries, blocks.keys])
    refs = [attention.query, attention.key, attention.value, *tables]
    naming = name_attention(program, bodies, refs, outputs, attention.size, grains)
    return AttentionPlan(attention, program, bodies, tuple(outputs), tf32, naming)


def name_attention(
    program: Program,
    bodies: Bodies,
    refs: Sequence[TensorRef],
    written: Sequence[str],
    sizes: Sequence[Expr],
    others: Sequence[Expr],
    rows: Symbol = QUERY,
) -> Naming:
    """Returns the names of a kernel that reads `refs` and what the bodies load. written: what it writes beside. sizes:
    of what it goes along. others: expressions that it needs. rows: which a program has a tile of. Unsuitable for a type
    that kernels do not have."""
    loop, buffers = bodies.loop, program.buffers
    loaded = [node.buffer for node in loop.loads if node.buffer not in (SCORE, GRADIENT)]
    touched = [*(ref.buffer for ref in refs), *loaded, *written]
    if any(buffers[name].dtype not in POINTER_TYPES for name in touched):
        raise Unsuitable("a tensor of a type that kernels do not have")
    layouts = [*(ref.layout for ref in refs), *(buffers[name].layout for name in written)]
    exprs = [expr for layout in layouts for expr in (*layout.size, *layout.stride, layout.offset)]
    walked = KEY if rows == QUERY else QUERY
    variables = {BATCH: "batch", HEAD: "head", rows: "y0", walked: "x0"}
    return name_kernel(program, touched, variables, [*sizes, *exprs], [*others, *loop.expressions], sizes)


def refuse(attention: Attention, program: Program) -> None:
    """Raises Unsuitable for an attention that core's kernel does not do whatever its mask: of types, or of sizes."""
    refs = (attention.query, attention.key, attention.value)
    dtypes = {program.buffers[ref.buffer].dtype for ref in refs}
    if len(dtypes) != 1 or dtypes.pop() not in DTYPES:
        raise Unsuitable("there is no kernel for these types")
    refuse_sizes(attention, WIDEST)


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


def access_of(
    ref: TensorRef, outer: Sequence[Expr], inner: Sequence[Expr], axes: frozenset[str] = frozenset()
) -> Access:
    """Returns the elements of a reference at `outer`, and along its other dimensions at `inner`."""
    offset = offset_of(ref, (*outer, *(ZERO for _ in inner)))
    for index, stride in zip(inner, ref.layout.stride[len(outer) :], strict=True):
        offset = offset + index * stride
    return Access(ref.buffer, offset, (), axes)


def offset_of(ref: TensorRef, position: Sequence[Expr]) -> Expr:
    """Returns the offset, in elements, of a reference's element at `position` from the start of its buffer's data."""
    places = (ZERO if size == 1 else index for index, size in zip(position, ref.layout.size, strict=True))
    return flat_index(tuple(places), ref.layout.stride, ref.layout.offset)
