"""Lowerings of nearest-neighbour resampling to an exact multiple, which is a view, and of the gradients of resampling,
for static sizes. Other resampling is left to torch's rules.

Each element of the input adds up what its outputs have, each times the weight that the element had in the output: no
two elements add to one place. Where the output is an exact multiple of the input, nearest-neighbour's gradient adds up
a block. Elsewhere source positions are computed in the type that eager computes them in, for all outputs that may
have used the element.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from litz.ir import Node, build
from litz.ir.dtypes import compute_dtype
from litz.ir.index import Expr, Ranges, floordiv, loop_var, to_expr
from litz.lower import (
    Computed,
    Indices,
    LoweringContext,
    Tensor,
    as_node,
    combined,
    compare,
    extents_of,
    inside,
    masked_load,
    meta_size,
)

from .sources import blocks, sources, step
from .table import of_ranks
from .taps import MAX_UNROLLED, static, sum_taps

Touched = tuple[torch.Tensor, torch.Tensor]
"""Outputs, and the elements of the input that each uses."""


@dataclass(frozen=True)
class Line:
    """Resampling along one dimension, from `n` elements to `out`. touched: the outputs and the elements that each
    uses, two tensors of one size. weight: nodes of the floating dtype that sums are in, the weight of element `h` in
    output `o`, 0 where the output does not use the element; by (o, h)."""

    n: int
    out: int
    touched: Touched
    weight: Callable[[Expr, Expr], Node]

    def support(self) -> tuple[int, int]:
        """Returns (first, taps): element h is used by none but `taps` outputs from h * out // n + first on."""
        outputs, elements = self.touched
        distance = outputs - elements * self.out // self.n
        first = int(distance.min())
        return first, int(distance.max()) - first + 1


def _nearest_line(n: int, out: int, scale: float | None, exact: bool, dtype: torch.dtype) -> Line:
    """The source of each output is the element whose distance is least, by eager's arithmetic in float32."""

    def weight(o: Expr, h: Expr) -> Node:
        moved = build.cast(as_node(o), torch.float32)
        if exact:
            moved = build.call("add", moved, build.const(0.5, torch.float32))
        scaled = build.call("mul", moved, build.const(step(n, out, scale), torch.float32))
        position = build.call("minimum", build.cast(build.call("floor", scaled), torch.int64), as_node(to_expr(n - 1)))
        return build.cast(compare("eq", position, h), dtype)

    return Line(n, out, (torch.arange(out), torch.tensor(sources(n, out, scale, exact))), weight)


@dataclass(frozen=True)
class _Positions:
    """Source positions along one dimension, where they are not rounded: output o lies at (o + shift) * moves - shift
    among `n` elements."""

    n: int
    out: int
    moves: float
    shift: float

    @staticmethod
    def of(n: int, out: int, scale: float | None, align_corners: bool) -> _Positions:
        if align_corners:
            return _Positions(n, out, (n - 1) / max(out - 1, 1), 0.0)
        return _Positions(n, out, 1 / scale if scale is not None and scale > 0 else n / out, 0.5)

    def numbers(self) -> torch.Tensor:
        """Returns the position of each output, in float64."""
        return (torch.arange(self.out, dtype=torch.float64) + self.shift) * self.moves - self.shift

    def node(self, o: Expr, dtype: torch.dtype) -> Node:
        """Returns the position of output `o`, as a kernel computes it."""
        shift = build.const(self.shift, dtype)
        moved = build.call("add", build.cast(as_node(o), dtype), shift)
        return build.call("sub", build.call("mul", moved, build.const(self.moves, dtype)), shift)

    def touched(self, outputs: torch.Tensor, elements: torch.Tensor, weights: torch.Tensor) -> Touched:
        """Returns the outputs and elements whose weight is not 0 but for float64's rounding, whatever a kernel's
        float32 makes of the weight."""
        used = (weights.abs() > 1e-12 * self.n) & (elements < self.n)
        return outputs[used], elements[used].to(torch.int64)


def _linear_line(at: _Positions, dtype: torch.dtype) -> Line:
    """An output at source position x uses the elements beside x; the weight of an element is 1 less its distance."""
    positions = at.numbers().clamp(0, at.n - 1)
    outputs, elements = torch.arange(at.out).repeat(2), torch.cat([positions.floor(), positions.floor() + 1])
    touched = at.touched(outputs, elements, 1 - (positions.repeat(2) - elements).abs())

    def weight(o: Expr, h: Expr) -> Node:
        def number(value: float) -> Node:
            return build.const(value, dtype)

        source = build.call("minimum", build.call("maximum", at.node(o, dtype), number(0.0)), number(at.n - 1))
        distance = build.call("abs", build.call("sub", source, build.cast(as_node(h), dtype)))
        return build.call("maximum", build.call("sub", number(1.0), distance), number(0.0))

    return Line(at.n, at.out, touched, weight)


