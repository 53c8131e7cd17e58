"""Operands as views: where an element of one lies in its buffer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import sympy

from litz.ir import Layout, Range
from litz.ir.index import ONE, ZERO, Expr, Ranges, flat_index, floordiv, mod


def position_in(view: Layout, own: Layout, ranges: Sequence[Range]) -> tuple[Expr, ...] | None:
    """Returns where in a buffer's dimensions the element of a view at the variables of `ranges` is; None where a
    dimension of the view is not made of whole dimensions of the buffer."""
    if view.offset != 0:
        return None
    extents = {r.var: r.size for r in ranges}
    free = [dim for dim, size in enumerate(own.size) if size != ONE]
    index: list[Expr] = [ZERO] * len(own.size)
    for size, stride, r in zip(view.size, view.stride, ranges, strict=True):
        inner, walked = ONE, stride
        while size != ONE and inner != size:
            dim = next((dim for dim in free if own.stride[dim] == walked), None)
            if dim is None:
                return None
            free.remove(dim)
            index[dim] = floordiv(r.var, inner, extents)
            inner, walked = sympy.expand(inner * own.size[dim]), sympy.expand(walked * own.size[dim])
            if inner != size:
                index[dim] = mod(index[dim], own.size[dim], extents)
    return None if free else tuple(index)


def position_through(view: Layout, own: Layout, index: Sequence[Expr], extents: Ranges) -> tuple[Expr, ...] | None:
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


__all__ = ["position_in", "position_through"]
