"""Copies within a joint graph that would have the forward save one value twice.

In: a joint graph. Out: one in which each copy and its original are one tensor, where they lie in memory alike and
nobody outside sees either. Dropout with p = 0 copies the attention's
probabilities, a pad by nothing copies what it pads: the original is saved for one gradient and the copy for another.
Once the graph is split both are outputs of the forward, and no pass on one half can tell that the other half needs one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch

from litz.capture.joint.nouns import JointGraph
from litz.capture.torch_api import (
    is_higher_order,
    is_torchs,
    memory_owners,
    same_layout,
    same_statically,
    written_arguments,
)
from litz_plugins.records import PassContext

aten, prims = torch.ops.aten, torch.ops.prims

COPIES = frozenset(
    {
        aten.clone.default,
        aten._to_copy.default,
        prims.convert_element_type.default,
        aten.constant_pad_nd.default,
    }
)
"""Ops that return a copy of their first argument, if the type and the sizes are the same."""


def remove_redundant_copies(joint: JointGraph, context: PassContext) -> JointGraph:
    """Returns the joint graph without the copies whose original serves as well.

    A copy stays where the copy or its original shares memory with an input, a result or something written: the user may
    write those, and may tell them apart. A copy stays too where the original is a part of a larger tensor, as all of
    that would be kept, and where the user decides what is computed again (`torch.utils.checkpoint`).
    """
    if next(_redundant(joint.module.graph), None) is None:
        return joint
    joint = joint.copy()
    graph = joint.module.graph
    for node, source in _redundant(graph):
        node.replace_all_uses_with(source)
        graph.erase_node(node)
    return joint


def _redundant(graph: torch.fx.Graph) -> Iterator[tuple[torch.fx.Node, torch.fx.Node]]:
    """Yields copies and what stands in for each; whoever goes on has put that in the copy's place."""
    owners = memory_owners(graph.nodes)
    seen = {owners[item] for node in graph.nodes for item in (*_returned(node), *written_arguments(node))}
    found: dict[torch.fx.Node, torch.fx.Node] = {}
    """Each copy that is gone, and what owns the memory in its place."""
    for node in list(graph.nodes):
        source = _original(node)
        if source is None:
            continue
        owner = found.get(owners[source], owners[source])
        if _serves_as_well(node, source, owner, seen):
            found[node] = owner
            yield node, source


def _returned(node: torch.fx.Node) -> list[torch.fx.Node]:
    return node.all_input_nodes if node.op == "output" else []


def _original(node: torch.fx.Node) -> torch.fx.Node | None:
    """Returns the argument that a call copies without a change of the values, whatever the strides; None for any other
    call. A pad copies where it pads by nothing."""
    if node.op != "call_function" or node.target not in COPIES or node.kwargs.get("pin_memory"):
        return None
    if node.target == aten.constant_pad_nd.default and not _pads_nothing(node.args[1]):
        return None
    source = node.args[0]
    return source if isinstance(source, torch.fx.Node) else None


def _pads_nothing(pads: Any) -> bool:
    return all(isinstance(pad, int) and pad == 0 for pad in pads)


def _serves_as_well(
    copy: torch.fx.Node, source: torch.fx.Node, owner: torch.fx.Node, seen: Collection[torch.fx.Node]
) -> bool:
    """Returns whether `source`, which lies in the memory of `owner`, may be what `copy` is."""
    if copy in seen or owner in seen or not is_torchs(owner):
        return False
    if any("recompute" in node.meta for node in (copy, source)):
        return False
    if any(is_higher_order(user.target) for user in (*copy.users, *source.users)):
        return False
    mine, own, whole = (_tensor(node) for node in (copy, source, owner))
    if mine is None or own is None or whole is None:
        return False
    return same_layout(mine, own, offset=True) and same_statically(_nbytes(own), _nbytes(whole))


def _tensor(node: torch.fx.Node) -> torch.Tensor | None:
    value = node.meta.get("val")
    return value if isinstance(value, torch.Tensor) else None


def _nbytes(tensor: torch.Tensor) -> Any:
    return tensor.numel() * tensor.itemsize


__all__ = ["remove_redundant_copies"]
