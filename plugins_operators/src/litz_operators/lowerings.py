"""The table of all lowerings of this dist."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from litz.lower import find_op

from . import (
    adaptive_pooling,
    associative_scan,
    average_pooling,
    elementwise,
    folding,
    joining,
    max_pooling,
    padding,
    random,
    resampling,
    sampling,
    scans,
    scatter,
    slices,
    unpooling,
)

MODULES = (
    adaptive_pooling,
    associative_scan,
    average_pooling,
    elementwise,
    folding,
    joining,
    max_pooling,
    padding,
    random,
    resampling,
    sampling,
    scans,
    scatter,
    slices,
    unpooling,
)


def own_lowerings() -> Mapping[Any, Callable[..., Any]]:
    """Returns the lowerings by op, of the ops that this version of torch has."""
    found = {find_op(name): function for module in MODULES for name, function in module.LOWERINGS.items()}
    return {op: function for op, function in found.items() if op is not None}
