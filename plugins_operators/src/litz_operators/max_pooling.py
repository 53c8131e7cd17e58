"""Lowerings of max pooling in 2 and 3 dimensions, and of its gradient.

A small window is written out as one masked read per tap, so that a pool is a pointwise loop and fuses like one; a large
window is a reduction. The gradient is gathered: each input element looks at the windows that may cover it, so there are
no atomics, and every element is written once. `average_pooling.py` has the averages, `adaptive_pooling.py` the
pools whose windows vary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from litz.ir import Node, build
from litz.ir.dtypes import compute_dtype, least
from litz.ir.index import ZERO, Expr, Ranges, floordiv, known_nonnegative, mod, to_expr
from litz.lower import (
    Indices,
    LoweringContext,
    Position,
    Tensor,
    View,
    all_of,
    as_node,
    at_least,
    compare,
    extents_of,
    inside,
    masked_load,
    meta_size,
    used,
)

from .table import of_ranks
from .taps import MAX_UNROLLED, sum_taps, window_positions
from .unpooling import put_in_planes
from .window import Window, window

BRANCHLESS = frozenset({"cpu"})
"""Devices whose compilers make vectors of reads at positions that are held inside, and not of reads under masks."""

GATHERED = 4
"""The fewest bytes of an element that a processor's vectors gather, as the gradient does those of windows."""


