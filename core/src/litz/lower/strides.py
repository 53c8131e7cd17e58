"""Strides as eager has them.

In: sizes and strides, symbolic or not. Out: strides without gaps or overlaps, or None where they have some.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from litz.capture.torch_api import sympy_of
from litz.ir import Layout
from litz.ir.index import ONE, ZERO, Expr, Max


def layout_of(tensor: torch.Tensor) -> Layout:
    """Returns sizes and strides of a fake tensor, as expressions; strides in elements."""
    return Layout(tuple(map(sympy_of, tensor.shape)), tuple(map(sympy_of, tensor.stride())))


def dense_strides(size: Sequence[Expr], stride: Sequence[Expr], hint: Callable[[Expr], int]) -> tuple[Expr, ...] | None:
    """`stride`, if it lays out `size` without gaps and overlaps; else None. Empty tensors keep their strides.

    `hint` orders symbolic strides; the answer does not depend on it being right.
    """
    if any(extent == 0 for extent in size):
        return tuple(stride)
    order = sorted((dim for dim in range(len(size)) if size[dim] != 1), key=lambda dim: (hint(stride[dim]), -dim))
    step: Expr = ONE
    for dim in order:
        if not same_stride(stride[dim], step):
            return None
        step = step * size[dim]
    return tuple(stride)


def overlap(layout: Layout, hint: Callable[[Expr], int]) -> bool:
    """Whether several elements of a layout may lie in one place, for likely sizes."""
    reach = 1
    for step, extent in sorted(zip(map(hint, layout.stride), map(hint, layout.size), strict=True)):
        if extent > 1 and step < reach:
            return True
        reach += step * max(extent - 1, 0)
    return False


def same_stride(a: Expr, b: Expr) -> bool:
    """Whether two strides are known to be equal where the tensor has elements: torch makes them of max(1, extent)."""
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
