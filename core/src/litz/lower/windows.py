"""The window of a pool: where its taps lie in the input, and which windows cover an element of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from litz.ir import Node
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
        """Returns the number of dimensions that the window moves along."""
        return len(self.kernel)

    @property
    def whole(self) -> tuple[bool, ...]:
        """Whether, along each dimension, the window is longer than the input. If so, its taps are counted along the
        input."""
        parts = zip(self.kernel, self.dilation, self.size, strict=True)
        return tuple(d == 1 and n.is_Integer and k > int(n) for k, d, n in parts)

    @property
    def taps(self) -> tuple[int, ...]:
        """Returns how many taps there are to look at along each dimension."""
        parts = zip(self.whole, self.size, self.kernel, strict=True)
        return tuple(int(n) if whole else k for whole, n, k in parts)

    @property
    def count(self) -> int:
        """Returns how many taps of a window there are to look at, along all dimensions together."""
        return math.prod(self.taps)

    @property
    def crowded(self) -> tuple[bool, ...]:
        """Along which dimensions an element may be covered by as many windows as there are, or more: then they are
        counted from the first."""
        parts = zip(self.kernel, self.stride, self.out, strict=True)
        return tuple(o.is_Integer and -(-k // s) > int(o) for k, s, o in parts)

    @property
    def covering(self) -> tuple[int, ...]:
        """Returns how many windows, at most, cover one input element along each dimension, for a window without
        dilation."""
        parts = zip(self.crowded, self.out, self.kernel, self.stride, strict=True)
        return tuple(int(o) if crowded else -(-k // s) for crowded, o, k, s in parts)

    def starts(self, outer: Sequence[Expr]) -> list[Expr]:
        """Returns the input position of the first tap of the output at `outer`, which may lie in the padding."""
        return [o * s - p for o, s, p in zip(outer, self.stride, self.padding, strict=True)]

    def tap(self, outer: Sequence[Expr], step: Sequence[Expr], ranges: Ranges) -> tuple[list[Expr], Node | None]:
        """Returns the input position of tap number `step` of `taps`, and the condition that the position lies in the
        input and in the window (None: it always does)."""
        position: list[Expr] = []
        conditions: list[Node | None] = []
        parts = zip(self.starts(outer), step, self.dilation, self.kernel, self.size, self.whole, strict=True)
        for start, inner, d, k, n, whole in parts:
            position.append(inner if whole else start + inner * d)
            conditions.append(inside(inner - start, k, ranges) if whole else inside(position[-1], n, ranges))
        return position, all_of(conditions)

    def cover(self, inner: Sequence[Expr], step: Sequence[Expr], ranges: Ranges) -> tuple[list[Expr], Node | None]:
        """The output position of the window number `step` of `covering`, counted from the last that covers input
        `inner` down to the first, and whether there is such a window that does cover it. For windows without
        dilation."""
        found: list[Expr] = []
        conditions: list[Node | None] = []
        parts = zip(inner, step, self.kernel, self.stride, self.padding, self.out, self.crowded, strict=True)
        for h, number, k, s, p, extent, crowded in parts:
            if crowded:
                found.append(number)
                conditions.append(inside(h + p - number * s, k, ranges))
                continue
            found.append(floordiv(h + p, to_expr(s), ranges) - number)
            conditions.append(inside(found[-1], extent, ranges))
            if k % s != 0:
                # The remainder of h + p, and s for each window before: within the kernel?
                conditions.append(less_than(mod(h + p, to_expr(s), ranges) + number * s, k, ranges))
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
    """Returns a Window from arguments as ATen has them: one number may stand for all dimensions, and without a stride
    the stride is the kernel. Errors: NotImplementedError for a window of symbolic size."""

    def spread(values: Sequence[int]) -> tuple[int, ...]:
        values = [values] if isinstance(values, int) else list(values)
        if not all(isinstance(value, int) for value in values):
            raise NotImplementedError("a window of symbolic size")
        return tuple(values) if len(values) == ndim else (values[0],) * ndim

    kernels = spread(kernel)
    strides = spread(stride) if stride else kernels
    return Window(kernels, strides, spread(padding), spread(dilation), tuple(size[-ndim:]), tuple(out[-ndim:]))
