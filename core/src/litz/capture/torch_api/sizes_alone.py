"""Tensors of which a gradient reads the sizes alone, out of the partitioner's way.

In: a function that splits a joint graph into forward and backward. Out: one that first puts memory without values in
the place of such a tensor. What the gradient of a pool reads of the pool's input is how large the input was; the
partitioner would save the input for that, or refuse to compute it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .fake import add_call

aten = torch.ops.aten

SIZES_ALONE: Mapping[Any, int] = {
    aten.avg_pool2d_backward.default: 1,
    aten.avg_pool3d_backward.default: 1,
    aten._adaptive_avg_pool2d_backward.default: 1,
    aten._adaptive_avg_pool3d_backward.default: 1,
    aten.max_pool2d_with_indices_backward.default: 1,
    aten.max_pool3d_with_indices_backward.default: 1,
    aten.adaptive_max_pool2d_backward.default: 1,
    aten.adaptive_max_pool3d_backward.default: 1,
    aten.fractional_max_pool2d_backward.default: 1,
    aten.fractional_max_pool3d_backward.default: 1,
}
"""Op: which of its arguments is a tensor whose sizes, dtype and layout are all that the op reads."""


def partition_of_values_that_are_read(partition: Any) -> Any:
    """Returns a partitioner like `partition` for the joint graph without tensors that are there for their sizes."""

    def split(joint: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        if stand_in_for_sizes(joint.graph):
            joint.recompile()
        halves: tuple[Any, Any] = partition(joint, *args, **kwargs)
        return halves

    return split


def stand_in_for_sizes(graph: torch.fx.Graph) -> int:
    """Puts memory without values in the place of each tensor of which a call reads the sizes alone. Returns how many
    calls there are. A tensor whose sizes are symbols stays."""
    found = 0
    for target, place in SIZES_ALONE.items():
        for node in graph.find_nodes(op="call_function", target=target):
            source = node.args[place]
            value = source.meta.get("val")
            if not isinstance(value, torch.Tensor) or value._has_symbolic_sizes_strides:
                continue
            size, stride = list(value.shape), list(value.stride())
            options = {"dtype": value.dtype, "device": value.device}
            with graph.inserting_before(node):
                made = add_call(graph, value, aten.empty_strided.default, size, stride, **options)
            node.update_arg(place, made)
            found += 1
    return found


def is_read_for_sizes(node: torch.fx.Node) -> bool:
    """Do all who read a tensor read its sizes alone?"""
    return bool(node.users) and all(
        (place := SIZES_ALONE.get(user.target)) is not None
        and [at for at, arg in enumerate(user.args) if arg is node] == [place]
        for user in node.users
    )


__all__ = ["is_read_for_sizes", "partition_of_values_that_are_read", "stand_in_for_sizes"]
