"""What decides what an FX node computes, taken from many nodes at once."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any

import torch

# The properties `args` and `kwargs` give these two, each in a Python call.
_PARTS = operator.attrgetter("op", "name", "target", "_args", "_kwargs")
_META = operator.attrgetter("meta")


def parts_of(nodes: Iterable[torch.fx.Node]) -> Iterator[tuple[Any, ...]]:
    """Gives of each node: op, name, target, args and kwargs."""
    return map(_PARTS, nodes)


def metas_of(nodes: Iterable[torch.fx.Node]) -> Iterator[dict[str, Any]]:
    """Gives of each node its `meta`."""
    return map(_META, nodes)


def values_of(nodes: Iterable[torch.fx.Node]) -> Iterator[Any]:
    """Gives of each node the fake result of its trace (`meta["val"]`), None where there is none."""
    return map(dict.get, map(_META, nodes), repeat("val"))
