"""What a forward saves for its backward, without memory that the backward does not read.

In: the halves of a joint graph. Out: halves that differ in two points:

- Where a part of a larger tensor is saved and nobody needs the rest (a slice of a relu, for the gradient of a
  convolution's weights), the forward saves a dense copy of the part. The forward's convolutions read the copy too, as
  their library would make one.
- Where most of a tensor is saved in parts, which hold all of its memory, and a mask of the tensor (`relu <= 0`) is
  saved beside them, the forward saves the tensor, and the backward makes the parts and the mask. torch's partitioner
  counts each part as memory of its own.
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

MASKS = frozenset(
    getattr(aten, name).Scalar for name in ("le", "lt", "ge", "gt", "eq", "ne")
) | {aten.logical_not.default, aten.bitwise_not.default}  # fmt: skip
"""Ops that give a mask of one tensor."""

DENSE_READERS = frozenset({aten.convolution.default})
"""Ops of a forward that read a copy of a part in place of the part: their libraries want their operands dense."""


def save_what_is_read(halves: Halves, context: PassContext) -> Halves:
    """Returns halves whose forward saves no more memory than the backward reads."""
    if not any(_parts(*_saved(halves))):
        return halves
    halves = halves.copy()
    forward, backward = halves.forward.graph, halves.backward.graph
    outputs, visible, placeholders = _saved(halves)
    parts, wholes = _parts(outputs, visible, placeholders)
    instead = {node: _copied(forward, node, placeholders[node]) for node in parts}
    gone = set[torch.fx.Node]()
    for owner, made in wholes.items():
        _made_of_whole(backward, owner, {node: placeholders[node] for node in made})
        instead[made[0]] = owner
        gone.update(made[1:])
    forward.output_node().args = (tuple(instead.get(item, item) for item in outputs if item not in gone),)
    return halves


def _saved(halves: Halves) -> tuple[Sequence[Any], int, dict[torch.fx.Node, torch.fx.Node]]:
    """Returns what the forward returns, how much of it the user sees, and the backward's input of each node that is
    saved alone."""
    outputs, visible = halves.results, halves.forward_outputs
    placeholders = {node.name: node for node in halves.backward.graph.find_nodes(op="placeholder")}
    saved = (item for item in dict.fromkeys(outputs[visible:]) if isinstance(item, torch.fx.Node))
    seen = outputs[:visible]
    return (
        outputs,
        visible,
        {item: placeholders[item.name] for item in saved if item.name in placeholders and item not in seen},
    )


def _parts(
    outputs: Sequence[Any], visible: int, saved: Mapping[torch.fx.Node, torch.fx.Node]
) -> tuple[list[torch.fx.Node], dict[torch.fx.Node, list[torch.fx.Node]]]:
    """Returns (parts, wholes): the saved parts that should be copied; and, for each tensor that should be saved as a
    whole, the saved tensors that the backward makes of the whole, parts first. saved: by node of the forward, the
    backward's input."""
    by_owner: dict[torch.fx.Node, list[torch.fx.Node]] = {}
    for item in dict.fromkeys(outputs):
        if isinstance(item, torch.fx.Node) and isinstance(item.meta.get("val"), torch.Tensor):
            by_owner.setdefault(memory_owner(item), []).append(item)
    seen = {item for item in outputs[:visible] if isinstance(item, torch.fx.Node)}
    copied: list[torch.fx.Node] = []
    wholes: dict[torch.fx.Node, list[torch.fx.Node]] = {}
    for owner, kept in by_owner.items():
        if (
            owner.op != "call_function"
            or not seen.isdisjoint(kept)
            or any(_is_symbolic(node) for node in (owner, *kept))
        ):
            continue
        if not all(node in saved and node is not owner for node in kept):
            continue
        whole, needed = _nbytes(owner), sum(map(_nbytes, kept))
        if needed <= MOST_SHARE * whole:
            if whole - needed >= LEAST_BYTES and all(_may_be_copied(node, saved[node]) for node in kept):
                copied += kept
            continue
        masks = [node for node in saved if node not in kept and _is_mask_of(node, owner)]
        if sum(map(_nbytes, masks)) >= LEAST_BYTES and all(_made_of(node, owner) for node in kept):
            wholes[owner] = [*kept, *masks]
    return copied, wholes


def _is_mask_of(node: torch.fx.Node, owner: torch.fx.Node) -> bool:
    """Is a node a mask of the tensor or of a view of it?"""
    return not _is_symbolic(node) and node.target in MASKS and _made_of(node, owner)


def _made_of(node: torch.fx.Node, owner: torch.fx.Node) -> bool:
    """Is a node made of one tensor alone, by masks and views?"""
    while node is not owner:
        sources = node.all_input_nodes
        if node.op != "call_function" or len(sources) != 1 or "recompute" in node.meta:
            return False
        if node.target not in MASKS and aliased_argument(node) is not sources[0]:
            return False
        (node,) = sources
    return True


def _made_of_whole(graph: torch.fx.Graph, owner: torch.fx.Node, made: Mapping[torch.fx.Node, torch.fx.Node]) -> None:
    """Has the backward make saved tensors of their owner, which takes the place of the first of them among the inputs.
    made: by node of the forward, the backward's input."""
    first, *others = made.values()
    there = {owner: first}

    def copy(node: torch.fx.Node) -> torch.fx.Node:
        if node not in there:
            (source,) = node.all_input_nodes
            copied = copy(source)
            there[node] = graph.node_copy(node, lambda _: copied)
        return there[node]

    uses = {node: list(placeholder.users) for node, placeholder in made.items()}
    with graph.inserting_before(next(node for node in graph.nodes if node.op != "placeholder")):
        for node, placeholder in made.items():
            again = copy(node)
            for user in uses[node]:
                user.replace_input_with(placeholder, again)
    for placeholder in others:
        graph.erase_node(placeholder)
    first.meta = dict(owner.meta)
    first._rename(owner.name)
    first.target = first.name


def _may_be_copied(node: torch.fx.Node, placeholder: torch.fx.Node) -> bool:
    """May a dense tensor stand for a saved part? Its strides differ, so nothing may be a view of it in the backward."""
    if "recompute" in node.meta:
        return False
    return not any(
        aliased_argument(user) is placeholder or placeholder in written_arguments(user) for user in placeholder.users
    )


def _is_symbolic(node: torch.fx.Node) -> bool:
    """Is a node no tensor, or one of sizes or strides that are no constants?"""
    value = node.meta.get("val")
    return not isinstance(value, torch.Tensor) or value._has_symbolic_sizes_strides


def _nbytes(node: torch.fx.Node) -> int:
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


__all__ = ["save_what_is_read"]
