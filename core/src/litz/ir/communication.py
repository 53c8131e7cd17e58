"""Which Wait ends which Collective.

A Collective is under way from where it is started to the Waits on its results: until then it reads and writes its
tensors, whoever else names their memory. A Wait ends all that are under way on its argument's memory, as torch's does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .operation import Collective, Wait


@dataclass(frozen=True)
class Flights:
    """ended: position of a Wait -> the collectives whose results it waits for; a Wait for communication that started
    elsewhere is not in it. endless: collectives with a result that nobody waits for."""

    ended: Mapping[int, tuple[Collective, ...]]
    endless: tuple[Collective, ...]


def flights(operations: Iterable[Any], roots: Mapping[str, str]) -> Flights:
    """Returns which Wait ends which Collective among operations or steps. roots: as `storage_roots` returns them."""
    under_way: dict[str, list[Collective]] = {}
    ended: dict[int, tuple[Collective, ...]] = {}
    for position, operation in enumerate(operations):
        if isinstance(operation, Collective):
            for root in dict.fromkeys(roots.get(name, name) for name in operation.writes):
                under_way.setdefault(root, []).append(operation)
        elif isinstance(operation, Wait):
            found = (under_way.pop(roots.get(name, name), ()) for name in operation.reads)
            if started := tuple(one for each in found for one in each):
                ended[position] = started
    return Flights(ended, tuple(one for each in under_way.values() for one in each))
