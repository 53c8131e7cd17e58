"""Rules that make pairwise distances and masked writes of smaller ops. In and out: what the ATen op takes and gives.

NotImplemented from a rule leaves the op to the library.
"""

from __future__ import annotations

from typing import Any

import torch

from litz.capture.torch_api import known

MATRIX_PRODUCT_FROM = 25
"""Rows from which eager computes euclidean distances by a matrix product, which is work for the library
(torch.cdist's documentation: `compute_mode`)."""


def cdist_forward(x: torch.Tensor, y: torch.Tensor, p: float, compute_mode: int | None) -> Any:
    """Returns the `[*batch, n, m]` distances (p-norms) between the rows of x, `[*batch, n, d]`, and of y, `[*batch, m,
    d]`; NotImplemented where eager computes Euclidean distances by a matrix product."""
    few = all(known(t.shape[-2] <= MATRIX_PRODUCT_FROM) for t in (x, y))
    by_product = compute_mode == 1 or (compute_mode in (None, 0) and not few)
    if p == 2 and by_product:
        return NotImplemented
    difference = x.unsqueeze(-2) - y.unsqueeze(-3)
    if p == float("inf"):
        difference = torch.where(difference.isnan(), 0, difference)  # eager's maximum begins at 0 and passes over NaN
    return _norm(difference, p)


def pdist_forward(x: torch.Tensor, p: float = 2.0) -> torch.Tensor:
    """Returns the `[n * (n - 1) / 2]` distances (p-norms) between the rows of x, `[n, d]`, in the order of the upper
    triangle."""
    first, second = torch.triu_indices(x.shape[0], x.shape[0], 1, device=x.device).unbind(0)
    return _norm(x[first] - x[second], p)


def _norm(difference: torch.Tensor, p: float) -> torch.Tensor:
    """The p-norm of the last dimension; how many elements differ for p = 0, NaN counted as each
    device counts it."""
    if p == 0:
        differs = (difference != 0).to(difference.dtype)
        if difference.device.type == "cpu":
            differs = torch.where(difference.isnan(), difference, differs)  # as eager's kernel there has it
        return differs.sum(-1)
    size = difference.abs()
    if p == float("inf"):
        return size.amax(-1) if difference.shape[-1] else size.sum(-1)
    if p == 1:
        return size.sum(-1)
    if p == 2:
        return difference.square().sum(-1).sqrt()
    return size.pow(p).sum(-1).pow(1 / p)


def masked_scatter(x: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> Any:
    """Returns x where the mask is False, and elsewhere the elements of `source`, in order; contiguous, however the
    operands lie. Complex numbers are left to the op: litz's kernels do not read them, so each piece would be a library
    call, and one of them would report an index out of range where the op says that `source` has too few elements."""
    if x.dtype.is_complex:
        return NotImplemented
    x, mask = torch.broadcast_tensors(x, mask)
    source = source.reshape(-1)
    if not known(source.shape[0] > 0):
        source = torch.cat([source, source.new_zeros(1)])  # there is something to read where the mask is False
    position = mask.reshape(-1).cumsum(0) - 1
    # Before the first True, position is -1: any element will do.
    taken = source[position.clamp(min=0)].reshape(x.shape)
    return torch.where(mask, taken, x).contiguous()
