"""The lowering of what puts tensors next to each other: cat."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch

from litz.ir import Node, build
from litz.ir.index import ZERO, Expr
from litz.lower import (
    Indices,
    LoweringContext,
    Tensor,
    View,
    at_least,
    canonical_dim,
    extents_of,
    less_than,
    lowering,
    meta_size,
)
from litz.lower.view import variables

aten = torch.ops.aten

MAX_JOINED = 8
"""The most inputs of a cat that one loop chooses from; more are copied by the library or written piece by piece."""


@lowering(moves=True)
def cat(ctx: LoweringContext, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Lowers cat: few tensors as one loop that chooses among them; many by the library where it is as good, else by a
    loop each. Errors: NotImplementedError for tensors on several devices."""
    size, dtype, device = meta_size(ctx), ctx.meta.dtype, ctx.meta.device
    dim = canonical_dim(dim, len(size))
    # As in eager, a tensor of shape (0,) joins anything.
    pieces = [x for x in tensors if not (x.ndim == 1 and x.size[0] == 0) and x.size[dim] != 0]
    if any(x.device != device for x in pieces):
        raise NotImplementedError("a cat across devices")
    starts = list(accumulate((x.size[dim] for x in pieces[:-1]), initial=ZERO))
    if not pieces or len(pieces) <= MAX_JOINED:
        return ctx.pointwise(size, dtype, device, lambda indices: _chosen(pieces, starts, dim, indices, size, dtype))
    if _library_joins(ctx, pieces):
        return ctx.extern(aten.cat.default, (tuple(pieces), dim), size=size, dtype=dtype, device=device)
    result = View.whole(ctx.new_buffer(size, dtype, device))
    for x, start in zip(pieces, starts, strict=True):
        index: list[Expr] = list(variables(len(size)))
        index[dim] = index[dim] + start
        ctx.write(result.reindex(x.size, index), x.load)
    return result


def _library_joins(ctx: LoweringContext, pieces: Sequence[Tensor]) -> bool:
    """Returns whether one library call is quicker than a loop per piece: it saves the launches for what lies in memory
    anyway. What loops of this program compute could be written in place, and is written and read once more by the call;
    but loops that write one buffer stay apart, and those that write buffers of one size each may become one kernel."""
    computed = [x for x in pieces if not isinstance(x, View) or x.ref() is None or ctx.is_computed(x.buffer.name)]
    again = sum(2 * ctx.hint(x.numel) * x.dtype.itemsize for x in computed)
    launches = len(pieces) - 1 - len({x.size for x in computed})
    target = ctx.target_of(pieces[0].device)
    return launches > 0 and again <= launches * target.launch_us * target.usual_bandwidth


def _chosen(
    pieces: Sequence[Tensor],
    starts: Sequence[Expr],
    dim: int,
    indices: Indices,
    size: Sequence[Expr],
    dtype: torch.dtype,
) -> Node:
    """The element of whichever piece lies at `indices`; each piece is read only where it lies."""
    ranges = extents_of(indices, size)
    result = build.const(0, dtype)
    for number in reversed(range(len(pieces))):
        x, start, last = pieces[number], starts[number], number == len(pieces) - 1
        # The pieces behind this one have been chosen between already: it only has to end where they begin.
        before_end = None if last else less_than(indices[dim], start + x.size[dim], ranges)
        mask = build.logical_and(at_least(indices[dim], start, ranges), before_end)
        position = list(indices)
        position[dim] = indices[dim] - start
        value = build.cast(x.load(position, mask), dtype)
        result = value if before_end is None else build.call("where", before_end, value, result)
    return result


LOWERINGS = {"aten.cat.default": cat}
