"""What a region of torch.utils.checkpoint is given, saved as in eager, where another region has made it.

In: a joint graph. Out: one in which the partitioner may not have the backward compute one region again to have the
inputs of the next. Eager saves the inputs of each region, and so the backward has one region's tensors at a time.
torch's min-cut partitioner saves a result that goes straight into another region, but neither a view, nor an element of
several results (an attention's, a norm's), nor what is computed between two regions. Then the backward begins by
computing all of them, one after the other, and holds the tensors of all.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator

import torch
from torch.fx import Node
from torch.utils.checkpoint import CheckpointPolicy

from litz.capture.joint.nouns import JointGraph
from litz.capture.torch_api import aliased_argument
from litz_passes.nodes import add_call
from litz_plugins.records import PassContext

from ..nodes import AGAIN, policy_of


def save_region_inputs(joint: JointGraph, context: PassContext) -> JointGraph:
    """Returns the joint graph in which what one region is given by another is to be saved."""
    if not any(_given(joint.module.graph)):
        return joint
    joint = joint.copy()
    graph = joint.module.graph
    for node in _given(graph):
        if _obeys(node):
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
            continue
        readers = [user for user in node.users if _region(user) != _region(node)]
        with graph.inserting_after(node):
            held = add_call(graph, node.meta["val"], torch.ops.prims.view_of.default, node)
        held.meta = {**node.meta, **held.meta, "recompute": CheckpointPolicy.MUST_SAVE}
        for user in readers:
            user.replace_input_with(node, held)
    return joint


def _given(graph: torch.fx.Graph) -> Iterator[Node]:
    """Yields the tensors that a region is given and that need what another region computes again, unless that is saved;
    whoever goes on has had them saved."""
    behind = set[Node]()
    for node in list(graph.nodes):
        again = policy_of(node) in AGAIN
        if (_is_saved(node) and _obeys(node)) or not (again or behind & {*node.all_input_nodes}):
            continue
        readers = {_region(user) for user in node.users if policy_of(user) in AGAIN}
        if isinstance(node.meta.get("val"), torch.Tensor) and any(one > _region(node) for one in readers):
            yield node
        else:
            behind.add(node)


def _is_saved(node: Node) -> bool:
    return policy_of(node) == CheckpointPolicy.MUST_SAVE


def _obeys(node: Node) -> bool:
    """Returns whether torch's partitioner saves a node that it is told to save. The partitioner knows some views, and
    elements of several results, which it computes again."""
    return node.target is torch.ops.prims.view_of.default or (
        aliased_argument(node) is None and node.target is not operator.getitem
    )


def _region(node: Node) -> int:
    """Returns the number of the region that a node is of, -1 outside of regions; regions that begin later have larger
    ones."""
    found = node.meta.get("ac_graph_id")
    return found if isinstance(found, int) else -1


__all__ = ["save_region_inputs"]
