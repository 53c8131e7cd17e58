"""Frozen weights: a compiled graph that was made for certain weights looks, on each call, whether they are still those.

In: the entry of a compiled graph, and what it was frozen for. Out: an entry that refuses other weights. A write is seen
by torch's version counter of the tensor, another tensor by its address; a write through `tensor.data` leaves neither
trace and is not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from litz.errors import FrozenWeightsError

from .compiled_graph import Entry


@dataclass(frozen=True)
class FrozenInput:
    """An input whose values are part of the compiled graph: its position, name, address and version."""

    position: int
    name: str
    address: int
    version: int


def frozen_input(position: int, name: str, tensor: torch.Tensor) -> FrozenInput:
    """What a tensor is now."""
    return FrozenInput(position, name, tensor.data_ptr(), _version(tensor))


def refusing(entry: Entry, graph: str, frozen: Sequence[FrozenInput]) -> Entry:
    """`entry`, which raises FrozenWeightsError where a frozen input is not what it was."""
    known = tuple((item.position, item.address, item.version) for item in frozen)

    def call(args: list[Any]) -> tuple[Any, ...]:
        for position, address, version in known:
            tensor = args[position]
            if tensor.data_ptr() != address or _version(tensor) != version:
                item = next(item for item in frozen if item.position == position)
                raise FrozenWeightsError(graph, item.name, replaced=tensor.data_ptr() != address)
        return entry(args)

    return call


def _version(tensor: torch.Tensor) -> int:
    """torch's count of in-place writes; -1 for a tensor made in inference mode, which has none."""
    return -1 if tensor.is_inference() else tensor._version
