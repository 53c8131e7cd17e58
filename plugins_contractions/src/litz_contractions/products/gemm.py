"""A matrix product as data. In: a contraction of the IR. Out: a `Gemm`, or why there is none.

    result[batch, rows, columns] = epilogue(sum over the products p, over depth, of left_p * right_p)

Rows, columns and depth may each be several of the IR's ranges walked as one: a convolution is a product whose rows are
the pixels of all images. Operands may lie in memory in any way; sizes may be symbolic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from typing import Any

import sympy
import torch

from litz.cost.contractions import argument_names
from litz.ir import Layout, Loop, Node, Program, Range, Store, Template, TensorRef
from litz.ir.build import call, cast, const, load
from litz.ir.dtypes import STORAGE, STORED, SUPPORTED, compute_dtype
from litz.ir.index import ONE, ZERO, Expr, Ranges, Symbol, flat_index, floordiv, mod, product, substitute, to_expr

from ..epilogue import Epilogue, accumulator, plain
from ..module import Unsuitable
from .scales import BLOCK, Scaling, scalings


def depth_var(position: int) -> Symbol:
    """Returns the variable of depth range `position`."""
    return sympy.Symbol(f"k{position}", integer=True, nonnegative=True)


@dataclass(frozen=True)
class Operand:
    """A buffer, its dtype, and where an element lies: an expression over the variables of the result and of the depth,
    in elements. inside: (expression, size) pairs; where one is not within 0 <= expression < size the element is 0.
    prologue: instead of a buffer that is read, how its elements are made: a flat loop over those variables, with one
    store. words: the products that are walked together take both of any two neighbouring bytes that it loads."""

    buffer: str
    dtype: torch.dtype
    position: Expr
    inside: tuple[tuple[Expr, Expr], ...] = ()
    prologue: Loop | None = None
    words: bool = False

    @property
    def reads(self) -> tuple[str, ...]:
        """Returns the names of the buffers that are read for the operand."""
        return (self.buffer,) if self.prologue is None else self.prologue.reads

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """Returns the positions and sizes that a kernel needs to load the operand."""
        if self.prologue is not None:
            return tuple(self.prologue.expressions)
        return (self.position, *(expr for pair in self.inside for expr in pair))

    def at(self, places: Mapping[Symbol, Expr], extents: Ranges | None = None) -> Operand:
        """Returns the operand at other places, which its variables become; what makes its elements stays as it is.
        extents: of the variables of the places."""
        inside = tuple((substitute(expr, places, extents), size) for expr, size in self.inside)
        return replace(self, position=substitute(self.position, places, extents), inside=inside)


@dataclass(frozen=True)
class Product:
    """left times right, summed over the depth's ranges, the last of which is walked fastest. joins: walked together
    with the product before, which has the same depth. scale: what the sum over a block of the depth, its last range, is
    multiplied by: a flat loop over the result's variables and the number of the block, with one store. second: it adds
    to the second sum; it joins, and has one operand of the last product before it that does not: the left one, or in a
    turned product the right one."""

    left: Operand
    right: Operand
    depth: tuple[Range, ...]
    joins: bool = False
    scale: Loop | None = None
    second: bool = False

    @property
    def reads(self) -> tuple[str, ...]:
        """Returns the names of the buffers that are read for the product."""
        return (*self.left.reads, *self.right.reads, *(() if self.scale is None else self.scale.reads))

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """Returns the positions and sizes that a kernel needs to load both operands and the scales."""
        own = () if self.scale is None else tuple(self.scale.expressions)
        return (*self.left.expressions, *self.right.expressions, *own)

    @property
    def k(self) -> Expr:
        """Returns the depth: the number of products that each element sums."""
        return product(r.size for r in self.depth)


@dataclass(frozen=True)
class Gemm:
    """batch, rows, columns: the ranges of the epilogue's loop, each in one of them. accumulate: dtype of the sums.
    tf32: float32 operands may lose bits. turned: rows and columns have changed places (`turned`).
    row_terms: what the kernel sums along a row for its epilogue, as a flat loop along that row (`joined.py`)."""

    batch: tuple[Range, ...]
    rows: tuple[Range, ...]
    columns: tuple[Range, ...]
    products: tuple[Product, ...]
    accumulate: torch.dtype
    epilogue: Epilogue
    tf32: bool = False
    turned: bool = False
    row_terms: Loop | None = None

    @property
    def dtype(self) -> torch.dtype:
        """Returns the dtype of the operands."""
        return self.products[0].left.dtype

    @property
    def m(self) -> Expr:
        """Returns the number of rows of the result."""
        return product(r.size for r in self.rows)

    @property
    def n(self) -> Expr:
        """Returns the number of columns of the result."""
        return product(r.size for r in self.columns)

    @property
    def count(self) -> Expr:
        """Returns how many products there are in the batch."""
        return product(r.size for r in self.batch)

    @property
    def sizes(self) -> tuple[Expr, ...]:
        """Returns the sizes of all ranges: batch, rows and columns, then the depth of each product."""
        ranges = (*self.batch, *self.rows, *self.columns)
        return (*(r.size for r in ranges), *(r.size for p in self.products for r in p.depth))


def turned(gemm: Gemm) -> Gemm:
    """Returns the product of the operands' transposes: the same result, whose rows the kernel takes for columns. So
    many columns of few rows fill the tall tiles that tensor cores multiply."""
    products = tuple(replace(p, left=p.right, right=p.left) for p in gemm.products)
    return replace(gemm, rows=gemm.columns, columns=gemm.rows, products=products, turned=not gemm.turned)


ACCUMULATE: Mapping[torch.dtype, torch.dtype] = {
    row.dtype: row.sums for row in STORAGE.values() if row.sums is not None
}
"""Operand dtypes that the tensor cores take, and what they sum in. float64 is left to the library."""


def make_gemm(template: Template, program: Program, tf32: bool = False) -> Gemm:
    """Returns the matrix product that a contraction is. tf32: float32 may be multiplied in TF32. Errors: Unsuitable for
    any other contraction, and for dtypes that no kernel multiplies."""
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
    if any(program.hint(r.size) == 0 for r in ranges):
        raise Unsuitable("the result is empty")
    batch, (row, column) = ranges[:-2], ranges[-2:]
    term = make_product(arguments[names[0]], arguments[names[1]], program, batch, row, column)
    scales = scalings(arguments, program, (row.size, column.size), term.k)
    if any(scaling.in_blocks for scaling in scales):
        term = _in_blocks(term, scales, program, batch, row, column)
    value = _finish(value, arguments, ranges, scales, program)
    epilogue = plain(program, template, cast(value, out), ranges, buffer)
    return Gemm(batch, (row,), (column,), (term,), ACCUMULATE[left], epilogue, tf32 and left == torch.float32)


OPERANDS: Mapping[str, tuple[str, str]] = {
    "mm": ("self", "mat2"),
    "addmm": ("mat1", "mat2"),
    "bmm": ("self", "mat2"),
    "baddbmm": ("batch1", "batch2"),
    "int_mm": ("self", "mat2"),
    "scaled_mm": ("self", "mat2"),
    "scaled_mm_v2": ("self", "mat2"),
}
"""The names of the two matrices in the op's schema, by kind."""


