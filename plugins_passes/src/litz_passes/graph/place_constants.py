"""Tensors that every call makes anew on the CPU and copies to a device, put there once.

`torch.tensor([0.485, 0.456, 0.406]).to(x.device)` makes a CPU tensor and copies it, from memory that is not pinned, in
every call; so do positions that a model counts on the CPU (`torch.arange(n)` and what is computed of it). Such a graph
cannot be recorded as a CUDA graph either. In: a Graph. Out: a Graph that holds the copy, computed now by torch itself,
so that its values are eager's. A literal is a constant behind `lift_fresh`, which nobody else has. What is returned
(saved for a backward, too) or written is a fresh copy, made on the device.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

from litz.capture import torch_api
from litz.capture.graph import Graph
from litz.capture.passes.freezing import constants, known_size
from litz.capture.passes.rewrite import Call, Changes, Constant, rewrite, tensor_of
from litz_passes.escapes import find_escapes
from litz_plugins.records import PassContext

from ..nodes import needed_by

aten, prims = torch.ops.aten, torch.ops.prims

_LIFTS = frozenset({aten.lift_fresh_copy.default, aten.lift_fresh.default})
_MOVES = frozenset({aten._to_copy.default, prims.device_put.default})

_FILLS = frozenset({aten.full.default, aten.zeros.default, aten.ones.default})
MOST_BYTES = 1 << 22
"""The most bytes of a tensor that is put on its device ahead: a larger one would occupy the device as long as the code
lives."""


def place_constants(graph: Graph, context: PassContext | None = None) -> Graph:
    """The graph with a constant on the device for each literal that is moved there; the same graph if there is none, or
    if this machine lacks the device."""
    moves = [node for node in graph.nodes if _is_move(node)]
    if not moves:
        return graph
    escapes = find_escapes(graph)
    values = _known(graph, moves, escapes.written)
    placed: dict[torch.fx.Node, Constant | Call] = {}
    for node in moves:
        source: Any = node.args[0]
        if source not in values or source.target in _FILLS:  # `fold_constants` fills where the tensor is wanted
            continue
        value = None if node in escapes.strided else _moved(node, values[source])
        if value is None:
            continue
        constant = placed[node] = Constant(value, node.meta)
        if node in escapes.outputs or node in escapes.written:
            placed[node] = Call(aten.clone.default, (constant,))
    if placed and context is not None:
        context.record(
            graph.name, f"{len(placed)} constants put on their device", "their values are the same in every call"
        )
    return rewrite(graph, Changes(emit=placed))


def _known(graph: Graph, moves: list[torch.fx.Node], written: Collection[torch.fx.Node]) -> dict[Any, torch.Tensor]:
    """Returns the values on the CPU of the nodes that the moves read, directly or not, where a node depends on no input
    of the graph. written: nodes that the graph writes in place, whose values change."""
    held, values = constants(graph), dict[Any, torch.Tensor]()
    wanted = needed_by(source for move in moves for source in move.all_input_nodes)
    with torch_api.real_mode():
        for node in graph.nodes:
            if node not in wanted or node in written:
                continue
            if node in held:
                if held[node].device.type == "cpu" and held[node].nbytes <= MOST_BYTES:
                    values[node] = held[node]
            elif node.target in _LIFTS and node.args[0] in values:
                values[node] = values[node.args[0]].detach().clone()
            elif _is_computable(node, values):
                args, kwargs = torch.fx.node.map_arg((node.args, dict(node.kwargs)), values.__getitem__)
                found = _value(node, args, kwargs)
                if found is not None:
                    values[node] = found
    return values


def _is_computable(node: torch.fx.Node, values: Mapping[Any, torch.Tensor]) -> bool:
    """Returns whether a node's value, a small tensor on the CPU, is computed of known values alone."""
    tensor, size = tensor_of(node), known_size(node, values)
    if tensor is None or size is None or tensor.device.type != "cpu" or torch_api.is_uninitialized(node):
        return False
    return size * tensor.itemsize <= MOST_BYTES


def _value(node: torch.fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | None:
    """The value, as eager computes it; None where the call fails, which is for the model's run to report."""
    target: Any = node.target
    try:
        found = target(*args, **kwargs)
    except Exception:
        return None
    planned: torch.Tensor = node.meta["val"]
    as_planned = isinstance(found, torch.Tensor) and (found.shape, found.dtype) == (planned.shape, planned.dtype)
    return found if as_planned else None


def _is_move(node: torch.fx.Node) -> bool:
    """Returns whether the node copies a tensor from the CPU to another device."""
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
