"""A matrix product as data. In: a contraction of the IR. Out: a `Gemm`, or why there is none.

    result[batch, rows, columns] = epilogue(sum over the products p, over depth, of left_p * right_p)

Rows, columns and depth may each be several of the IR's ranges walked as one: a convolution is a product whose rows are
the pixels of all images. Operands may lie in memory in any way; sizes may be symbolic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from litz.cost.contractions import argument_names
from litz.ir import Buffer, Layout, Loop, Node, Program, Range, Template, TensorRef
from litz.ir.build import call, cast, const, load
from litz.ir.dtypes import STORED, SUPPORTED
from litz.ir.index import ZERO, Expr, Symbol, product

from ..epilogue import ACCUMULATOR, Epilogue, accumulator, plain


def depth_var(position: int) -> Symbol:
    """The variable of depth range `position`."""
    return sympy.Symbol(f"k{position}", integer=True, nonnegative=True)


@dataclass(frozen=True)
class Operand:
    """A buffer, its dtype, and where an element lies: an expression over the variables of the result and of the depth,
    in elements. inside: (expression, size) pairs; where one is not within 0 <= expression < size the element is 0.
    prologue: instead of a buffer that is read, how its elements are made: a flat loop over those variables, with one
    store."""

    buffer: str
    dtype: torch.dtype
    position: Expr
    inside: tuple[tuple[Expr, Expr], ...] = ()
    prologue: Loop | None = None

    @property
    def reads(self) -> tuple[str, ...]:
        """The buffers that are read for it."""
        return (self.buffer,) if self.prologue is None else self.prologue.reads

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """Positions and sizes that loading it takes."""
        if self.prologue is not None:
            return tuple(self.prologue.expressions)
        return (self.position, *(expr for pair in self.inside for expr in pair))


@dataclass(frozen=True)
class Product:
    """left times right, summed over the depth's ranges, the last of which is walked fastest. joins: walked together
    with the product before, which has the same depth."""

    left: Operand
    right: Operand
    depth: tuple[Range, ...]
    joins: bool = False

    @property
    def k(self) -> Expr:
        return product(r.size for r in self.depth)


@dataclass(frozen=True)
class Gemm:
    """batch, rows, columns: the ranges of the epilogue's loop, each in one of them. accumulate: dtype of the sums.
    tf32: float32 operands may lose bits."""

    batch: tuple[Range, ...]
    rows: tuple[Range, ...]
    columns: tuple[Range, ...]
    products: tuple[Product, ...]
    accumulate: torch.dtype
    epilogue: Epilogue
    tf32: bool = False

    @property
    def dtype(self) -> torch.dtype:
        """Of the operands."""
        return self.products[0].left.dtype

    @property
    def m(self) -> Expr:
        return product(r.size for r in self.rows)

    @property
    def n(self) -> Expr:
        return product(r.size for r in self.columns)

    @property
    def count(self) -> Expr:
        """How many products there are in the batch."""
        return product(r.size for r in self.batch)

    @property
    def sizes(self) -> tuple[Expr, ...]:
        ranges = (*self.batch, *self.rows, *self.columns)
        return (*(r.size for r in ranges), *(r.size for p in self.products for r in p.depth))


class Unsuitable(ValueError):
    """A contraction that the template does not do; the message says why."""


ACCUMULATE: Mapping[torch.dtype, torch.dtype] = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float32,
    torch.int8: torch.int32,
    torch.float8_e4m3fn: torch.float32,
    torch.float8_e5m2: torch.float32,
}
"""Operand dtypes that the tensor cores take, and what they sum in. float64 is left to the library."""

BIAS = "bias"
"""Stands for the first argument of addmm and baddbmm in the epilogue: a view, broadcast to the result."""


def make_gemm(template: Template, program: Program, tf32: bool = False) -> Gemm:
    """The product that a contraction is. Errors: Unsuitable."""
    arguments = argument_names(template)
    names = OPERANDS.get(template.kind)
    if names is None:
        raise Unsuitable(f"{template.kind} is no matrix product")
    left, right = (program.buffers[arguments[name].buffer].dtype for name in names)
    if left not in ACCUMULATE or ACCUMULATE.get(right) != ACCUMULATE[left] or left.itemsize != right.itemsize:
        raise Unsuitable(f"no template for {left} times {right}")
    out = program.buffers[str(template.outputs[0])].dtype
    if out not in STORED:
        raise Unsuitable(f"no epilogue stores {out}")
    value, buffer, ranges = accumulator(program, template, ACCUMULATE[left])
    if any(r.size == 0 for r in ranges):
        raise Unsuitable("the result is empty")
    views = {ACCUMULATOR: buffer}
    batch, (row, column) = ranges[:-2], ranges[-2:]
    term = make_product(arguments[names[0]], arguments[names[1]], program, batch, row, column)
    value = _finish(value, arguments, program, tuple(r.var for r in ranges), views, tuple(r.size for r in ranges))
    epilogue = plain(program, template, cast(value, out), ranges, views)
    return Gemm(batch, (row,), (column,), (term,), ACCUMULATE[left], epilogue, tf32 and left == torch.float32)


OPERANDS: Mapping[str, tuple[str, str]] = {
    "mm": ("self", "mat2"),
    "addmm": ("mat1", "mat2"),
    "bmm": ("self", "mat2"),
    "baddbmm": ("batch1", "batch2"),
    "int_mm": ("self", "mat2"),
    "scaled_mm": ("self", "mat2"),
}
"""The names of the two matrices in the op's schema, by kind."""


