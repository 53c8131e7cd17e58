"""Strides as eager has them.

In: sizes and strides, symbolic or not. Out: strides without gaps or overlaps, or None where they have some.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from litz.capture.torch_api import sympy_of
from litz.ir import Layout
from litz.ir.index import Expr
from litz.ir.strides import dense_order


def layout_of(tensor: torch.Tensor) -> Layout:
    """Returns sizes and strides of a fake tensor, as expressions; strides in elements."""
    return Layout(tuple(map(sympy_of, tensor.shape)), tuple(map(sympy_of, tensor.stride())))


def dense_strides(size: Sequence[Expr], stride: Sequence[Expr], hint: Callable[[Expr], int]) -> tuple[Expr, ...] | None:
    """`stride`, if it lays out `size` without gaps and overlaps; else None. Empty tensors keep their strides.

    `hint` orders symbolic strides; the answer does not depend on it being right.
    """
    empty = any(extent == 0 for extent in size)
    return tuple(stride) if empty or dense_order(size, stride, hint) is not None else None


def overlap(layout: Layout, hint: Callable[[Expr], int]) -> bool:
    """Returns whether several elements of a layout may lie in one place, for likely sizes."""
    reach = 1
    for step, extent in sorted(zip(map(hint, layout.stride), map(hint, layout.size), strict=True)):
        if extent > 1 and step < reach:
            return True
        reach += step * max(extent - 1, 0)
    return False
