"""Operands as views: where an element of one lies in its buffer."""

from __future__ import annotations

from collections.abc import Sequence

import sympy

from litz.ir import Layout, Range
from litz.ir.index import ONE, ZERO, Expr, floordiv, mod


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