def make_product(
    left: TensorRef, right: TensorRef, program: Program, batch: tuple[Range, ...], row: Range, column: Range
) -> Product:
    """The product of two references to matrices, or to batches of them."""
    depth = Range(depth_var(0), left.layout.size[-1])
    outer = tuple(r.var for r in batch)
    return Product(
        _matrix(left, program, (*outer, row.var, depth.var)),
        _matrix(right, program, (*outer, depth.var, column.var)),
        (depth,),
    )


def _matrix(ref: TensorRef, program: Program, position: tuple[Expr, ...]) -> Operand:
    flat = sum((step * var for step, var in zip(ref.layout.stride, position, strict=True)), start=ref.layout.offset)
    return Operand(ref.buffer, program.buffers[ref.buffer].dtype, sympy.expand(flat))


def _finish(
    value: Node,
    arguments: Mapping[str, Any],
    program: Program,
    position: tuple[Any, ...],
    views: dict[str, Buffer],
    size: tuple[Expr, ...],
) -> Node:
    """alpha * value + beta * bias, in the accumulator's dtype; a bias with beta = 0 is not read, as in BLAS. Scales of
    the operands come first."""
    for name in ("scale_a", "scale_b"):
        if isinstance(arguments.get(name), TensorRef):
            value = call("mul", value, _scale(name, arguments[name], program, position, size, views))
    if isinstance(arguments.get("scale_result"), TensorRef):
        raise Unsuitable("no template scales the result")
    alpha, beta = arguments.get("alpha", 1), arguments.get("beta", 1)
    if not all(isinstance(factor, (int, float)) for factor in (alpha, beta)):
        raise Unsuitable("alpha and beta are no plain numbers")
    if alpha != 1:
        value = call("mul", value, const(alpha, value.dtype))
    bias = _bias(arguments)
    if bias is None or beta == 0:
        return value
    added = cast(load_view(BIAS, bias, program, position, size, views), value.dtype)
    if beta != 1:
        added = call("mul", added, const(beta, value.dtype))
    return call("add", value, added)


def _bias(arguments: Mapping[str, Any]) -> TensorRef | None:
    """What is added to the product: `self` of addmm and baddbmm, which name their matrices otherwise; else `bias`."""
    found = arguments["self"] if "mat1" in arguments or "batch1" in arguments else arguments.get("bias")
    return found if isinstance(found, TensorRef) else None


def _scale(
    name: str,
    ref: TensorRef,
    program: Program,
    position: tuple[Any, ...],
    size: tuple[Expr, ...],
    views: dict[str, Buffer],
) -> Node:
    """A scale for all elements, or one for each row or column. Blocks of them are left to the library."""
    own = ref.layout.size
    if len(own) not in (0, 1, 2) or any(extent not in (1, wanted) for extent, wanted in zip(own, size)):
        raise Unsuitable(f"no template scales by {[str(extent) for extent in own]} blocks")
    if len(own) == 1 and own[0] != 1:
        raise Unsuitable("a scale that is a vector")
    if program.buffers[ref.buffer].dtype != torch.float32:
        raise Unsuitable(f"a scale of {program.buffers[ref.buffer].dtype}")
    return load_view(name, ref, program, position, size, views)


def load_view(
    name: str,
    ref: TensorRef,
    program: Program,
    position: tuple[Any, ...],
    size: tuple[Expr, ...],
    views: dict[str, Buffer],
) -> Node:
    """The element of a reference, broadcast to `size`, at `position`. A view of a buffer goes by a stand-in, `name`."""
    buffer = program.buffers[ref.buffer]
    if buffer.dtype not in SUPPORTED:
        raise Unsuitable(f"no template adds or scales by {buffer.dtype}")
    own, layout = buffer.layout, ref.layout
    if own.size == layout.size and own.stride == layout.stride and layout.offset == 0:
        tail = list(zip(own.size, size[len(size) - len(own.size) :], position[len(size) - len(own.size) :]))
        index = tuple(ZERO if extent == 1 and wanted != 1 else var for extent, wanted, var in tail)
        return load(ref.buffer, index, buffer.dtype)
    views[name] = Buffer(ref.buffer, buffer.dtype, buffer.device, broadcast(layout, size), buffer.kind)
    return load(name, position, buffer.dtype)


def broadcast(layout: Layout, size: tuple[Expr, ...]) -> Layout:
    """A layout expanded to `size`, by torch's rules: missing and single dimensions have stride 0."""
    missing = len(size) - len(layout.size)
    stride = [ZERO] * missing
    for own, step, wanted in zip(layout.size, layout.stride, size[missing:]):
        stride.append(ZERO if own == 1 and wanted != 1 else step)
    return Layout(size, tuple(stride), layout.offset)
