"""How a pass changes a Graph: it makes a `Changes`, and `rewrite` builds the new Graph in one sweep.

The old graph stays as it is. Changes say, for nodes of the old graph, which are replaced by an earlier node, which are
computed by another call, and which are dropped.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch.fx.node import map_aggregate
from torch.utils._pytree import tree_leaves

from litz.capture import torch_api
from litz.capture.graph import Graph, constant_of
from litz.capture.torch_api import same_layout as same_layout


@dataclass(frozen=True)
class Call:
    """A call that takes a node's place; its arguments are values, Constants, nodes of the old graph and other Calls,
    which have a meta. meta: None for that of the node."""

    target: Callable[..., Any]  # the operator
    args: tuple[Any, ...]  # as the schema has them
    kwargs: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))  # by name
    meta: Mapping[str, Any] | None = None


@dataclass(frozen=True, eq=False)
class Constant:
    """A tensor that a pass adds to the graph. meta: the metadata of the tensor's node."""

    value: torch.Tensor  # the tensor
    meta: Mapping[str, Any]


@dataclass(frozen=True)
class Changes:
    """Changes to a graph. `replace`: node to the earlier node that stands in for it. `emit`: node to what computes or
    holds it from now on; an input among them stays in the signature, unused. `drop`: nodes without remaining users.
    Constants without users are dropped by any changes."""

    replace: Mapping[torch.fx.Node, torch.fx.Node] = field(default_factory=dict)
    emit: Mapping[torch.fx.Node, Call | Constant] = field(default_factory=dict)
    drop: frozenset[torch.fx.Node] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.replace or self.emit or self.drop)


def rewrite(graph: Graph, changes: Changes) -> Graph:
    """Returns the graph with the changes made; the same object if there are none."""
    if not changes:
        return graph
    fresh = torch.fx.Graph()
    attributes = {str(node.target): constant_of(graph, node) for node in graph.nodes if node.op == "get_attr"}
    names = (name for number in itertools.count() if (name := f"_constant{number}") not in attributes)
    new = {node: fresh.node_copy(node) for node in graph.placeholders}
    for node, copy in new.items():
        copy.name = node.name  # FX renames one that is called as something of Python's: torch.export's `input`

    def known(item: torch.fx.Node) -> torch.fx.Node:
        if item not in new:
            raise ValueError(
                f"in the place of {node.name} stands what takes {item.name}, which comes later, or is dropped"
            )
        return new[item]

    def made(item: Any) -> Any:
        if isinstance(item, torch.fx.Node):
            return known(item)
        if isinstance(item, Call):
            args, kwargs = map_aggregate((item.args, dict(item.kwargs)), made)
            name = node.name if item is call else None
            found = fresh.create_node("call_function", item.target, args, kwargs, name)
            found.meta = dict(node.meta if item.meta is None else item.meta)
            return found
        if not isinstance(item, Constant):
            return item
        name = next(names)
        attributes[name] = item.value
        found = fresh.create_node("get_attr", name, (), {})
        found.meta = dict(item.meta)
        return found

    for node in graph.nodes:
        call = changes.emit.get(node)
        if node in changes.replace:
            new[node] = known(changes.replace[node])
        elif node in changes.drop:
            continue
        elif call is not None:
            new[node] = made(call)
        elif node.op != "placeholder":
            new[node] = fresh.node_copy(node, known)
    for node in fresh.find_nodes(op="get_attr"):
        if not node.users:
            fresh.erase_node(node)
    module = torch_api.make_graph_module(attributes, fresh, type(graph.module).__name__)
    return dataclasses.replace(graph, module=module)


def call_at(node: torch.fx.Node, target: Callable[..., Any], *args: Any, **kwargs: Any) -> Call:
    """A call in a node's place that gives another tensor than the node did (another size, say): with the node's origin,
    and the fake result of `target` for the fake values of the arguments. Arguments are as in `Call`."""
    given: Any = map_aggregate(
        (args, kwargs), lambda item: item.meta["val"] if isinstance(item, torch.fx.Node | Call) else item
    )
    with torch_api.fake_mode_around(tree_leaves(given)):
        value = target(*given[0], **given[1])
    origin = {key: item for key, item in node.meta.items() if key not in ("tensor_meta", "unbacked_bindings")}
    return Call(target, args, kwargs, {**origin, "val": value})


def tensor_of(node: Any) -> torch.Tensor | None:
    """Returns the fake tensor that describes the node's result; None if the result is not one tensor."""
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


def same_geometry(a: torch.fx.Node, b: torch.fx.Node, *, offset: bool = False) -> bool:
    """Returns whether two nodes have the same dtype, device, sizes and strides for all sizes that the guards allow, and
    are read off their memory alike (neither conjugate nor negative, or both).

    offset: the storage offset too, which matters when one is a view of the other.
    """
    left, right = tensor_of(a), tensor_of(b)
    return left is not None and right is not None and same_layout(left, right, offset=offset)
