"""Ops that graph passes put into a Graph, taken apart as capture takes apart those that it traces.

In: a Graph after its passes, and the one before them: what capture has left whole stays whole. Out: a Graph.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx.node import base_types, map_aggregate, map_arg
from torch.utils._pytree import tree_leaves, tree_map

from litz.capture import torch_api
from litz.capture.graph import Graph
from litz.capture.passes.rewrite import same_layout


def added_ops(before: Graph, after: Graph) -> list[torch.fx.Node]:
    """Returns the calls of ops in `after`, the graph after graph passes, that are not in `before`."""
    if after is before:
        return []
    captured = {(node.name, node.target) for node in before.nodes}
    calls = (node for node in after.nodes if isinstance(node.target, OpOverload))
    return [node for node in calls if (node.name, node.target) not in captured]


def decompose(
    graph: Graph,
    nodes: Iterable[torch.fx.Node],
    table: Mapping[OpOverload, Callable[..., Any]],
    whole: Container[Any] = frozenset(),
) -> Graph:
    """The graph with some of its nodes in pieces; the same graph if they all stay.

    table: op to the rule that takes it apart. whole: ops that stay, of those that torch itself makes of others.
    """
    apart = (n for n in nodes if n.target in table or (n.target not in whole and torch_api.is_composite(n.target)))
    pieces: dict[torch.fx.Node, torch.fx.GraphModule] = {}
    known: dict[Any, list[tuple[list[Any], torch.fx.GraphModule | None]]] = {}
    for node in apart:
        values = tree_leaves([given.meta.get("val") for given in (*node.all_input_nodes, node)])
        alike = known.setdefault((node.target, _arguments(node), len(values)), [])
        found = [module for others, module in alike if all(map(_same_value, values, others))]
        module = found[0] if found else _pieces(node, table)
        if module is not None:
            pieces[node] = module
        if not found and (module is None or not any(map(_finds_out, module.graph.nodes))):
            alike.append((values, module))
    return _spliced(graph, pieces) if pieces else graph


def _arguments(node: torch.fx.Node) -> str:
    """The arguments of a call as text, each input node as where it stands among the inputs, in brackets."""
    places = {given: f"<{place}>" for place, given in enumerate(node.all_input_nodes)}

    def plain(item: Any) -> Any:
        exact = item is None or (isinstance(item, base_types) and not isinstance(item, torch.Tensor))
        return (places[item],) if isinstance(item, torch.fx.Node) else [repr(item) if exact else id(item)]

    return str(map_aggregate((node.args, dict(node.kwargs)), plain))


def _same_value(left: Any, right: Any) -> bool:
    """Returns whether a trace sees the same in two fake values; not in tensors of known content."""
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        known = any(getattr(each, "constant", each) is not None for each in (left, right))
        return not known and left.requires_grad == right.requires_grad and same_layout(left, right, offset=True)
    symbolic = type(left) is type(right) and isinstance(left, (torch.SymInt, torch.SymFloat, torch.SymBool))
    return bool(torch_api.sympy_of(left) == torch_api.sympy_of(right)) if symbolic else left is right


def _finds_out(piece: torch.fx.Node) -> bool:
    """Returns whether a call gives a name to what only data decide, which each call has to have for itself."""
    return torch_api.depends_on_data(piece.target) and torch_api.hangs_on_data(piece.meta.get("val"))


def _pieces(node: torch.fx.Node, table: Mapping[OpOverload, Callable[..., Any]]) -> torch.fx.GraphModule | None:
    """Returns the graph that computes a node from its input nodes in order; None where the op stays: its rule says so,
    writes or has constants of its own, or gives what the graph has no tensor of that type and layout for."""
    inputs, is_view = node.all_input_nodes, torch_api.aliased_argument(node) is not None
    if any("val" not in given.meta for given in inputs):
        return None

    def run(*values: Any) -> Any:
        def own(result: Any) -> Any:
            return result.clone() if not is_view and any(result is value for value in values) else result

        args, kwargs = map_arg((node.args, dict(node.kwargs)), dict(zip(inputs, values, strict=True)).__getitem__)
        return tree_map(own, node.target(*args, **kwargs))  # type: ignore[operator]

    def stays(piece: torch.fx.Node) -> bool:
        return piece.target is node.target or piece.op == "get_attr" or bool(torch_api.written_arguments(piece))

    expected = tree_leaves(node.meta.get("val"))
    module = torch_api.trace(run, [given.meta["val"] for given in inputs], expected[0] if expected else None, table)
    if module is None or any(map(stays, module.graph.nodes)):
        return None
    results = tree_leaves(map_arg(module.graph.output_node().args[0], lambda result: result.meta["val"]))
    same = len(results) == len(expected) and all(map(_same, results, expected))
    return module if same else None


def _same(left: Any, right: Any) -> bool:
    tensors = isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor)
    return same_layout(left, right) if tensors else type(left) is type(right)


def _spliced(graph: Graph, pieces: Mapping[torch.fx.Node, torch.fx.GraphModule]) -> Graph:
    fresh = torch.fx.Graph()
    new: dict[Any, Any] = {}
    for node in graph.nodes:
        if node in pieces:
            new[node] = _splice(pieces[node], node, [new[given] for given in node.all_input_nodes], fresh)
        elif node.target is operator.getitem and isinstance(new[node.args[0]], (tuple, list)):
            new[node] = new[node.args[0]][node.args[1]]
        else:
            new[node] = fresh.node_copy(node, new.__getitem__)
    module = torch_api.make_graph_module(graph.module, fresh, type(graph.module).__name__)
    return replace(graph, module=module)


def _splice(
    module: torch.fx.GraphModule, node: torch.fx.Node, inputs: list[torch.fx.Node], fresh: torch.fx.Graph
) -> Any:
    """Copies the pieces of a node into `fresh`; what stands for the node's value."""
    new = dict(zip(module.graph.find_nodes(op="placeholder"), inputs, strict=True))
    origin = {key: value for key, value in node.meta.items() if key not in ("val", "tensor_meta", "unbacked_bindings")}
    for piece in module.graph.nodes:
        if piece.op == "call_function":
            new[piece] = fresh.node_copy(piece, new.__getitem__)
            new[piece].meta = {**piece.meta, **origin}
    return map_arg(module.graph.output_node().args[0], new.__getitem__)
