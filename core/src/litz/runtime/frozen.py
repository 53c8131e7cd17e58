"""Frozen weights: a compiled graph that was made for certain weights looks, on each call, whether they are still those.

In: the entry of a compiled graph, and what it was frozen for. Out: an entry that refuses other weights. A write is seen
by torch's version counter of the tensor, another tensor by its address; a write through `tensor.data` leaves neither
trace and is not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from litz.errors import FrozenWeightsError

from .compiled_graph import Entry


def refusing(entry: Entry, graph: str, frozen: Sequence[tuple[int, str, torch.Tensor]]) -> Entry:
    """Returns `entry`, which raises FrozenWeightsError where an input is not what it is now. frozen: (position, name,
    value) of the inputs whose values are part of the compiled graph."""
    known = tuple((position, name, value.data_ptr(), _version(value)) for position, name, value in frozen)

    def call(args: list[Any]) -> tuple[Any, ...]:
        for position, name, address, version in known:
            tensor = args[position]
            if tensor.data_ptr() != address or _version(tensor) != version:
                raise FrozenWeightsError(graph, name, replaced=tensor.data_ptr() != address)
        return entry(args)

    return call


def _version(tensor: torch.Tensor) -> int:
    """Returns torch's count of in-place writes to a tensor; -1 for a tensor made in inference mode, which has no
    count."""
    return -1 if tensor.is_inference() else tensor._version
