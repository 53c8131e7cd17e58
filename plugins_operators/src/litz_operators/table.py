"""Lowerings of ops that differ in the number of dimensions that they work on, as rows of a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, update_wrapper
from typing import Any

Lowering = Callable[..., Any]


def of_ranks(ranks: Sequence[int], op: str, function: Lowering, **given: Any) -> dict[str, Lowering]:
    """Returns one function as the lowering of an op for each rank, by the op's name ("aten.avg_pool{}d.default"). The
    rank is the function's first argument. given: further arguments by keyword."""
    return {op.format(ndim): update_wrapper(partial(function, ndim, **given), function) for ndim in ranks}
