"""The window of a pool: where its taps lie in the input, and which windows cover an element of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from litz.ir import Node, build
from litz.ir.index import ONE, ZERO, Expr, Ranges, floordiv, mod, to_expr
from litz.lower import Position, all_of, as_node, at_least, inside, less_than


def _divisible(position: Expr, number: int, ranges: Ranges) -> Node | None:
    """The condition that `number` divides the position; None if every point of the ranges fulfils it."""
    return less_than(mod(position, to_expr(number), ranges), ONE, ranges) if number != 1 else None


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
        """Returns, for each dimension, whether the window is longer than the input. The taps of such a window are
        counted along the input."""
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
        """Along which dimensions there are fewer windows than may cover an element: then they are counted from the
        first."""
        return tuple(o.is_Integer and most > int(o) for most, o in zip(self._most, self.out, strict=True))

    @property
    def covering(self) -> tuple[int, ...]:
        """Returns how many windows, along each dimension, may cover one input element."""
        parts = zip(self.crowded, self.out, self._most, strict=True)
        return tuple(int(o) if crowded else most for crowded, o, most in parts)

    @property
    def _most(self) -> tuple[int, ...]:
        """Returns how many windows may cover one element if there are enough: with dilation, one for each tap."""
        parts = zip(self.kernel, self.stride, self.dilation, strict=True)
        return tuple(-(-k // s) if d == 1 else k for k, s, d in parts)

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

    def held(self, outer: Sequence[Expr], step: Sequence[Expr], ranges: Ranges) -> list[Position]:
        """Returns the input position of tap number `step` of `taps` or, where `tap` has a condition that does not hold,
        of the tap of the same window that is nearest to it in the input. Without dilation alone."""
        found: list[Position] = []
        positions = self.tap(outer, step, ranges)[0]
        parts = zip(positions, self.starts(outer), self.kernel, self.size, self.whole, strict=True)
        for position, start, k, n, whole in parts:
            first, end = (start, start + k) if whole else (ZERO, n)
            held: Position = position
            before, beyond = at_least(position - first, ZERO, ranges), less_than(position - end, ZERO, ranges)
            if before is not None:
                held = build.call("maximum", as_node(held), as_node(first))
            if beyond is not None or (before is not None and not n.is_Integer):  # so that the verifier sees the end
                held = build.call("minimum", as_node(held), as_node(end - 1))
            found.append(held)
        return found

    def cover(
        self, inner: Sequence[Expr], step: Sequence[Expr], ranges: Ranges
    ) -> tuple[list[Expr], list[Expr], Node | None]:
        """The output position of window number `step` of `covering`, the tap of this window that lies at input `inner`,
        and the condition that there are such a window and such a tap (None: it always holds).

        Windows are counted from the last that may cover `inner` down to the first; with dilation, by their taps.
        """
        outer: list[Expr] = []
        taps: list[Expr] = []
        conditions: list[Node | None] = []
        parts = zip(inner, step, self.kernel, self.stride, self.padding, self.dilation, self.out, self.crowded,
                    strict=True)  # fmt: skip
        for h, number, k, s, p, d, extent, crowded in parts:
            if crowded:
                offset = h + p - number * s
                outer.append(number)
                taps.append(floordiv(offset, to_expr(d), ranges))
                conditions += [inside(offset, d * (k - 1) + 1, ranges), _divisible(offset, d, ranges)]
                continue
            if d == 1:
                outer.append(floordiv(h + p, to_expr(s), ranges) - number)
                taps.append(mod(h + p, to_expr(s), ranges) + number * s)
                conditions.append(less_than(taps[-1], k, ranges))
            else:
                start = h + p - number * d
                outer.append(floordiv(start, to_expr(s), ranges))
                taps.append(number)
                conditions.append(_divisible(start, s, ranges))
            conditions.append(inside(outer[-1], extent, ranges))
        return outer, taps, all_of(conditions)


def window(
    ndim: int,
    kernel: int | Sequence[int],
    stride: int | Sequence[int] | None,
    padding: int | Sequence[int],
    dilation: int | Sequence[int],
    size: Sequence[Expr],
    out: Sequence[Expr] | None = None,
) -> Window:
    """Returns a Window from arguments as ATen has them: one number may stand for all dimensions, and without a stride
    the stride is the kernel. out: None for as many windows as fit. Errors: NotImplementedError for a window of symbolic
    size."""

    def spread(values: int | Sequence[int]) -> tuple[int, ...]:
        values = [values] if isinstance(values, int) else list(values)
        if not all(isinstance(value, int) for value in values):
            raise NotImplementedError("a window of symbolic size")
        return tuple(values) if len(values) == ndim else (values[0],) * ndim

    kernels = spread(kernel)
    strides, paddings, dilations = spread(stride) if stride else kernels, spread(padding), spread(dilation)
    inner = tuple(size[-ndim:])
    if out is None:
        parts = zip(inner, kernels, strides, paddings, dilations, strict=True)
        out = [floordiv(n + 2 * p - d * (k - 1) - 1, to_expr(s), {}) + 1 for n, k, s, p, d in parts]
    return Window(kernels, strides, paddings, dilations, inner, tuple(out[-ndim:]))
