"""Tensors of which a gradient reads the sizes alone, out of the partitioner's way.

In: a joint graph. Out: one with memory without values in the place of such a tensor; and, once it is partitioned, with
a saved tensor in the place of such memory. The partitioner would save the input of a pool for its gradient, or refuse
to compute the input again (`litz.capture.joint.size_readers`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from litz.capture.joint.nouns import Halves, JointGraph
from litz.capture.joint.size_readers import READERS, size_argument
from litz_passes.nodes import add_call
from litz_plugins.records import PassContext

aten = torch.ops.aten

SOURCE = "litz_sizes_of"
"""The key, in the meta of memory without values, of the name of the tensor whose place the memory takes."""


def read_sizes_alone(joint: JointGraph, context: PassContext) -> JointGraph:
    """Returns the joint graph with memory without values in the place of each tensor of which a call reads the sizes
    alone. A tensor whose sizes are symbols stays."""
    if not any(_readers(joint.module.graph)):
        return joint
    joint = joint.copy()
    graph = joint.module.graph
    for node, place, source in _readers(graph):
        value = source.meta["val"]
        options = {"dtype": value.dtype, "device": value.device}
        with graph.inserting_before(node):
            made = add_call(
                graph, value, aten.empty_strided.default, list(value.shape), list(value.stride()), **options
            )
        made.meta[SOURCE] = source.name
        node.update_arg(place, made)
    return joint


def _readers(graph: torch.fx.Graph) -> Iterator[tuple[torch.fx.Node, int, torch.fx.Node]]:
    """Yields the calls that read the sizes of a tensor alone, with the argument's position and the tensor."""
    for target in READERS:
        for node in graph.find_nodes(op="call_function", target=target):
            place = size_argument(node)
            source: Any = None if place is None else node.args[place]
            value = None if source is None else source.meta.get("val")
            if place is not None and isinstance(value, torch.Tensor) and not value._has_symbolic_sizes_strides:
                yield node, place, source


def read_saved_tensors(halves: Halves, context: PassContext) -> Halves:
    """Returns halves whose backward reads a tensor that is saved for another reader in place of memory without values,
    which would take memory beside the tensor."""
    if not any(_saved(halves.backward.graph)):
        return halves
    halves = halves.copy()
    graph = halves.backward.graph
    for node, source in list(_saved(graph)):
        node.replace_all_uses_with(source)
        graph.erase_node(node)
    return halves


def _saved(backward: torch.fx.Graph) -> Iterator[tuple[torch.fx.Node, torch.fx.Node]]:
    """Yields memory without values, and the saved tensor whose place it took."""
    saved = {node.name: node for node in backward.find_nodes(op="placeholder")}
    for node in backward.find_nodes(op="call_function", target=aten.empty_strided.default):
        source = saved.get(node.meta.get(SOURCE, ""))
        if source is not None and _lie_alike(source.meta.get("val"), node.meta["val"]):
            yield node, source


def _lie_alike(saved: Any, value: torch.Tensor) -> bool:
    if not isinstance(saved, torch.Tensor) or saved._has_symbolic_sizes_strides:
        return False
    return (saved.shape, saved.stride(), saved.dtype) == (value.shape, value.stride(), value.dtype)


__all__ = ["read_saved_tensors", "read_sizes_alone"]