def max_pool_with_indices(
    ndim: int,
    ctx: LoweringContext,
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Lowers max pooling: the greatest element of each window and its row-major position in the input's last `ndim`
    dimensions, None if nothing reads it. Errors: NotImplementedError for bool."""
    size = meta_size(ctx, 0)
    w = window(ndim, kernel, stride, padding, dilation, x.size, size)
    if x.dtype == torch.bool:
        raise NotImplementedError("a pool of bool")
    wanted = used(ctx, 1)
    if w.count > MAX_UNROLLED:
        return _max_pool_reduced(ctx, x, w, size, wanted)
    values = View.whole(ctx.new_buffer(size, x.dtype, x.device, output=0))
    places = View.whole(ctx.new_buffer(size, torch.int64, x.device, output=1)) if wanted else None
    indices = ctx.indices(size)
    if any(extent == 0 for extent in size):
        best, place = build.const(0, x.dtype), build.const(0, torch.int64)
    else:
        best, place = _greatest(x, w, indices, extents_of(indices, size))
    stores = [ctx.store(values, indices, best)]
    if places is not None:
        stores.append(ctx.store(places, indices, place))
    ctx.add_loop(x.device, size, (), stores)
    return values, places


def _greatest(x: Tensor, w: Window, indices: Indices, ranges: Ranges) -> tuple[Node, Node]:
    """Returns the greatest value of a window and its place, as eager's loop finds them: a NaN wins, the last of
    several; of equal values the first.

    Where a tap lies in the padding, a branchless device looks at the nearest tap of the window twice, which changes
    nothing. With dilation the nearest position need not be a tap, and an input that may be empty has none.
    """
    outer = indices[-w.ndim :]
    plain = all(d == 1 and known_nonnegative(n - 1) for d, n in zip(w.dilation, w.size, strict=True))
    branchless = x.device.type in BRANCHLESS and plain
    position: Sequence[Position]
    lowest = least(x.dtype)
    best = build.const(lowest, x.dtype)
    place = as_node(_flat(_first_inside(w, outer, ranges), w.size))
    for number, step in enumerate(window_positions(w.taps)):
        position, mask = w.tap(outer, step, ranges) if not branchless else (w.held(outer, step, ranges), None)
        value = masked_load(x, [*indices[: -w.ndim], *position], mask, lowest)
        if number == 0:  # `place` is this tap's already or, where this tap lies in the padding, the first tap's inside
            best = value
            continue
        larger = build.call("gt", value, best)
        if x.dtype.is_floating_point:
            larger = build.call("bitwise_or", larger, build.call("isnan", value))
        here = as_node(_flat(position, w.size))
        # A window whose elements are all the lowest value keeps its first place, as no element is larger.
        best, place = build.call("where", larger, value, best), build.call("where", larger, here, place)
    return best, place


def _first_inside(w: Window, outer: Sequence[Expr], ranges: Ranges) -> list[Position]:
    """The first tap of a window that does not lie in the padding before the input."""
    found: list[Position] = []
    for start, d in zip(w.starts(outer), w.dilation, strict=True):
        before = at_least(start, ZERO, ranges)
        if before is None:
            found.append(start)
        else:
            found.append(build.call("where", before, as_node(start), as_node(mod(start, to_expr(d), ranges))))
    return found


def _flat(position: Sequence[Position], size: Sequence[Expr]) -> Position:
    """Returns the row-major offset of a position."""
    total: Position = ZERO
    for where, extent in zip(position, size, strict=True):
        if isinstance(where, Node) or isinstance(total, Node):
            scaled = build.call("mul", as_node(total), as_node(extent))
            total = build.call("add", scaled, as_node(where))
        else:
            total = (total * extent + where).expand()
    return total


def _max_pool_reduced(
    ctx: LoweringContext, x: Tensor, w: Window, size: tuple[Expr, ...], wanted: bool
) -> tuple[Tensor, Tensor | None]:
    """A large window: the maximum, and with it the place that argmax finds within the window."""

    def body(indices: Indices, inner: Indices) -> tuple[Node, ...]:
        ranges = extents_of((*indices, *inner), (*size, *map(to_expr, w.taps)))
        position, mask = w.tap(indices[-w.ndim :], inner, ranges)
        value = masked_load(x, [*indices[: -w.ndim], *position], mask, least(x.dtype))
        best = build.reduce("max", value)
        return (best, _place(w, indices, build.reduce("argmax", value))) if wanted else (best,)

    dtypes = [x.dtype, torch.int64] if wanted else [x.dtype]
    results = ctx.reduction(size, tuple(map(to_expr, w.taps)), dtypes, x.device, body)
    return results[0], results[1] if wanted else None


def _place(w: Window, indices: Indices, chosen: Node) -> Node:
    """The place in the input of tap number `chosen` of a window."""
    found: list[Position] = []
    for dim in reversed(range(w.ndim)):
        extent = build.const(w.taps[dim], torch.int64)
        step, chosen = build.call("remainder", chosen, extent), build.call("floordiv", chosen, extent)
        if w.whole[dim]:
            found.insert(0, step)
            continue
        spaced = build.call("mul", step, build.const(w.dilation[dim], torch.int64))
        where = build.call("add", spaced, as_node(w.starts(indices[-w.ndim :])[dim]))
        # Where all are the lowest value, argmax may find a tap in the padding.
        last = as_node(w.size[dim] - 1)
        held = build.call("minimum", build.call("maximum", where, build.const(0, torch.int64)), last)
        found.insert(0, held)
    return as_node(_flat(found, w.size))


def search_is_slow(ctx: LoweringContext, w: Window, grad: Tensor) -> bool:
    """Returns whether each window had better add its gradient to the element that it found: quicker than a search of
    each element's windows where the library's loop over windows is quick, unless vectors can search."""
    quick = "library_windows" in ctx.target_of(grad.device).abilities
    return quick and (math.prod(w.covering) > 1 or grad.dtype.itemsize < GATHERED)


def max_pool_with_indices_backward(
    ndim: int,
    ctx: LoweringContext,
    grad: Tensor,
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    places: Tensor,
) -> Tensor:
    """Lowers the gradient of max pooling: each input element adds up the gradients of the windows that found it
    greatest. places: the positions that the forward found. Errors: NotImplementedError in a backward where a search
    is slow (`search_is_slow`)."""
    w = window(ndim, kernel, stride, padding, dilation, x.size, grad.size)
    # torch's kernel does not check positions. A backward has the positions that its forward found.
    if ctx.graph.kind == "backward" and search_is_slow(ctx, w, grad):
        raise NotImplementedError("a search for windows is slower than torch's loop over windows")
    wide = compute_dtype(grad.dtype)
    if any(d != 1 for d in w.dilation) or math.prod(w.covering) > MAX_UNROLLED:
        # An element may be covered by many windows: each window adds its gradient to the element it found.
        return put_in_planes(ctx, grad, places, x.size, w.ndim, "add")

    def tap(indices: Indices, step: Indices, ranges: Ranges) -> Node:
        outer: list[Expr] = []
        conditions: list[Node | None] = []
        # Whether the window covers the element need not be asked: only then can it have found it.
        parts = zip(indices[-w.ndim :], step, w.stride, w.padding, w.out, w.crowded, strict=True)
        for h, number, s, p, extent, crowded in parts:
            outer.append(number if crowded else floordiv(h + p, to_expr(s), ranges) - number)
            conditions.append(inside(outer[-1], extent, ranges))
        position, mask = [*indices[: -w.ndim], *outer], all_of(conditions)
        own = compare("eq", places.load(position, mask), _flat(indices[-w.ndim :], w.size))
        chosen = own if mask is None else build.call("bitwise_and", own, mask)
        return build.cast(masked_load(grad, position, chosen), wide)

    return sum_taps(ctx, x.size, w.covering, x, tap)


LOWERINGS = of_ranks((2, 3), "aten.max_pool{}d_with_indices.default", max_pool_with_indices) | of_ranks(
    (2, 3), "aten.max_pool{}d_with_indices_backward.default", max_pool_with_indices_backward
)
