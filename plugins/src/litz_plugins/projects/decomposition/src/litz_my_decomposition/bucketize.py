"""bucketize in simpler operators. In: the operator's arguments, as fake tensors. Out: its result, or NotImplemented."""

from __future__ import annotations

import torch

MOST = 64
"""Boundaries: with more of them the library's binary search makes fewer comparisons than a count does."""


def bucketize(x, boundaries, *, out_int32=False, right=False):
    """How many boundaries are less than x (with `right`: or equal to x), for each element of x.

    x: any size. boundaries: [n], ascending. Returns int64, or int32 with `out_int32`, of the size of x.
    """
    if not isinstance(boundaries.shape[0], int) or boundaries.shape[0] > MOST or x.dtype != boundaries.dtype:
        return NotImplemented  # not this case: the operator stays a library call
    below = boundaries > x.unsqueeze(-1) if right else boundaries >= x.unsqueeze(-1)
    # A NaN is in no order, and eager puts it behind all boundaries: so the others are counted that x is not below.
    count = below.logical_not().sum(-1, dtype=torch.int32 if out_int32 else torch.int64)
    return count.contiguous()
