"""Where the windows of a max pool start: in numbers, and as a tensor in a graph that is already captured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from litz_passes.nodes import add_call

aten, prims = torch.ops.aten, torch.ops.prims

POOLS = {aten.max_pool2d_with_indices.default: 2, aten.max_pool3d_with_indices.default: 3}
"""Op: how many dimensions its window moves along."""


@dataclass(frozen=True)
class Starts:
    """The positions of the first elements of a pool's windows, which may lie before the input's: at window number (i,
    j, ...) `first + i * steps[0] + j * steps[1] + ...`. size: how many windows there are, along each dimension."""

    size: tuple[int, ...]
    first: int
    steps: tuple[int, ...]


def windows(
    ndim: int,
    found: Sequence[int],
    x: torch.Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    *_: Any,
) -> tuple[Starts, int]:
    """Returns where the windows of a max pool start, and what distances from there are below. found: the sizes of what
    the pool returns; the others are the op's arguments."""
    kernels, paddings, dilations = (_spread(ndim, each) for each in (kernel, padding, dilation))
    strides = _spread(ndim, stride) if stride else kernels
    rows = [prod(x.shape[x.ndim - ndim + dim + 1 :]) for dim in range(ndim)]  # from one element to the next
    first = -sum(p * row for p, row in zip(paddings, rows, strict=True))
    steps = tuple(s * row for s, row in zip(strides, rows, strict=True))
    last = sum(d * (k - 1) * row for d, k, row in zip(dilations, kernels, rows, strict=True))
    return Starts(tuple(found[-ndim:]), first, steps), last + 1


def _spread(ndim: int, values: Sequence[int]) -> tuple[int, ...]:
    """One number may stand for all dimensions."""
    return tuple(values) if len(values) == ndim else (values[0],) * ndim


def start_of_each(graph: torch.fx.Graph, starts: Starts, beside: torch.fx.Node) -> torch.fx.Node:
    """A tensor of 32-bit integers: where each window starts. beside: a tensor on the same device."""
    total: torch.fx.Node | None = None
    value = beside.meta["val"]
    for dim, (count, step) in enumerate(zip(starts.size, starts.steps, strict=True)):
        options = {"dtype": torch.int32, "device": value.device, "requires_grad": False}
        first = 0 if dim else starts.first
        made = add_call(graph, value, prims.iota.default, count, start=first, step=step, **options)
        made = add_call(graph, value, aten.view.default, made, [count] + [1] * (len(starts.size) - 1 - dim))
        total = made if total is None else add_call(graph, value, aten.add.Tensor, total, made)
    assert total is not None
    return total


__all__ = ["POOLS", "Starts", "start_of_each", "windows"]