def make_product(
    left: TensorRef, right: TensorRef, program: Program, batch: tuple[Range, ...], row: Range, column: Range
) -> Product:
    """Returns the product of two references to matrices, or to batches of them."""
    depth = Range(depth_var(0), left.layout.size[-1])
    outer = tuple(r.var for r in batch)
    return Product(
        operand(left, program, (*outer, row.var, depth.var)),
        operand(right, program, (*outer, depth.var, column.var)),
        (depth,),
    )


SCALE = "scale"
"""Stands for the factor of a block's sum: a buffer that is never in memory."""


def _in_blocks(
    term: Product, scales: Sequence[Scaling], program: Program, batch: tuple[Range, ...], row: Range, column: Range
) -> Product:
    """Returns the product in blocks of the depth that have a scale each."""
    number, inside = (Range(depth_var(n), size) for n, size in enumerate((term.k // BLOCK, to_expr(BLOCK))))
    whole = {term.depth[0].var: BLOCK * number.var + inside.var}
    factors = [
        load(scaling.ref.buffer, (sympy.expand(scaling.position(own.var, number.var)),), torch.float32)
        for scaling, own in zip(scales, (row, column), strict=True)
        if scaling.in_blocks
    ]
    value = reduce(lambda one, other: call("mul", one, other), factors)
    device = program.buffers[term.left.buffer].device
    ranges = (*batch, row, column, number)
    scale = Loop(SCALE, device, ranges, (), (Store(SCALE, (ZERO,), value),))
    return Product(term.left.at(whole), term.right.at(whole), (number, inside), scale=scale)


def _scale(scaling: Scaling, row: Expr, ranges: Sequence[Range], program: Program) -> Node:
    """A scale for all elements, or the one of a row or column."""
    ref = scaling.ref
    if scaling.rows is not None:
        ref = replace(ref, layout=Layout((product(ref.layout.size),), scaling.steps[:1], ref.layout.offset))
    return load_at(ref, (*(r.var for r in ranges[:-1]), row), ranges, program)


def operand(
    ref: TensorRef, program: Program, position: Sequence[Expr], inside: tuple[tuple[Expr, Expr], ...] = ()
) -> Operand:
    """Returns the operand that is read at `position` of a reference. inside: as `Operand` has it."""
    flat = flat_index(tuple(position), ref.layout.stride, ref.layout.offset)
    return Operand(ref.buffer, program.buffers[ref.buffer].dtype, sympy.expand(flat), inside)


def _finish(
    value: Node, arguments: Mapping[str, Any], ranges: Sequence[Range], scales: Sequence[Scaling], program: Program
) -> Node:
    """Returns alpha * value + beta * bias, in the accumulator's dtype. Scales of the operands are applied first."""
    position = tuple(r.var for r in ranges)
    for scaling, row in zip(scales, position[-2:], strict=False):
        if not scaling.in_blocks:
            value = call("mul", value, _scale(scaling, row, ranges, program))
    if isinstance(arguments.get("scale_result"), TensorRef):
        raise Unsuitable("no template scales the result")
    return with_bias(value, arguments, lambda bias: load_at(bias, position, ranges, program))


def written_out(factors: Iterable[tuple[Node, Node]]) -> Node:
    """Returns the sum of the products of pairs, term by term, in the type that sums of the factors' type have."""
    terms = (call("mul", *(cast(each, compute_dtype(each.dtype)) for each in pair)) for pair in factors)
    return reduce(lambda total, term: call("add", total, term), terms)


def with_bias(value: Node, arguments: Mapping[str, Any], read: Callable[[TensorRef], Node]) -> Node:
    """Returns alpha * value + beta * bias. The bias is `self` of addmm and baddbmm, which name their matrices
    otherwise, else `bias`; with beta = 0 the bias is not read, as in BLAS. read: makes the load of the bias. Errors:
    Unsuitable for factors that are no numbers."""
    alpha, beta = arguments.get("alpha", 1), arguments.get("beta", 1)
    if not all(isinstance(factor, (int, float)) for factor in (alpha, beta)):
        raise Unsuitable("alpha and beta are no plain numbers")
    if alpha != 1:
        value = call("mul", value, const(alpha, value.dtype))
    bias = arguments["self"] if "mat1" in arguments or "batch1" in arguments else arguments.get("bias")
    if not isinstance(bias, TensorRef) or beta == 0:
        return value
    added = cast(read(bias), value.dtype)
    return call("add", value, added if beta == 1 else call("mul", added, const(beta, value.dtype)))


def load_at(ref: TensorRef, index: Sequence[Expr], ranges: Sequence[Range], program: Program) -> Node:
    """Returns the load of the element `index`, over variables of the ranges, of a reference, which is broadcast by
    torch's rules: along dimensions that are missing in front, and along single ones. Raises Unsuitable for a dtype that
    loops do not have, and where the buffer's layout does not say where the element is."""
    buffer, view = program.buffers[ref.buffer], ref.layout
    own = buffer.layout
    if buffer.dtype not in SUPPORTED:
        raise Unsuitable(f"no template adds or scales by {buffer.dtype}")
    tail = index[len(index) - len(view.size) :]
    position: Sequence[Expr] | None = [ZERO if n == ONE else at for n, at in zip(view.size, tail, strict=True)]
    if (own.size, own.stride, own.offset) != (view.size, view.stride, view.offset):
        position = _position_through(view, own, position or (), {r.var: r.size for r in ranges})
    if position is None:
        raise Unsuitable(f"its view of {ref.buffer} is not along the buffer's dimensions")
    return load(ref.buffer, tuple(position), buffer.dtype)


def _position_through(view: Layout, own: Layout, index: Sequence[Expr], extents: Ranges) -> tuple[Expr, ...] | None:
    """Returns where in a buffer's dimensions the element `index` of any view is, by quotients and remainders; None
    where the buffer's strides are symbolic or its dimensions lie over each other. extents: of the index's variables."""
    dims = [dim for dim, size in enumerate(own.size) if size != ONE]
    if not all(own.stride[dim].is_Integer and own.stride[dim] > 0 for dim in dims):
        return None
    dims.sort(key=lambda dim: -int(own.stride[dim]))
    for outer, inner in pairwise(dims):
        if not own.size[inner].is_Integer or own.size[inner] * own.stride[inner] > own.stride[outer]:
            return None
    rest = flat_index(tuple(index), view.stride, view.offset - own.offset).expand()
    found: list[Expr] = [ZERO] * len(own.size)
    for dim in dims:
        found[dim] = floordiv(rest, own.stride[dim], extents)
        rest = mod(rest, own.stride[dim], extents)
    return tuple(found) if rest == 0 else None
