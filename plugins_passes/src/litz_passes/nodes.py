"""Facts about the nodes of a graph that passes of several stages ask for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy

AGAIN = frozenset({CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE})
"""What a region of torch.utils.checkpoint says of a node that the backward computes again."""


def policy_of(node: torch.fx.Node) -> CheckpointPolicy | None:
    """Returns what a region of torch.utils.checkpoint says of a node; None outside of such regions."""
    found = node.meta.get("recompute")
    return found if isinstance(found, CheckpointPolicy) else None


def needed_by(items: Iterable[Any]) -> set[torch.fx.Node]:
    """Returns the nodes that these need, directly or through other nodes, and themselves; what is no node is passed
    over."""
    found = set[torch.fx.Node]()
    queue = [item for item in items if isinstance(item, torch.fx.Node)]
    while queue:
        node = queue.pop()
        if node not in found:
            found.add(node)
            queue += node.all_input_nodes
    return found


__all__ = ["AGAIN", "needed_by", "policy_of"]
