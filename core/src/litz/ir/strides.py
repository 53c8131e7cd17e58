"""What strides say: whether two are the same, and in which order dimensions without gaps lie.

In: sizes and strides in elements, symbolic or not. Out: an order of dimensions, or None where there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .index import ONE, ZERO, Expr, Max


def dense_order(size: Sequence[Expr], stride: Sequence[Expr], hint: Callable[[Expr], int]) -> tuple[int, ...] | None:
    """Returns the dimensions, the outermost first, if `stride` lays out `size` without gaps and overlaps; else None.

    A dimension of one element may have any stride and comes first. `hint` orders symbolic strides; whether there is an
    order does not depend on the hints being right.
    """
    several = sorted((dim for dim in range(len(size)) if size[dim] != ONE), key=lambda dim: (-hint(stride[dim]), dim))
    step: Expr = ONE
    for dim in reversed(several):
        if not same_stride(stride[dim], step):
            return None
        step = step * size[dim]
    return (*(dim for dim in range(len(size)) if size[dim] == ONE), *several)


def same_stride(a: Expr, b: Expr) -> bool:
    """Returns whether two strides are known to be equal where the tensor has elements: torch uses max(1, extent)."""
    if a == b:
        return True
    if a.is_Integer and b.is_Integer:
        return False
    return bool((_of_elements(a) - _of_elements(b)).expand() == ZERO)


def _of_elements(stride: Expr) -> Expr:
    """max(1, n) as n."""
    return stride.replace(
        lambda part: isinstance(part, Max) and len(part.args) == 2 and ONE in part.args,
        lambda part: next(arg for arg in part.args if arg != ONE),
    )
