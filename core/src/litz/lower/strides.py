"""Strides as eager has them.

In: sizes and strides, symbolic or not. Out: layouts, and whether elements of one share a place.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from litz.capture.torch_api import sympy_of
from litz.ir import Layout
from litz.ir.index import Expr


def layout_of(tensor: torch.Tensor) -> Layout:
    """Returns sizes and strides of a fake tensor, as expressions; strides in elements."""
    return Layout(tuple(map(sympy_of, tensor.shape)), tuple(map(sympy_of, tensor.stride())))


def overlap(layout: Layout, hint: Callable[[Expr], int]) -> bool:
    """Returns whether several elements of a layout may lie in one place, for likely sizes."""
    reach = 1
    for step, extent in sorted(zip(map(hint, layout.stride), map(hint, layout.size), strict=True)):
        if extent > 1 and step < reach:
            return True
        reach += step * max(extent - 1, 0)
    return False
