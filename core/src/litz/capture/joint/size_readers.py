"""Tensors of which a gradient reads the sizes alone, out of the partitioner's way.

In: a joint graph. Out: one with memory without values in the place of such a tensor; and, once it is partitioned, with
a saved tensor in the place of such memory. What the gradient of a pool reads of the pool's input is how large the input
was, and so does the gradient of a convolution by a fixed weight; the partitioner would save the input for that, or
refuse to compute it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from litz.capture.joint.nouns import Halves, JointGraph
from litz.capture.torch_api import add_call
from litz_plugins.records import PassContext

aten = torch.ops.aten


@dataclass(frozen=True)
class SizesAlone:
    """The argument of which an op reads the sizes, dtype and strides alone. unless: which of a convolution's gradients
    is computed from the values."""

    argument: int
    unless: int | None = None


_POOL = SizesAlone(1)

_READERS: Mapping[Any, SizesAlone] = {
    aten.avg_pool2d_backward.default: _POOL,
    aten.avg_pool3d_backward.default: _POOL,
    aten._adaptive_avg_pool2d_backward.default: _POOL,
    aten._adaptive_avg_pool3d_backward.default: _POOL,
    aten.max_pool2d_with_indices_backward.default: _POOL,
    aten.max_pool3d_with_indices_backward.default: _POOL,
    aten.adaptive_max_pool2d_backward.default: _POOL,
    aten.adaptive_max_pool3d_backward.default: _POOL,
    aten.fractional_max_pool2d_backward.default: _POOL,
    aten.fractional_max_pool3d_backward.default: _POOL,
    # The input, where the weight needs no gradient (a fixed blur). A weight itself is in memory anyway.
    aten.convolution_backward.default: SizesAlone(1, unless=1),
}

CONVOLUTION_RESULTS = 10
"""Which argument of `convolution_backward` says which gradients are wanted: the input's, the weight's, the bias's."""


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
    for target in _READERS:
        for node in graph.find_nodes(op="call_function", target=target):
            place = _place(node)
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


def is_read_for_sizes(node: torch.fx.Node) -> bool:
    """Do all who read a tensor read its sizes alone?"""
    return bool(node.users) and all(
        (place := _place(user)) is not None and [at for at, arg in enumerate(user.args) if arg is node] == [place]
        for user in node.users
    )


def lay_out(node: torch.fx.Node, value: Any) -> None:
    """Gives memory without values the strides of the fake tensor `value`: the call that makes the memory names them. A
    node of another kind stays, and memory whose sizes are symbols."""
    if node.target is aten.empty_strided.default and not value._has_symbolic_sizes_strides:
        node.update_arg(1, list(value.stride()))


def _place(node: torch.fx.Node) -> int | None:
    """Returns which argument of a call is a tensor whose sizes are all that the call reads; None: no argument is."""
    reader, arguments = _READERS.get(node.target), tuple[Any, ...](node.args)
    if reader is None or (reader.unless is not None and arguments[CONVOLUTION_RESULTS][reader.unless]):
        return None
    return reader.argument


__all__ = ["CONVOLUTION_RESULTS", "is_read_for_sizes", "lay_out", "read_saved_tensors", "read_sizes_alone"]