NEAR, FAR = (1.25, -2.25, 0.0, 1.0), (-0.75, 3.75, -6.0, 3.0)
"""The cubic that weights an element whose distance from the source position is at most 1, and at most 2: the factors of
the distance's powers, the highest first. Keys, "Cubic convolution interpolation for digital image processing" (1981),
with a = -0.75, as torch has it."""


def _cubic_line(at: _Positions, dtype: torch.dtype) -> Line:
    """An output at source position x uses the two elements to either side of x. Elements before the first one, and
    behind the last, are those: the first and the last weigh for them too."""
    positions = at.numbers().repeat(4)
    wanted = positions.floor() + torch.arange(-1, 3).repeat_interleave(at.out)
    distance = (positions - wanted).abs()
    weights = torch.where(distance <= 1, _polynomial(NEAR, distance), _polynomial(FAR, distance))
    touched = at.touched(torch.arange(at.out).repeat(4), wanted.clamp(0, at.n - 1), weights)
    used = wanted[weights.abs() > 0]
    before, behind = (max(0, int(most)) for most in (-used.min(), used.max() - (at.n - 1)))

    def number(value: float) -> Node:
        return build.const(value, dtype)

    def cubic(factors: Sequence[float], x: Node) -> Node:
        total = number(factors[0])
        for factor in factors[1:]:
            total = build.call("add", build.call("mul", total, x), number(factor))
        return total

    def alone(source: Node, element: Node) -> Node:
        """The weight of an element that may lie outside."""
        distance = build.call("minimum", build.call("abs", build.call("sub", source, element)), number(2.0))
        near = build.call("le", distance, number(1.0))
        return build.call("where", near, cubic(NEAR, distance), cubic(FAR, distance))

    def weight(o: Expr, h: Expr) -> Node:
        source = at.node(o, dtype)
        total = alone(source, build.cast(as_node(h), dtype))
        ends = ((0, range(-before, 0)), (at.n - 1, range(at.n, at.n + behind)))
        for end, outside in ends:
            for each in outside:
                more = build.call(
                    "where", compare("eq", as_node(h), to_expr(end)), alone(source, number(each)), number(0.0)
                )
                total = build.call("add", total, more)
        return total

    return Line(at.n, at.out, touched, weight)


