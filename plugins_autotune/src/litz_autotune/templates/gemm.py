"""A matrix product as data. In: a contraction of the IR (mm, addmm, bmm, baddbmm). Out: a `Gemm`, or why there is none.

    result[b, m, n] = epilogue(sum over the products p, over k, of left_p[b, m, k] * right_p[b, k, n])

Strides may be anything, zero included; sizes may be symbolic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from litz.cost.contractions import argument_names
from litz.ir import Buffer, Layout, Node, Program, Template, TensorRef
from litz.ir.build import call, cast, const, load
from litz.ir.dtypes import SUPPORTED
from litz.ir.index import ONE, ZERO, Expr

from ..epilogue import ACCUMULATOR, Epilogue, accumulator, plain


@dataclass(frozen=True)
class Matrix:
    """An operand: a buffer, its dtype, and where element (batch, row, column) lies: offset + the strides' products, in
    elements."""

    buffer: str
    dtype: torch.dtype
    offset: Expr
    stride: tuple[Expr, Expr, Expr]


@dataclass(frozen=True)
class Product:
    """left (m, k) times right (k, n), for each batch."""

    left: Matrix
    right: Matrix
    k: Expr


@dataclass(frozen=True)
class Gemm:
    """batch, m, n: sizes of the result. accumulate: dtype of the sums. tf32: float32 operands may lose bits."""

    batch: Expr
    m: Expr
    n: Expr
    products: tuple[Product, ...]
    accumulate: torch.dtype
    epilogue: Epilogue
    tf32: bool = False

    @property
    def dtype(self) -> torch.dtype:
        """Of the operands."""
        return self.products[0].left.dtype

    @property
    def sizes(self) -> tuple[Expr, ...]:
        return (self.batch, self.m, self.n, *(product.k for product in self.products))


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
    names = _OPERANDS.get(template.kind)
    if names is None:
        raise Unsuitable(f"{template.kind} is no matrix product")
    left, right = (arguments[name] for name in names)
    product = make_product(left, right, program)
    dtype = product.left.dtype
    if dtype not in ACCUMULATE or product.right.dtype != dtype:
        raise Unsuitable(f"no template for {product.left.dtype} times {product.right.dtype}")
    value, buffer, ranges = accumulator(program, template, ACCUMULATE[dtype])
    views = {ACCUMULATOR: buffer}
    batch, m, n = as_batched(tuple(r.size for r in ranges))
    if any(size == 0 for size in (batch, m, n)):
        raise Unsuitable("the result is empty")
    out = program.buffers[str(template.outputs[0])].dtype
    if out not in SUPPORTED:
        raise Unsuitable(f"no epilogue stores {out}")
    value = _finish(value, arguments, program, tuple(r.var for r in ranges), views, tuple(r.size for r in ranges))
    epilogue = plain(program, template, cast(value, out), ranges, views)
    return Gemm(batch, m, n, (product,), ACCUMULATE[dtype], epilogue, tf32 and dtype == torch.float32)


_OPERANDS: Mapping[str, tuple[str, str]] = {
    "mm": ("self", "mat2"),
    "addmm": ("mat1", "mat2"),
    "bmm": ("self", "mat2"),
    "baddbmm": ("batch1", "batch2"),
}
"""The names of the two matrices in the op's schema, by kind."""


def make_product(left: TensorRef, right: TensorRef, program: Program) -> Product:
    """The product of two references to matrices, or to batches of them."""
    return Product(_matrix(left, program), _matrix(right, program), left.layout.size[-1])


def _matrix(ref: TensorRef, program: Program) -> Matrix:
    stride = ref.layout.stride
    batch, row, column = stride if len(stride) == 3 else (ZERO, *stride)
    return Matrix(ref.buffer, program.buffers[ref.buffer].dtype, ref.layout.offset, (batch, row, column))


def as_batched(size: tuple[Expr, ...]) -> tuple[Expr, Expr, Expr]:
    """(batch, m, n) of a result's size: a matrix is a batch of one."""
    return (ONE, *size) if len(size) == 2 else (size[0], size[1], size[2])


def _finish(
    value: Node,
    arguments: Mapping[str, Any],
    program: Program,
    position: tuple[Any, ...],
    views: dict[str, Buffer],
    size: tuple[Expr, ...],
) -> Node:
    """alpha * value + beta * bias, in the accumulator's dtype; a bias with beta = 0 is not read, as in BLAS."""
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
    """What is added to the product: `self` of addmm and baddbmm, which name their matrices otherwise."""
    if "mat1" in arguments or "batch1" in arguments:
        found = arguments["self"]
        assert isinstance(found, TensorRef)
        return found
    return None


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
