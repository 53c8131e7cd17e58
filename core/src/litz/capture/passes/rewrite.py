"""How a pass changes a Graph: it makes a `Plan`, and `rewrite` builds the new Graph in one sweep.

The old graph stays as it is. A plan says, for nodes of the old graph, which are replaced by an earlier node, which are
computed by another call, and which are dropped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch.fx.node import map_arg

from litz.capture import torch_api
from litz.capture.graph import Graph


@dataclass(frozen=True)
class Call:
    """A call that takes a node's place; its arguments are values and nodes of the old graph. The metadata stays."""

    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True)
class Plan:
    """Changes to a graph. `replace`: node to the earlier node that stands in for it. `emit`: node to what computes it
    from now on. `drop`: nodes without remaining users."""

    replace: Mapping[torch.fx.Node, torch.fx.Node] = field(default_factory=dict)
    emit: Mapping[torch.fx.Node, Call] = field(default_factory=dict)
    drop: frozenset[torch.fx.Node] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.replace or self.emit or self.drop)


def rewrite(graph: Graph, plan: Plan) -> Graph:
    """The graph with the plan's changes; the same object for an empty plan. Placeholders must not be in the plan."""
    if not plan:
        return graph
    fresh = torch.fx.Graph()
    new: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in graph.module.graph.nodes:
        if node in plan.replace:
            new[node] = new[plan.replace[node]]
        elif node in plan.drop:
            continue
        elif node in plan.emit:
            call = plan.emit[node]
            args = map_arg(call.args, new.__getitem__)
            kwargs = map_arg(dict(call.kwargs), new.__getitem__)
            copy = fresh.create_node("call_function", call.target, args, kwargs, name=node.name)
            copy.meta = dict(node.meta)
            new[node] = copy
        else:
            new[node] = fresh.node_copy(node, new.__getitem__)
    module = torch_api.make_graph_module(graph.module, fresh, type(graph.module).__name__)
    return dataclasses.replace(graph, module=module)


def tensor_of(node: Any) -> torch.Tensor | None:
    """The fake tensor that describes `node`'s single result, or None if it is not one tensor."""
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


def same_geometry(a: torch.fx.Node, b: torch.fx.Node, *, offset: bool = False) -> bool:
    """Whether two nodes have the same dtype, device, sizes and strides for all sizes that the guards allow, and are
    read off their memory alike (neither conjugate nor negative, or both).

    offset: the storage offset too, which matters when one is a view of the other.
    """
    left, right = tensor_of(a), tensor_of(b)
    return left is not None and right is not None and same_layout(left, right, offset=offset)


def same_layout(left: torch.Tensor, right: torch.Tensor, *, offset: bool = False) -> bool:
    """`same_geometry`, of the fake tensors."""
    if left.layout != torch.strided or right.layout != torch.strided:
        return False
    if left.dtype != right.dtype or left.device != right.device or left.dim() != right.dim():
        return False
    if left.is_neg() != right.is_neg() or left.is_conj() != right.is_conj():
        return False
    pairs: list[tuple[Any, Any]] = [
        *zip(left.shape, right.shape, strict=True),
        *zip(left.stride(), right.stride(), strict=True),
    ]
    if offset:
        pairs.append((left.storage_offset(), right.storage_offset()))
    return all(torch_api.same_statically(x, y) for x, y in pairs)


@dataclass(frozen=True)
class Escapes:
    """Where values leave a graph's functional part.

    outputs: nodes that are returned, or of which a view is. written: nodes that are the source or destination of a
    write, or of which a view is. direct: nodes that are returned themselves. strided: nodes into whose storage an
    as_strided looks, whose offset counts from the start of that.
    """

    outputs: frozenset[torch.fx.Node]
    written: frozenset[torch.fx.Node]
    direct: frozenset[torch.fx.Node]
    strided: frozenset[torch.fx.Node]


def find_escapes(graph: Graph) -> Escapes:
    """One backward sweep over the graph: who is returned or written, directly or through views."""
    direct = frozenset(graph.output_node.all_input_nodes)
    outputs, written = set(direct), set()
    strided: set[torch.fx.Node] = set()
    for node in reversed(graph.nodes):
        if torch_api.written_arguments(node):
            written.update(node.all_input_nodes)
        base = torch_api.aliased_argument(node) if node.op == "call_function" else None
        if base is not None:
            if node in outputs:
                outputs.add(base)
            if node in written:
                written.add(base)
            if node in strided or node.target is torch.ops.aten.as_strided.default:
                strided.add(base)
    return Escapes(frozenset(outputs), frozenset(written), direct, frozenset(strided))
