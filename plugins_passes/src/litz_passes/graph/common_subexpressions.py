"""Compute once what is computed twice: two pure calls with the same op, arguments and result become one.

Arguments are compared with their types (1, 1.0 and True differ), and floats by their sign too (0.0 and -0.0 differ).
A write between two calls keeps them apart. Two outputs that were separate tensors stay separate.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from litz.capture import torch_api
from litz.capture.graph import Graph
from litz.capture.passes.rewrite import Changes, rewrite
from litz_passes.escapes import find_escapes
from litz_plugins.records import PassContext


def eliminate_common_subexpressions(graph: Graph, context: PassContext | None = None) -> Graph:
    """Returns the graph with repeated calls merged into the first of them; the same object if no call is merged."""
    escapes = find_escapes(graph)
    outputs, direct = set(escapes.outputs), set(escapes.direct)
    replace: dict[torch.fx.Node, torch.fx.Node] = {}
    seen: dict[Any, torch.fx.Node] = {}
    for node in graph.nodes:
        if torch_api.written_arguments(node):
            seen.clear()
            continue
        if not torch_api.is_pure(node) or node.op == "output" or node.meta.get("unbacked_bindings"):
            continue  # what finds out a size gives it a name of its own
        key = _key(node, replace)
        first = seen.setdefault(key, node) if key is not None else node
        if first is node:
            continue
        is_view = node.op == "call_function" and torch_api.aliased_argument(node) is not None
        # One tensor returned twice, or two fresh results in one storage, would be news to the caller.
        if (node in direct and first in direct) or (not is_view and node in outputs and first in outputs):
            continue
        replace[node] = first
        if node in outputs:
            outputs.add(first)
        if node in direct:
            direct.add(first)
    return rewrite(graph, Changes(replace=replace))


def _key(node: torch.fx.Node, replace: dict[torch.fx.Node, torch.fx.Node]) -> Any | None:
    """Returns what two equal calls have in common, hashable; None for an argument that cannot be compared."""
    if node.op == "get_attr":
        return ("get_attr", node.target)
    try:
        key = (
            node.target,
            tuple(_freeze(value, replace) for value in node.args),
            tuple((name, _freeze(value, replace)) for name, value in sorted(node.kwargs.items())),
        )
        hash(key)
    except TypeError:
        return None
    return key


def _freeze(value: Any, replace: dict[torch.fx.Node, torch.fx.Node]) -> Any:
    if isinstance(value, torch.fx.Node):
        return replace.get(value, value)
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, *(_freeze(item, replace) for item in value))
    if isinstance(value, dict):
        return ("dict", *((name, _freeze(item, replace)) for name, item in sorted(value.items())))
    if isinstance(value, slice):
        return ("slice", *(_freeze(item, replace) for item in (value.start, value.stop, value.step)))
    if isinstance(value, float):
        return ("float", "nan" if math.isnan(value) else value, math.copysign(1.0, value))
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return (type(value).__name__, torch_api.sympy_of(value))
    return (type(value).__name__, value)
