"""Drop what nobody uses. Inputs stay, and so does everything with an effect: writes, collectives, asserts, random ops
(dropping one would change what the later ones draw) and higher-order ops."""

from __future__ import annotations

import torch

from litz.capture import torch_api
from litz.capture.graph import Graph
from litz.capture.passes.rewrite import Changes, rewrite
from litz_plugins.records import PassContext


def eliminate_dead_code(graph: Graph, context: PassContext | None = None) -> Graph:
    """Returns the graph without pure nodes whose results are not used; the same object if there are no such nodes."""
    dropped: set[torch.fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op in ("placeholder", "output") or not torch_api.is_pure(node):
            continue
        if all(user in dropped for user in node.users):
            dropped.add(node)
    return rewrite(graph, Changes(drop=frozenset(dropped)))