def _polynomial(factors: Sequence[float], x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros_like(x)
    for factor in factors:
        total = total * x + factor
    return total


def _gathered(ctx: LoweringContext, grad: Tensor, size: Sequence[Expr], lines: Sequence[Line]) -> Tensor:
    """The gradient of `size`, resampled along its last dimensions: to each element what its outputs have, weighted.
    Many outputs are added up along one dimension after the other."""
    along = dict(enumerate(lines, len(size) - len(lines)))
    if math.prod(line.support()[1] for line in lines) <= MAX_UNROLLED:
        return _gathered_along(ctx, grad, size, along, grad)
    total, wide = grad, Computed.full((), 0, compute_dtype(grad.dtype), grad.device)
    for dim, line in along.items():
        last = dim == len(size) - 1
        total = _gathered_along(
            ctx, total, [*size[: dim + 1], *grad.size[dim + 1 :]], {dim: line}, grad if last else wide
        )
    return total


def _gathered_along(
    ctx: LoweringContext, grad: Tensor, size: Sequence[Expr], lines: Mapping[int, Line], like: Tensor
) -> Tensor:
    """The same for some dimensions, all at once. like: a tensor of the result's dtype."""
    supports = {dim: line.support() for dim, line in lines.items()}

    def tap(indices: Indices, step: Indices, ranges: Ranges) -> Node:
        outer = list(indices)
        mask: Node | None = None
        for (dim, line), number in zip(lines.items(), step, strict=True):
            outer[dim] = floordiv(indices[dim] * line.out, to_expr(line.n), ranges) + supports[dim][0] + number
            mask = build.logical_and(mask, inside(outer[dim], line.out, ranges))
        weight = combined("mul", [line.weight(outer[dim], indices[dim]) for dim, line in lines.items()])
        value = build.cast(masked_load(grad, outer, mask), weight.dtype)
        used = build.call("ne", weight, build.const(0.0, weight.dtype))  # what is not used may be infinite
        return build.call("where", used, build.call("mul", value, weight), build.const(0.0, weight.dtype))

    return sum_taps(ctx, size, [taps for _, taps in supports.values()], like, tap)


def search_or_raise(ctx: LoweringContext, grad: Tensor) -> None:
    """Raises NotImplementedError where the library, which adds each output's gradient to its sources, is quicker than
    a search for the outputs of each source."""
    if "library_windows" in ctx.target_of(grad.device).abilities:
        raise NotImplementedError("a search for outputs is slower than torch's loop over outputs")


def nearest(
    ndim: int, ctx: LoweringContext, x: Tensor, output_size: Sequence[int], *scales: float | None, exact: bool
) -> Tensor:
    """Lowers nearest-neighbour upsampling to an exact multiple: a view. Errors: NotImplementedError for any other."""
    size = meta_size(ctx)
    steps = blocks(static(x.size[-ndim:]), static(size[-ndim:]), scales, exact)
    if steps is None:
        raise NotImplementedError("the output is no multiple of the input")
    names = tuple(map(loop_var, range(x.ndim)))
    ranges = extents_of(names, size)
    within = [floordiv(o, to_expr(each), ranges) for o, each in zip(names[-ndim:], steps, strict=True)]
    return x.reindex(size, [*names[:-ndim], *within])


def nearest_backward(
    ndim: int,
    ctx: LoweringContext,
    grad: Tensor,
    output_size: Sequence[int],
    input_size: Sequence[int | Expr],
    *scales: float | None,
    exact: bool,
) -> Tensor:
    """Lowers the gradient of nearest-neighbour upsampling over the last `ndim` dimensions. exact: positions are those
    of the "exact" variant of the op. Errors: those of `search_or_raise`, unless the output is a multiple of the
    input."""
    size = tuple(map(to_expr, input_size))
    extents, outs = static(size[-ndim:]), static(grad.size[-ndim:])
    steps = blocks(extents, outs, scales, exact)
    if steps is not None:

        def tap(indices: Indices, inner: Indices, ranges: Ranges) -> Node:
            position = [h * each + at for h, each, at in zip(indices[-ndim:], steps, inner, strict=True)]
            return build.cast(grad.load([*indices[:-ndim], *position]), compute_dtype(grad.dtype))

        return sum_taps(ctx, size, steps, grad, tap)

    search_or_raise(ctx, grad)
    parts = zip(extents, outs, scales or (None,) * ndim, strict=True)
    lines = [_nearest_line(n, out, s, exact, compute_dtype(grad.dtype)) for n, out, s in parts]
    return _gathered(ctx, grad, size, lines)


def linear_backward(ctx: LoweringContext, grad: Tensor, output_size: Sequence[int], *args: Any) -> Tensor:
    """Lowers the gradient of linear, bilinear and trilinear resampling. Errors: those of `search_or_raise`."""
    return _weighted_backward(ctx, grad, _linear_line, *args)


def bicubic_backward(ctx: LoweringContext, grad: Tensor, output_size: Sequence[int], *args: Any) -> Tensor:
    """Lowers the gradient of bicubic resampling. Errors: those of `search_or_raise`."""
    return _weighted_backward(ctx, grad, _cubic_line, *args)


def _weighted_backward(
    ctx: LoweringContext,
    grad: Tensor,
    line: Callable[[_Positions, torch.dtype], Line],
    input_size: Sequence[int | Expr],
    align_corners: bool,
    *scales: float | None,
) -> Tensor:
    search_or_raise(ctx, grad)
    size, ndim = tuple(map(to_expr, input_size)), len(input_size) - 2
    parts = zip(static(size[-ndim:]), static(grad.size[-ndim:]), scales or (None,) * ndim, strict=True)
    lines = [line(_Positions.of(n, out, s, align_corners), compute_dtype(grad.dtype)) for n, out, s in parts]
    return _gathered(ctx, grad, size, lines)


LOWERINGS = {
    **of_ranks((1, 2, 3), "aten.upsample_nearest{}d.default", nearest, exact=False),
    **of_ranks((1, 2, 3), "aten._upsample_nearest_exact{}d.default", nearest, exact=True),
    **of_ranks((1, 2, 3), "aten.upsample_nearest{}d_backward.default", nearest_backward, exact=False),
    **of_ranks((1, 2, 3), "aten._upsample_nearest_exact{}d_backward.default", nearest_backward, exact=True),
    "aten.upsample_linear1d_backward.default": linear_backward,
    "aten.upsample_bilinear2d_backward.default": linear_backward,
    "aten.upsample_trilinear3d_backward.default": linear_backward,
    "aten.upsample_bicubic2d_backward.default": bicubic_backward,
}
