"""What a graph was before a plugin was handed it: an FX graph can be edited in place, and must not be."""

from __future__ import annotations

import operator
from typing import Protocol

import torch
from torch.fx.node import map_arg

from litz.capture.torch_api import metas_of, parts_of, values_of
from litz_plugins.unchanged import FieldsSnapshot


class HasModule(Protocol):
    """A noun around an FX graph."""

    @property
    def name(self) -> str:
        """The graph's name, for messages."""

    @property
    def module(self) -> torch.fx.GraphModule:
        """The module that holds the graph."""


class FXSnapshot:
    """The nodes of a graph in order, with all that is in each, by reference. Of `meta` the values alone count (the key
    `value`): what else lies there changes no result."""

    def __init__(self, graph: HasModule, value: str = "val") -> None:
        self._graph, self._fields, self._value = graph, FieldsSnapshot(graph), value
        self._take()

    def _take(self) -> None:
        self._fx = self._graph.module.graph
        self._nodes = list(self._fx.nodes)
        self._parts, self._values = list(parts_of(self._nodes)), list(values_of(self._nodes, self._value))
        self._metas = list(map(dict.copy, metas_of(self._nodes)))

    def change(self) -> str:
        """Returns what was changed since the snapshot, in words; '' for nothing."""
        if found := self._fields.change():
            return found
        name = f"{type(self._graph).__name__} {self._graph.name}"
        if self._graph.module.graph is not self._fx:
            return f"the module of {name}"
        nodes = list(self._fx.nodes)
        if len(nodes) != len(self._nodes):
            return f"the nodes of {name}"
        # In C, and without a list of what is there now: hundreds of tuples are not kept until the last is compared.
        same = nodes == self._nodes and all(map(operator.is_, values_of(nodes, self._value), self._values))
        if same and all(map(operator.eq, parts_of(nodes), self._parts)):
            return ""
        known = zip(self._nodes, self._parts, self._values, strict=True)
        for node, its, (was, parts, value) in zip(nodes, parts_of(nodes), known, strict=True):
            same = node is was and all(a is b or a == b for a, b in zip(its, parts, strict=True))
            if not same or node.meta.get(self._value) is not value:
                return f"the node {was.name} of {name}"
        return ""

    def restore(self) -> None:
        """Gives the graph's module a new FX graph with the nodes of the snapshot: nodes that were erased cannot be put
        back."""
        self._fields.restore()
        fresh, new = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
        for known, (op, name, target, args, kwargs), meta in zip(self._nodes, self._parts, self._metas, strict=True):
            made = tuple(map_arg(item, new.__getitem__) for item in (args, kwargs))
            new[known] = fresh.create_node(op, target, made[0], made[1], name)  # type: ignore[arg-type]
            new[known].meta = dict(meta)
        self._graph.module.graph = fresh
        self._take()  # whoever is handed the graph next is held against the new nodes
