"""Strides as eager has them.

In: sizes and strides, symbolic or not. Out: strides without gaps or overlaps, or None where they have some.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from litz.ir.index import ONE, ZERO, Expr


def dense_strides(size: Sequence[Expr], stride: Sequence[Expr], hint: Callable[[Expr], int]) -> tuple[Expr, ...] | None:
    """`stride`, if it lays out `size` without gaps and overlaps; else None. Empty tensors keep their strides.

    `hint` orders symbolic strides; the answer does not depend on it being right.
    """
    if any(extent == 0 for extent in size):
        return tuple(stride)
    order = sorted((dim for dim in range(len(size)) if size[dim] != 1), key=lambda dim: (hint(stride[dim]), -dim))
    step: Expr = ONE
    for dim in order:
        if stride[dim] != step and (stride[dim] - step).expand() != ZERO:
            return None
        step = step * size[dim]
    return tuple(stride)


def strides_of_order(size: Sequence[Expr], order: Sequence[int]) -> tuple[Expr, ...]:
    """Dense strides with the dimensions of `order` from the outermost (largest stride) to the innermost."""
    strides: list[Expr] = [ONE] * len(size)
    step: Expr = ONE
    for dim in reversed(order):
        strides[dim] = step
        step = step if size[dim] == 0 else step * size[dim]
    return tuple(strides)


def like_strides(size: Sequence[Expr], stride: Sequence[Expr], hint: Callable[[Expr], int]) -> tuple[Expr, ...]:
    """Dense strides in the order of `stride`: what empty_like with preserve_format gives."""
    found = dense_strides(size, stride, hint)
    if found is not None:
        return found
    order = sorted(range(len(size)), key=lambda dim: -hint(stride[dim]))
    return strides_of_order(size, order)
