"""Products and sums with one order of additions for each result. In: a call's arguments. Out: the call in pieces.

A library chooses its kernel, and litz a way to reduce, by all sizes, and with the kernel the order in which a result's
terms are added. Here that order depends on the number of terms alone:

- A product is a loop over rows, columns and, innermost but for the columns, terms. Columns are the lanes of vectors, so
  each result adds its terms one after the other. Where a matrix lies along the terms it is copied first.
- A sum over outer dimensions has the last one as lanes, likewise. Any other sum has `LANES` partial sums, of every
  `LANES`-th term, which are the lanes. The partial sums are added up by halves.
- More than `BLOCK` terms are summed in blocks of so many, and the blocks' sums one after the other. So zeros behind the
  terms, as masked keys of attention make, change nothing, however many there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

aten, prims = torch.ops.aten, torch.ops.prims

LANES = 16
"""Partial sums: a cache line of float32."""
BLOCK = 1024
"""Terms in a block: as many as litz's loops add up without partial sums of their own."""
FEW = 8
"""Fewer columns are no lanes: their products are summed as other sums are."""


# ------------------------------------------------------------------------------------------------------------- sums


def computed_in(dtype: torch.dtype) -> torch.dtype:
    """Returns the type in which values are computed."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _blocks(x: Tensor, dim: int, size: int) -> Tensor:
    """Returns x with dimension `dim` (from the end) as blocks of `size`, with zeros behind its end."""
    extent = x.shape[dim]
    missing = -extent % size
    if not isinstance(missing, int) or missing:
        x = aten.constant_pad_nd(x, [0, 0] * (-dim - 1) + [0, missing])
    return aten.view(x, [*x.shape[: x.dim() + dim], (extent + missing) // size, size, *x.shape[x.dim() + dim + 1 :]])


def _one_block(terms: Any) -> bool:
    return isinstance(terms, int) and terms <= BLOCK


def ordered_sum(x: Tensor) -> Tensor:
    """Returns the sums of x, in float32 or float64, over its last dimension, each in the order of this module."""
    lanes = _blocks(x, -1, LANES)
    parts = lanes if _one_block(lanes.shape[-2]) else _blocks(lanes, -2, BLOCK)
    while parts.dim() > x.dim():
        parts = prims.sum(parts, [parts.dim() - 2])
    width = LANES
    while width > 1:  # written out, as a loop over a few values would have lanes of the compiler's own
        width //= 2
        parts = parts[..., :width] + parts[..., width:]
    return aten.squeeze(parts, [-1])


def _has_lanes(x: Tensor) -> bool:
    """Returns whether the last dimension is long enough for lanes, whatever the other sizes are, and however it lies: a
    batch of one lies otherwise than others do."""
    return isinstance(x.shape[-1], int) and x.shape[-1] >= FEW


def _lies_in_order(x: Tensor, count: int) -> bool:
    """Returns whether the last `count` dimensions lie one after the other."""
    expected: Any = 1
    for size, stride in list(zip(x.shape, x.stride(), strict=True))[::-1][:count]:
        if stride != expected and size != 1:
            return False
        expected = expected * size
    return True


def _sum(x: Tensor, dims: Sequence[int] | None = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    made = dtype or x.dtype
    if not x.is_floating_point() or not made.is_floating_point or x.dim() == 0 or x.numel() == 0:
        return NotImplemented
    reduced = sorted(dim % x.dim() for dim in dims) if dims else list(range(x.dim()))
    rest = [dim for dim in range(x.dim()) if dim not in reduced]
    if rest and rest[-1] == x.dim() - 1 and _has_lanes(x):
        x = x if x.stride(-1) == 1 else aten.transpose_copy(x, -1, -1)
        total = prims.sum(x.to(computed_in(made)), reduced)
    else:
        moved = aten.permute(x, [*rest, *reduced])
        moved = moved if _lies_in_order(moved, len(reduced)) else aten.transpose_copy(moved, -1, -1)
        sizes = [*(x.shape[dim] for dim in rest), math.prod(x.shape[dim] for dim in reduced)]
        total = ordered_sum(aten.reshape(moved.to(computed_in(made)), sizes))
    shape = [1 if dim in reduced else x.shape[dim] for dim in range(x.dim())] if keepdim else total.shape
    return aten.view(total, list(shape)).to(made)


def _mean(x: Tensor, dims: Sequence[int] | None = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    made = dtype or x.dtype
    total = _sum(x, dims, keepdim, dtype=computed_in(made))
    if total is NotImplemented:
        return total
    return (total / math.prod(x.shape[dim] for dim in dims or range(x.dim()))).to(made)


def _var_mean(
    x: Tensor, dims: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> Any:
    wide, count = x.to(computed_in(x.dtype)), math.prod(x.shape[dim] for dim in dims or range(x.dim()))
    mean = _mean(wide, dims, True)
    if mean is NotImplemented:
        return mean
    least = max(count - (1 if correction is None else correction), 0)
    variance = _sum((wide - mean) * (wide - mean), dims, keepdim) / least
    mean = mean if keepdim else aten.squeeze(mean, list(dims or range(x.dim())))
    return variance.to(x.dtype), mean.to(x.dtype)


def _var(*args: Any, **kwargs: Any) -> Any:
    made = _var_mean(*args, **kwargs)
    return made if made is NotImplemented else made[0]


def _std_mean(*args: Any, **kwargs: Any) -> Any:
    made = _var_mean(*args, **kwargs)
    return made if made is NotImplemented else (torch.sqrt(made[0]), made[1])


# --------------------------------------------------------------------------------------------------------- products


def product(a: Tensor, b: Tensor) -> Tensor:
    """Returns a @ b of (..., rows, terms) and (..., terms, columns), in float32 or float64, in the order of this
    module."""
    wide = computed_in(a.dtype)
    if isinstance(b.shape[-1], int) and b.shape[-1] < FEW:
        a = a if _lies_in_order(a, 1) else aten.transpose_copy(a, -1, -1)
        return ordered_sum(a.to(wide).unsqueeze(-2) * b.to(wide).mT.unsqueeze(-3))
    if b.stride(-1) != 1:
        b = aten.transpose_copy(b.mT, -2, -1)
    if _one_block(b.shape[-2]):
        return prims.sum(a.to(wide).unsqueeze(-1) * b.to(wide).unsqueeze(-3), [a.dim() - 1])
    left, right = _blocks(a, -1, BLOCK).to(wide), _blocks(b, -2, BLOCK).to(wide)
    # (..., rows, blocks, terms, 1) and (..., 1, blocks, terms, columns)
    parts = prims.sum(left.unsqueeze(-1) * right.unsqueeze(-4), [left.dim() - 1])
    return prims.sum(parts, [parts.dim() - 2])


def _product(a: Tensor, b: Tensor) -> Any:
    if not a.is_floating_point() or 0 in (*a.shape, *b.shape):
        return NotImplemented
    return product(a, b).to(a.dtype)


def _added(given: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    if not a.is_floating_point() or 0 in (*a.shape, *b.shape):
        return NotImplemented
    made = product(a, b)
    made = made if alpha == 1 else made * alpha
    if beta != 0:
        wide = given.to(made.dtype)
        made = made + (wide if beta == 1 else wide * beta)
    return made.to(a.dtype)


def laid_as(x: Tensor, like: Tensor) -> Tensor:
    """Returns x with the strides of `like`, which is dense."""
    order = sorted(range(x.dim()), key=lambda dim: (like.stride()[dim], -dim), reverse=True)
    there = aten.clone(aten.permute(x, order), memory_format=torch.contiguous_format)
    return aten.permute(there, [order.index(dim) for dim in range(x.dim())])


RULES: Mapping[Any, Callable[..., Any]] = {
    aten.mm.default: _product,
    aten.bmm.default: _product,
    aten.addmm.default: _added,
    aten.baddbmm.default: _added,
    aten.sum.dim_IntList: _sum,
    aten.mean.dim: _mean,
    aten.mean.default: _mean,
    aten.var.correction: _var,
    aten.var_mean.correction: _var_mean,
    aten.std_mean.correction: _std_mean,
}
"""Ops and how each is written with a fixed order."""
