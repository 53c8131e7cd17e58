"""What a forward saves for its backward, without memory that the backward does not read.

In: the halves of a joint graph. Out: halves whose forward saves a dense copy of a part of a larger tensor (a slice of a
relu, for the gradient of a convolution's weights) where nobody needs the rest. The forward's convolutions read the copy
too, as their library would make one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from litz.capture.joint.nouns import Halves
from litz.capture.torch_api import aliased_argument, fake_mode_around, memory_owner, written_arguments
from litz_plugins.records import PassContext

aten = torch.ops.aten

LEAST_BYTES = 1 << 20
"""The fewest bytes that the backward need not hold for which a part is copied."""

MOST_SHARE = 0.5
"""Of a tensor, the most that is needed of it for which its parts are copied: a copy is written and read as well."""

DENSE_READERS = frozenset({aten.convolution.default})
"""Ops of a forward that read a copy of a part in place of the part: their libraries want their operands dense."""


Saved = Mapping[torch.fx.Node, torch.fx.Node]
"""The backward's input of each node of the forward that is saved for the backward alone."""


def save_what_is_read(halves: Halves, context: PassContext) -> Halves:
    """Returns halves whose forward saves no more memory than the backward reads."""
    if not _parts(*saved_alone(halves)):
        return halves
    halves = halves.copy()
    outputs, saved = saved_alone(halves)
    instead = {node: _copied(halves.forward.graph, node, saved[node]) for node in _parts(outputs, saved)}
    halves.forward.graph.output_node().args = (tuple(instead.get(item, item) for item in outputs),)
    return halves


def saved_alone(halves: Halves) -> tuple[Sequence[Any], Saved]:
    """Returns what the forward returns, and what of it nobody but the backward gets."""
    outputs, visible = halves.results, halves.forward_outputs
    placeholders = {node.name: node for node in halves.backward.graph.find_nodes(op="placeholder")}
    saved = (item for item in dict.fromkeys(outputs[visible:]) if isinstance(item, torch.fx.Node))
    seen = outputs[:visible]
    return outputs, {item: placeholders[item.name] for item in saved if item.name in placeholders and item not in seen}


def saved_by_owner(outputs: Sequence[Any], saved: Saved) -> dict[torch.fx.Node, list[torch.fx.Node]]:
    """Returns the saved tensors of each memory that the forward makes and that nobody but the backward gets."""
    by_owner: dict[torch.fx.Node, list[torch.fx.Node]] = {}
    for item in dict.fromkeys(outputs):
        if isinstance(item, torch.fx.Node) and isinstance(item.meta.get("val"), torch.Tensor):
            by_owner.setdefault(memory_owner(item), []).append(item)
    return {
        owner: kept
        for owner, kept in by_owner.items()
        if owner.op == "call_function" and all(node in saved for node in kept)
    }


def _parts(outputs: Sequence[Any], saved: Saved) -> list[torch.fx.Node]:
    """Returns the saved parts that should be copied."""
    found: list[torch.fx.Node] = []
    for owner, kept in saved_by_owner(outputs, saved).items():
        if _is_cheap_to_copy(owner, kept) and all(_may_be_copied(node, saved[node]) for node in kept):
            found += kept
    return found


def _is_cheap_to_copy(owner: torch.fx.Node, kept: Sequence[torch.fx.Node]) -> bool:
    """Returns whether so little is needed of a tensor that a copy of the little is better than the whole."""
    if owner in kept or any(is_symbolic(node) for node in (owner, *kept)):
        return False
    whole, needed = tensor_bytes(owner), sum(map(tensor_bytes, kept))
    return needed <= MOST_SHARE * whole and whole - needed >= LEAST_BYTES


def _may_be_copied(node: torch.fx.Node, placeholder: torch.fx.Node) -> bool:
    """Returns whether a dense tensor may stand for a saved part: with other strides, the backward may not view it."""
    if "recompute" in node.meta:
        return False
    return not any(
        aliased_argument(user) is placeholder or placeholder in written_arguments(user) for user in placeholder.users
    )


def is_symbolic(node: torch.fx.Node) -> bool:
    """Returns whether a node is no tensor, or one of sizes or strides that are no constants."""
    value = node.meta.get("val")
    return not isinstance(value, torch.Tensor) or value._has_symbolic_sizes_strides


def tensor_bytes(node: torch.fx.Node) -> int:
    """Returns the bytes of a node's elements."""
    value = node.meta["val"]
    return int(value.numel() * value.itemsize)


def _copied(graph: torch.fx.Graph, node: torch.fx.Node, placeholder: torch.fx.Node) -> torch.fx.Node:
    """A dense copy of a part, which the forward's library calls read and the backward gets."""
    with graph.inserting_after(node):
        copy = graph.create_node("call_function", aten.clone.default, (node,), name=f"{node.name}_dense")
    value = node.meta["val"]
    with fake_mode_around([value]):
        made = torch.empty_like(value)  # dense, dimensions in the order of the part's
    copy.meta = {**{key: item for key, item in node.meta.items() if key != "tensor_meta"}, "val": made}
    for user in list(node.users):
        if user.target in DENSE_READERS:
            user.replace_input_with(node, copy)
    placeholder.meta = {**{key: item for key, item in placeholder.meta.items() if key != "tensor_meta"}, "val": made}
    placeholder._rename(copy.name)  # another tensor than the part
    placeholder.target = placeholder.name
    return copy


__all__ = ["LEAST_BYTES", "is_symbolic", "save_what_is_read", "saved_alone", "saved_by_owner", "tensor_bytes"]
