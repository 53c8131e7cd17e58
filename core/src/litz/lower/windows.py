"""The window of a pool: where its taps lie in the input, and which windows cover an element of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from litz.ir import Node
from litz.ir.dtypes import HALF
from litz.ir.index import Expr, Ranges, floordiv, mod, to_expr

from .access import all_of, inside, less_than


@dataclass(frozen=True)
class Window:
    """A pool's window along its last `len(kernel)` dimensions. `size`: input extents; `out`: output extents."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    size: tuple[Expr, ...]
    out: tuple[Expr, ...]

    @property
    def ndim(self) -> int:
        return len(self.kernel)

    @property
    def count(self) -> int:
        """Taps of the window."""
        return math.prod(self.kernel)

    @property
    def covering(self) -> tuple[int, ...]:
        """Along each dimension, at most how many windows cover one input element (without dilation)."""
        return tuple(-(-k // s) for k, s in zip(self.kernel, self.stride, strict=True))

    def starts(self, outer: Sequence[Expr]) -> list[Expr]:
        """The first tap of the output at `outer`, which may lie in the padding."""
        return [o * s - p for o, s, p in zip(outer, self.stride, self.padding, strict=True)]

    def tap(self, outer: Sequence[Expr], step: Sequence[Expr], ranges: Ranges) -> tuple[list[Expr], Node | None]:
        """The input position of a tap, and whether it lies inside of the input."""
        spaced = zip(self.starts(outer), step, self.dilation, strict=True)
        position = [start + inner * d for start, inner, d in spaced]
        return position, all_of([inside(p, n, ranges) for p, n in zip(position, self.size, strict=True)])

    def cover(self, inner: Sequence[Expr], step: Sequence[Expr], ranges: Ranges) -> tuple[list[Expr], Node | None]:
        """The output position of the window that is `step` before the last one that covers input `inner`, and whether
        there is such a window that does cover it. For windows without dilation."""
        found: list[Expr] = []
        conditions: list[Node | None] = []
        parts = zip(inner, step, self.kernel, self.stride, self.padding, self.out, strict=True)
        for h, before, k, s, p, extent in parts:
            o = floordiv(h + p, to_expr(s), ranges) - before
            found.append(o)
            conditions.append(inside(o, extent, ranges))
            if k % s != 0:
                # The remainder of h + p, and s for each window before: within the kernel?
                conditions.append(less_than(mod(h + p, to_expr(s), ranges) + before * s, k, ranges))
        return found, all_of(conditions)


def window(
    ndim: int,
    kernel: Sequence[int],
    stride: Sequence[int] | None,
    padding: Sequence[int],
    dilation: Sequence[int],
    size: Sequence[Expr],
    out: Sequence[Expr],
) -> Window:
    """A Window from the arguments as ATen has them: one number may stand for all dimensions."""

    def spread(values: Sequence[int]) -> tuple[int, ...]:
        values = [values] if isinstance(values, int) else list(values)
        if not all(isinstance(value, int) for value in values):
            raise NotImplementedError("a window of symbolic size")
        return tuple(values) if len(values) == ndim else (values[0],) * ndim

    kernels = spread(kernel)
    strides = spread(stride) if stride else kernels
    return Window(kernels, strides, spread(padding), spread(dilation), tuple(size[-ndim:]), tuple(out[-ndim:]))


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype that elements are added up in: float32 for half types."""
    return torch.float32 if dtype in HALF else dtype
