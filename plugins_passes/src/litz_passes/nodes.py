"""Facts about the nodes of a graph that passes of several stages ask for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy

from litz.capture import torch_api

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


def add_call(graph: torch.fx.Graph, beside: object, target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
    """Adds a call of an op to a graph, with its fake result, which the FakeTensorMode of `beside` makes."""
    made = graph.call_function(target, args, kwargs)
    values = [arg.meta["val"] if isinstance(arg, torch.fx.Node) else arg for arg in args]
    with torch_api.fake_mode_around([beside]):
        made.meta = {"val": target(*values, **kwargs)}
    return made


__all__ = ["AGAIN", "add_call", "needed_by", "policy_of"]
