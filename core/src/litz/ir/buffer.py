"""Buffers: named memory with a type, a device and a layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch

from .dtypes import short
from .index import ONE, ZERO, Expr, Symbol, product, to_expr

Kind = Literal["input", "constant", "temporary"]


@dataclass(frozen=True)
class Layout:
    """Sizes, strides and offset, in elements."""

    size: tuple[Expr, ...]  # the extent of each dimension
    stride: tuple[Expr, ...]  # elements between neighbours of each dimension
    offset: Expr = ZERO  # of the first element, in elements

    @staticmethod
    def contiguous(size: tuple[int | Expr, ...]) -> Layout:
        """Returns the row-major layout of a size, at offset 0."""
        return Layout.in_order(size, range(len(size)))

    @staticmethod
    def in_order(size: tuple[int | Expr, ...], order: Sequence[int]) -> Layout:
        """Returns the dense layout of a size, at offset 0, whose dimensions lie in this order, the outermost first."""
        sizes = tuple(to_expr(extent) for extent in size)
        strides, step = [ONE] * len(sizes), ONE
        for dim in reversed(order):
            strides[dim] = step
            # As torch does: a dimension of size 0 counts as 1, so that strides stay positive.
            step = step if sizes[dim] == 0 else step * sizes[dim]
        return Layout(sizes, tuple(strides))

    @property
    def numel(self) -> Expr:
        """Returns the number of elements, the product of the sizes; padding between them does not count."""
        return product(self.size)

    @cached_property
    def span(self) -> Expr:
        """Returns how many elements of storage the layout reaches from its offset; 0 for a layout without elements."""
        if any(extent == 0 for extent in self.size):
            return ZERO
        steps = zip(self.size, self.stride, strict=True)
        return sum((step * (extent - 1) for extent, step in steps), start=ONE)

    @property
    def free_symbols(self) -> frozenset[Symbol]:
        """Returns the size symbols in sizes, strides and offset."""
        return frozenset(s for expr in (*self.size, *self.stride, self.offset) for s in expr.free_symbols)

    def is_contiguous(self) -> bool:
        """Returns whether the layout is row-major. Strides of dimensions of size 1 do not count, and a layout without
        elements is contiguous, as in torch."""
        if 0 in self.size:
            return True
        step: Expr = ONE
        for extent, stride in zip(reversed(self.size), reversed(self.stride), strict=True):
            if extent == 1:
                continue
            if stride != step:
                return False
            step = step * extent
        return True

    def __str__(self) -> str:
        size = ", ".join(map(str, self.size))
        text = f"[{size}]"
        if self.stride != Layout.contiguous(self.size).stride:
            text += f" stride ({', '.join(map(str, self.stride))})"
        return text if self.offset == 0 else f"{text} offset {self.offset}"


@dataclass(frozen=True)
class Buffer:
    """Memory of the program. Inputs and constants are given; temporaries are allocated (some become outputs)."""

    name: str  # unique in its program
    dtype: torch.dtype  # of an element
    device: torch.device  # whose memory it is
    layout: Layout  # of its elements
    kind: Kind = "temporary"  # "input", "constant" or "temporary"

    @cached_property
    def nbytes(self) -> Expr:
        """Returns the bytes of storage that the layout spans."""
        return self.layout.span * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.name}: {short(self.dtype)} {self.layout} {self.device}"


@dataclass(frozen=True)
class TensorRef:
    """A strided view of a buffer: what a library call takes and what a program returns."""

    buffer: str  # the name of a buffer
    layout: Layout  # where in the buffer's storage the tensor lies

    def __str__(self) -> str:
        return f"{self.buffer}{self.layout}"

    def is_all_of(self, buffer: Buffer) -> bool:
        """Returns whether this view is the whole tensor of `buffer`. Strides of dimensions of extent 1 do not count."""
        mine, own = self.layout, buffer.layout
        pairs = zip(mine.size, mine.stride, own.stride)  # strict once the sizes are equal
        same = mine.size == own.size and mine.offset == 0
        return same and all(extent == 1 or a == b for extent, a, b in pairs)
