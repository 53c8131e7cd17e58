"""Freezing: an inference graph with its parameters as constants, and what is computed of constants computed once.

In: a Graph whose `frozen_values` are the tensors that its static inputs hold. Out: a Graph that reads constants in
their place. The inputs stay in the graph's signature, so that the call can look whether the weights are still those
that were frozen (`litz.runtime.frozen`). The model's own tensors are only read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from litz.capture import torch_api
from litz.capture.graph import Graph, constant_of
from litz.capture.passes.rewrite import Changes, Constant, rewrite
from litz_plugins.records import PassContext

GROWTH, SMALL = 1.25, 1024
"""A result is stored if it has at most so many times the elements of what it is computed of, or is so small: an
expanded tensor is better computed where it is read."""


def freeze(graph: Graph) -> Graph:
    """Returns the graph with a constant for each input of `graph.frozen_values`; the same graph if there are no such
    inputs."""
    values = graph.frozen_values
    frozen = {node: _constant(node, values[at]) for at, node in enumerate(graph.placeholders) if at in values}
    return rewrite(graph, Changes(emit=frozen))


def fold_frozen(graph: Graph, context: PassContext | None = None) -> Graph:
    """The graph with every pure op of constants computed now, laid out in memory as the graph's tensors say.

    Only results that something else reads are stored. The same graph if there is nothing to compute.
    """
    values = _computed(graph)
    stored = {
        node: _constant(node, _laid_out(value, node.meta["val"]))
        for node, value in values.items()
        if node.op == "call_function" and any(user not in values for user in node.users)
    }
    if not stored:
        return graph
    if context is not None:
        context.record(graph.name, f"{len(stored)} tensors computed of constants", "the parameters are frozen")
    computed = frozenset(node for node in values if node not in stored and node.op == "call_function")
    return rewrite(graph, Changes(emit=stored, drop=computed))


def _constant(node: torch.fx.Node, value: torch.Tensor) -> Constant:
    return Constant(value.detach(), node.meta)


def constants(graph: Graph) -> dict[torch.fx.Node, torch.Tensor]:
    """Returns the tensors of the graph's constants by node, without those that are fake."""
    found = {node: constant_of(graph, node) for node in graph.nodes if node.op == "get_attr"}
    return {node: v for node, v in found.items() if isinstance(v, torch.Tensor) and not torch_api.is_fake(v)}


def _computed(graph: Graph) -> dict[torch.fx.Node, Any]:
    """The values of all nodes that depend on constants alone, constants included."""
    values: dict[torch.fx.Node, Any] = dict(constants(graph))
    if not values:
        return {}
    with torch_api.real_mode():
        for node in graph.nodes:
            if not _computable(node, values):
                continue
            args, kwargs = torch.fx.node.map_arg((node.args, dict(node.kwargs)), values.__getitem__)
            target: Any = node.target
            values[node] = target(*args, **kwargs)
    return {node: value for node, value in values.items() if isinstance(value, torch.Tensor)}


def _computable(node: torch.fx.Node, values: Mapping[torch.fx.Node, Any]) -> bool:
    size = known_size(node, values)
    return size is not None and size <= max(
        SMALL, GROWTH * sum(values[source].numel() for source in node.all_input_nodes)
    )


def known_size(node: torch.fx.Node, values: Mapping[torch.fx.Node, Any]) -> int | None:
    """Returns the number of elements of a tensor that a pure call computes of known values alone; None for any other
    node, and where the size is no number."""
    tensor = node.meta.get("val")
    if node.op != "call_function" or not torch_api.is_pure(node) or not isinstance(tensor, torch.Tensor):
        return None
    if any(source not in values for source in node.all_input_nodes):
        return None
    return None if any(isinstance(size, torch.SymInt) for size in tensor.shape) else tensor.numel()


def _laid_out(value: torch.Tensor, planned: torch.Tensor) -> torch.Tensor:
    """`value` with the strides of its fake twin, and memory of its own size."""
    stride = tuple(int(step) for step in planned.stride())
    if value.stride() == stride and value.untyped_storage().nbytes() == value.numel() * value.itemsize:
        return value
    with torch_api.real_mode():
        fresh = torch.empty_strided(value.shape, stride, dtype=value.dtype, device=value.device)
        return fresh.copy_(value)
