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
    """Returns an iterator over (op, name, target, args, kwargs) of each node."""
    return map(_PARTS, nodes)


def metas_of(nodes: Iterable[torch.fx.Node]) -> Iterator[dict[str, Any]]:
    """Returns an iterator over the `meta` of each node."""
    return map(_META, nodes)


def values_of(nodes: Iterable[torch.fx.Node], key: str = "val") -> Iterator[Any]:
    """Returns an iterator over the fake result of each node (`meta[key]`), None for a node without one."""
    return map(dict.get, map(_META, nodes), repeat(key))
