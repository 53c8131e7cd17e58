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

import torch

from litz.capture.resampling import blocks, sources, step
from litz.ir import Node, build
from litz.ir.dtypes import compute_dtype
from litz.ir.index import Expr, Ranges, floordiv, to_expr

from .access import MAX_UNROLLED, as_node, compare, extents_of, inside, masked_load, static, sum_taps
from .context import Indices, LoweringContext
from .registry import lowering, lowering_by_rank
from .shapes import meta_size
from .view import Computed, Tensor, combined, variables

aten = torch.ops.aten


@dataclass(frozen=True)
class Line:
    """Resampling along one dimension, from `n` elements to `out`. touched: the outputs and the elements that each
    uses, two tensors of one size. weight: nodes of the floating dtype that sums are in, the weight of element `h` in
    output `o`, 0 where the output does not use the element; by (o, h)."""

    n: int
    out: int
    touched: tuple[torch.Tensor, torch.Tensor]
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

    return Line(n, out, (torch.arange(out), sources(n, out, scale, exact)), weight)


def _linear_line(n: int, out: int, scale: float | None, align_corners: bool, dtype: torch.dtype) -> Line:
    """An output at source position x uses the elements beside x; the weight of an element is 1 less its distance."""
    moves = 1 / scale if scale is not None and scale > 0 else n / out
    if align_corners:
        moves = (n - 1) / max(out - 1, 1)
    shift = 0.0 if align_corners else 0.5
    positions = ((torch.arange(out, dtype=torch.float64) + shift) * moves - shift).clamp(0, n - 1)
    outputs, elements = torch.arange(out).repeat(2), torch.cat([positions.floor(), positions.floor() + 1])
    # A weight that is 0 but for float64's rounding does not count, whatever a kernel's float32 makes of the weight.
    used = (1 - (positions.repeat(2) - elements).abs() > 1e-12 * n) & (elements < n)
    touched = outputs[used], elements[used].to(torch.int64)

    def weight(o: Expr, h: Expr) -> Node:
        def number(value: float) -> Node:
            return build.const(value, dtype)

        moved = build.call("add", build.cast(as_node(o), dtype), number(shift))
        source = build.call("sub", build.call("mul", moved, number(moves)), number(shift))
        source = build.call("minimum", build.call("maximum", source, number(0.0)), number(n - 1))
        distance = build.call("abs", build.call("sub", source, build.cast(as_node(h), dtype)))
        return build.call("maximum", build.call("sub", number(1.0), distance), number(0.0))

    return Line(n, out, touched, weight)


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
        used = build.call("gt", weight, build.const(0.0, weight.dtype))  # what is not used may be infinite
        return build.call("where", used, build.call("mul", value, weight), build.const(0.0, weight.dtype))

    return sum_taps(ctx, size, [taps for _, taps in supports.values()], like, tap)


def search_or_raise(grad: Tensor) -> None:
    """Raises NotImplementedError for a CPU's tensor: a thread of torch's kernel has planes of its own, to which it adds
    without a search for the outputs of each element."""
    if grad.device.type == "cpu":
        raise NotImplementedError("a search for outputs is slower than torch's loop over outputs")


@lowering_by_rank((1, 2, 3), "aten.upsample_nearest{}d.default", exact=False)
@lowering_by_rank((1, 2, 3), "aten._upsample_nearest_exact{}d.default", exact=True)
def nearest(
    ndim: int, ctx: LoweringContext, x: Tensor, output_size: Sequence[int], *scales: float | None, exact: bool
) -> Tensor:
    """Lowers nearest-neighbour upsampling to an exact multiple: a view. Errors: NotImplementedError for any other."""
    size = meta_size(ctx)
    steps = blocks(static(x.size[-ndim:]), static(size[-ndim:]), scales, exact)
    if steps is None:
        raise NotImplementedError("the output is no multiple of the input")
    names = variables(x.ndim)
    ranges = extents_of(names, size)
    within = [floordiv(o, to_expr(each), ranges) for o, each in zip(names[-ndim:], steps, strict=True)]
    return x.reindex(size, [*names[:-ndim], *within])


@lowering_by_rank((1, 2, 3), "aten.upsample_nearest{}d_backward.default", exact=False)
@lowering_by_rank((1, 2, 3), "aten._upsample_nearest_exact{}d_backward.default", exact=True)
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
    of the "exact" variant of the op."""
    size = tuple(map(to_expr, input_size))
    extents, outs = static(size[-ndim:]), static(grad.size[-ndim:])
    steps = blocks(extents, outs, scales, exact)
    if steps is not None:

        def tap(indices: Indices, inner: Indices, ranges: Ranges) -> Node:
            position = [h * each + at for h, each, at in zip(indices[-ndim:], steps, inner, strict=True)]
            return build.cast(grad.load([*indices[:-ndim], *position]), compute_dtype(grad.dtype))

        return sum_taps(ctx, size, steps, grad, tap)

    search_or_raise(grad)
    parts = zip(extents, outs, scales or (None,) * ndim, strict=True)
    lines = [_nearest_line(n, out, s, exact, compute_dtype(grad.dtype)) for n, out, s in parts]
    return _gathered(ctx, grad, size, lines)


@lowering(
    aten.upsample_linear1d_backward.default,
    aten.upsample_bilinear2d_backward.default,
    aten.upsample_trilinear3d_backward.default,
)
def linear_backward(
    ctx: LoweringContext,
    grad: Tensor,
    output_size: Sequence[int],
    input_size: Sequence[int | Expr],
    align_corners: bool,
    *scales: float | None,
) -> Tensor:
    """Lowers the gradient of linear, bilinear and trilinear resampling. Errors: NotImplementedError on a CPU."""
    search_or_raise(grad)
    size, ndim = tuple(map(to_expr, input_size)), len(output_size)
    parts = zip(static(size[-ndim:]), static(grad.size[-ndim:]), scales or (None,) * ndim, strict=True)
    lines = [_linear_line(n, out, s, align_corners, compute_dtype(grad.dtype)) for n, out, s in parts]
    return _gathered(ctx, grad, size, lines)
