"""Literals of the model's that go to a device, put there once.

`torch.tensor([0.485, 0.456, 0.406]).to(x.device)` makes a CPU tensor and copies it, from memory that is not pinned, in
every call. In: a Graph. Out: a Graph that holds the copy. A literal is a constant behind `lift_fresh`, which nobody
else has; what is returned or written stays a fresh copy.
"""

from __future__ import annotations

from typing import Any

import torch

from litz.capture import torch_api
from litz.capture.graph import Graph
from litz.capture.passes.constants import CONVERSIONS, VIEWS
from litz.capture.passes.freezing import constants
from litz.capture.passes.rewrite import Changes, Constant, find_escapes, rewrite, tensor_of
from litz_plugins.records import PassContext

aten, prims = torch.ops.aten, torch.ops.prims

_LIFTS = frozenset({aten.lift_fresh_copy.default, aten.lift_fresh.default})
_MOVES = frozenset({aten._to_copy.default, prims.device_put.default})

MOST_BYTES = 1 << 16
"""The most bytes of a literal that is moved ahead: a larger one would occupy the device as long as the code lives."""


def place_constants(graph: Graph, context: PassContext | None = None) -> Graph:
    """The graph with a constant on the device for each literal that is moved there; the same graph if there is none, or
    if this machine lacks the device."""
    values = _literals(graph)
    if not values:
        return graph
    escapes = find_escapes(graph)
    placed: dict[torch.fx.Node, Constant] = {}
    for node in graph.nodes:
        if not _is_move(node) or node.args[0] not in values:
            continue
        if node in escapes.outputs or node in escapes.written or node in escapes.strided:
            continue
        value = _moved(node, values[node.args[0]])
        if value is not None:
            placed[node] = Constant(value, node.meta)
    if placed and context is not None:
        context.record(
            graph.name, f"{len(placed)} literals put on their device", "their values are the same in every call"
        )
    return rewrite(graph, Changes(emit=placed))


def _literals(graph: Graph) -> dict[Any, torch.Tensor]:
    """The values of small literals, and of views and conversions of them, on the CPU."""
    held, values = constants(graph), dict[Any, torch.Tensor]()
    with torch_api.real_mode():
        for node in graph.nodes if held else ():
            tensor = tensor_of(node)
            if node.op != "call_function" or tensor is None or tensor.device.type != "cpu":
                continue
            source: Any = node.args[0] if node.args else None
            if node.target in _LIFTS and source in held and held[source].nbytes <= MOST_BYTES:
                values[node] = held[source].detach().clone()
            elif node.target in CONVERSIONS | VIEWS and node.all_input_nodes == [source] and source in values:
                if tensor.numel() <= values[source].numel():
                    values[node] = node.target(values[source], *node.args[1:], **node.kwargs)
    return values


def _is_move(node: torch.fx.Node) -> bool:
    """Does the node copy a tensor from the CPU to another device?"""
    source, result = tensor_of(node.args[0] if node.args else None), tensor_of(node)
    if node.target not in _MOVES or source is None or result is None:
        return False
    return source.device.type == "cpu" != result.device.type and node.all_input_nodes == [node.args[0]]


def _moved(node: torch.fx.Node, value: torch.Tensor) -> torch.Tensor | None:
    """Returns the tensor on the other device, moved now; None where this machine lacks the device."""
    target: Any = node.target
    try:
        with torch_api.real_mode():
            found: torch.Tensor = target(value, *node.args[1:], **node.kwargs)
    except (RuntimeError, AssertionError):
        return None
    planned = node.meta["val"]
    return found if found.stride() == planned.stride() and found.dtype == planned.dtype else None
