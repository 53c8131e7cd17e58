"""Saved memory under one name.

In: the halves of a joint graph. Out: halves whose forward, where several views of a tensor are saved (the queries, keys
and values of one product) or a view of a part of it, saves the tensor, whose memory the views hold anyway. The backward
makes the views. So plans count this memory once and whole, and it may be written over after its last use. Masks of the
tensor (`relu <= 0`) that are saved beside views are made of it, too, and so is the tensor where the backward would
compute it again beside a view that is saved. torch's partitioner counts each view as memory of its own.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

import torch

from litz.capture.joint.nouns import Halves
from litz.capture.torch_api import aliased_argument
from litz_plugins.records import PassContext

from .saved_memory import LEAST_BYTES, is_symbolic, saved_alone, saved_by_owner, tensor_bytes

aten = torch.ops.aten

MASKS = frozenset(
    getattr(aten, name).Scalar for name in ("le", "lt", "ge", "gt", "eq", "ne")
) | {aten.logical_not.default, aten.bitwise_not.default}  # fmt: skip
"""Ops that give a mask of one tensor."""


def save_wholes(halves: Halves, context: PassContext) -> Halves:
    """Returns halves whose forward saves a tensor in place of several views of it."""
    if not _wholes(halves):
        return halves
    halves = halves.copy()
    forward, backward = halves.forward.graph, halves.backward.graph
    outputs, saved = saved_alone(halves)
    instead, gone = dict[torch.fx.Node, torch.fx.Node](), set[torch.fx.Node]()
    for owner, made in _wholes(halves).items():
        _make_of_whole(backward, owner, {node: saved[node] for node in made}, _sizes(backward))
        instead[made[0]] = owner
        gone.update(made[1:])
    forward.output_node().args = (tuple(instead.get(item, item) for item in outputs if item not in gone),)
    return halves


def _sizes(backward: torch.fx.Graph) -> dict[str, torch.fx.Node]:
    """Returns the backward's inputs that are sizes, by name."""
    inputs = backward.find_nodes(op="placeholder")
    return {node.name: node for node in inputs if isinstance(node.meta.get("val"), torch.SymInt)}


def _wholes(halves: Halves) -> dict[torch.fx.Node, list[torch.fx.Node]]:
    """Returns, for each tensor that should be saved as a whole, the saved tensors that the backward makes of it: itself
    if it is saved, then views, then masks."""
    outputs, saved = saved_alone(halves)
    sizes = _sizes(halves.backward.graph)
    again = {node.name for node in halves.backward.graph.nodes if node.op != "placeholder"}
    found, by_owner = {}, saved_by_owner(outputs, saved)
    alone = [kept[0] for kept in by_owner.values() if len(kept) == 1]
    for owner, kept in by_owner.items():
        masks = [node for node in alone if node not in kept and _is_mask_of(node, owner, sizes)]
        spared = owner not in kept and sum(map(tensor_bytes, masks)) >= LEAST_BYTES
        made = sorted(kept, key=lambda node: node is not owner) + (masks if spared else [])
        if (len(made) > 1 or _hides(kept[0], owner, again)) and all(_made_of(node, owner, sizes) for node in kept):
            found[owner] = made
    return found


def _hides(node: torch.fx.Node, owner: torch.fx.Node, again: Container[str]) -> bool:
    """Returns whether a saved view holds memory that a backward does not know of: more than its own bytes, or a tensor
    that the backward computes again beside it."""
    if node is owner or not isinstance(owner.meta.get("val"), torch.Tensor):
        return False
    return owner.name in again or not (is_symbolic(owner) or tensor_bytes(node) >= tensor_bytes(owner))


def _is_mask_of(node: torch.fx.Node, owner: torch.fx.Node, sizes: Container[str]) -> bool:
    """Returns whether a node is a mask of the tensor or of a view of it."""
    return not is_symbolic(node) and node.target in MASKS and _made_of(node, owner, sizes)


def _made_of(node: torch.fx.Node, owner: torch.fx.Node, sizes: Container[str]) -> bool:
    """Returns whether a node is made of one tensor and of sizes that the backward has, by masks and views."""
    while node is not owner:
        if node.op != "call_function" or not node.all_input_nodes:
            return False
        source, *others = node.all_input_nodes
        if aliased_argument(node) is not source and (node.target not in MASKS or "recompute" in node.meta):
            return False  # views compute nothing, whatever a region of torch.utils.checkpoint wants computed once
        if any(other.name not in sizes for other in others):
            return False
        node = source
    return True


def _make_of_whole(
    graph: torch.fx.Graph,
    owner: torch.fx.Node,
    made: Mapping[torch.fx.Node, torch.fx.Node],
    sizes: Mapping[str, torch.fx.Node],
) -> None:
    """Has the backward make saved tensors of their owner, which takes the place of the first of them among the inputs.
    made: by node of the forward, the backward's input."""
    first, *others = made.values()
    there = {owner: first}
    computed = [node for node in graph.nodes if node.name == owner.name and node.op != "placeholder"]
    for node in computed:
        node.replace_all_uses_with(first)
        graph.erase_node(node)

    def copy(node: torch.fx.Node) -> torch.fx.Node:
        if node not in there:
            there[node] = sizes.get(node.name) or graph.node_copy(node, copy)
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
    first.name = first.target = owner.name  # a dead node may have had it, whose name a graph does not give again


__all__ = ["save_wholes"]
