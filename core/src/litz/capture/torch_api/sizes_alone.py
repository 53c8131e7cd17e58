"""Tensors of which a gradient reads the sizes alone, out of the partitioner's way.

In: a function that splits a joint graph into forward and backward. Out: one that first puts memory without values in
the place of such a tensor. What the gradient of a pool reads of the pool's input is how large the input was, and so
does the gradient of a convolution by a fixed weight; the partitioner would save the input for that, or refuse to
compute it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .fake import add_call

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


def partition_of_values_that_are_read(partition: Any) -> Any:
    """Returns a partitioner like `partition` for the joint graph without tensors that are there for their sizes."""

    def split(joint: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        sources = stand_in_for_sizes(joint.graph)
        if not sources:
            halves: tuple[Any, Any] = partition(joint, *args, **kwargs)
            return halves
        joint.recompile()
        forward, backward = partition(joint, *args, **kwargs)
        if take_what_is_saved(backward.graph, sources):
            backward.recompile()
        return forward, backward

    return split


def stand_in_for_sizes(graph: torch.fx.Graph) -> dict[str, str]:
    """Puts memory without values in the place of each tensor of which a call reads the sizes alone. Returns the names
    of the tensors by those of what stands for them. A tensor whose sizes are symbols stays."""
    sources: dict[str, str] = {}
    for target in _READERS:
        for node in graph.find_nodes(op="call_function", target=target):
            place = _place(node)
            if place is None:
                continue
            source = node.args[place]
            value = source.meta.get("val")
            if not isinstance(value, torch.Tensor) or value._has_symbolic_sizes_strides:
                continue
            size, stride = list(value.shape), list(value.stride())
            options = {"dtype": value.dtype, "device": value.device}
            with graph.inserting_before(node):
                made = add_call(graph, value, aten.empty_strided.default, size, stride, **options)
            node.update_arg(place, made)
            sources[made.name] = source.name
    return sources


def take_what_is_saved(backward: torch.fx.Graph, sources: Mapping[str, str]) -> bool:
    """Lets calls of the backward read a tensor that is saved for another reader, in place of memory without values,
    which would take memory beside the tensor. Returns whether a call does. sources: as `stand_in_for_sizes` returns."""
    saved = {node.name: node for node in backward.find_nodes(op="placeholder")}
    found = False
    for node in backward.find_nodes(op="call_function", target=aten.empty_strided.default):
        source = saved.get(sources.get(node.name, ""))
        if source is not None and _lie_alike(source.meta.get("val"), node.meta["val"]):
            node.replace_all_uses_with(source)
            backward.erase_node(node)
            found = True
    return found


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


__all__ = ["CONVOLUTION_RESULTS", "is_read_for_sizes", "lay_out", "partition_of_values_that_are_read"]
