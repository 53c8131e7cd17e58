"""What a Graph was before a plugin was handed it: an FX graph can be edited in place, and must not be."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import torch
from torch.fx.node import map_arg

from litz_plugins.unchanged import RecordSnapshot

if TYPE_CHECKING:
    from litz.capture.graph import Graph


class GraphSnapshot:
    """The nodes of a graph in order, with all that is in each, by reference. Of `meta` the values alone count ("val"):
    what else lies there changes no result."""

    def __init__(self, graph: Graph) -> None:
        self._graph, self._fields = graph, RecordSnapshot(graph, 0)
        self._fx = graph.module.graph
        self._nodes = list(self._fx.nodes)
        self._parts = list(map(_PARTS, self._nodes))
        self._metas = [dict(node.meta) for node in self._nodes]
        self._values = [meta.get("val") for meta in self._metas]

    def change(self) -> str:
        """Returns what was changed since the snapshot, in words; '' for nothing."""
        if found := self._fields.change():
            return found
        name = f"Graph {self._graph.name}"
        if self._graph.module.graph is not self._fx:
            return f"the module of {name}"
        nodes = list(self._fx.nodes)
        if len(nodes) != len(self._nodes):
            return f"the nodes of {name}"
        same_values = all(map(operator.is_, [node.meta.get("val") for node in nodes], self._values))
        if nodes == self._nodes and same_values and list(map(_PARTS, nodes)) == self._parts:
            return ""
        for node, known, parts, value in zip(nodes, self._nodes, self._parts, self._values, strict=True):
            same = node is known and all(a is b or a == b for a, b in zip(_PARTS(node), parts, strict=True))
            if not same or node.meta.get("val") is not value:
                return f"the node {known.name} of {name}"
        return ""

    def restore(self) -> None:
        """The module gets an FX graph anew: nodes that were erased cannot be put back."""
        self._fields.restore()
        fresh, new = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
        for known, (op, name, target, args, kwargs), meta in zip(self._nodes, self._parts, self._metas, strict=True):
            made = tuple(map_arg(item, new.__getitem__) for item in (args, kwargs))
            new[known] = fresh.create_node(op, target, made[0], made[1], name)  # type: ignore[arg-type]
            new[known].meta = dict(meta)
        self._graph.module.graph = fresh


_PARTS = operator.attrgetter("op", "name", "target", "args", "kwargs")
