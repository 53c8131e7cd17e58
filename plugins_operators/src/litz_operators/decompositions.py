"""The table of decompositions: distances, and in place of core's what a lowering of this dist does better whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch._ops import OpOverload

from litz.capture.decompositions import decompositions
from litz.lower import find_op

from .distances import cdist_forward, masked_scatter, pdist_forward
from .sources import blocks

NEAREST = tuple(
    f"aten.{name}{ndim}d.default" for name in ("upsample_nearest", "_upsample_nearest_exact") for ndim in (1, 2, 3)
)
"""Ops that resample by the nearest neighbour."""


def own_decompositions() -> Mapping[OpOverload, Callable[..., Any]]:
    """Returns the decompositions by op."""
    core = decompositions()
    ops = (op for op in map(find_op, NEAREST) if isinstance(op, OpOverload))
    return {
        torch.ops.aten._cdist_forward.default: cdist_forward,
        torch.ops.aten._pdist_forward.default: pdist_forward,
        torch.ops.aten.masked_scatter.default: masked_scatter,
        **{op: partial(_unless_a_multiple, op, core[op]) for op in ops},
    }


def _unless_a_multiple(
    op: OpOverload,
    rule: Callable[..., Any],
    x: torch.Tensor,
    output_size: Sequence[Any],
    *scales: float | None,
) -> Any:
    """Leaves the op whole where the output is an exact multiple of the input, as such an output is a view; else goes
    by core's rule."""
    sizes = x.shape[-len(output_size) :]
    if all(isinstance(size, int) for size in (*sizes, *output_size)):
        if blocks(sizes, output_size, scales, "exact" in op.name()) is not None:
            return NotImplemented
    return rule(x, output_size, *scales)
