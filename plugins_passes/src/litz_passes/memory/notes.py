"""What a report says of memory beside a graph's own plan, for `litz memory`: eager's planned peak, and the memory that
stands while a graph runs and of which its plan knows nothing."""

from __future__ import annotations

import json
from typing import Any

import torch

from litz.capture.graph import Graph
from litz.capture.joint.nouns import Halves, JointGraph
from litz.capture.torch_api import is_tangent, memory_owner, origin_of
from litz_plugins import PassContext

from .sizes import EagerPeak, Sizes, eager_peak

ATTACHMENT = "memory.json"
"""The file of a report with eager's planned peak and, of a budget, its bytes and all candidates."""
STANDING = "standing_memory.json"
"""The file of a forward's report with the bytes that stand during the forward and during the backward, and how many of
the forward's outputs are results."""


def standing(halves: Halves) -> tuple[int, int]:
    """Returns the bytes that are alive during all of the forward and during all of the backward: the inputs of the
    step, and in the backward the results and their gradients. Plans count what graphs make, and saved tensors."""
    forward, backward = halves.forward, halves.backward
    sizes = Sizes(JointGraph("forward", forward))
    inputs = sum(sizes.nbytes(node) for node in forward.graph.find_nodes(op="placeholder"))
    seen = halves.results[: halves.forward_outputs]
    owners = {memory_owner(item) for item in seen if isinstance(item, torch.fx.Node)}
    made = sum(sizes.nbytes(node) for node in owners if node.op == "call_function")
    sizes = Sizes(JointGraph("backward", backward))
    tangents = sum(sizes.nbytes(node) for node in backward.graph.find_nodes(op="placeholder") if is_tangent(node))
    return inputs, inputs + made + tangents


def note_standing_memory(halves: Halves, context: PassContext) -> Halves:
    """Returns the halves as they are, and attaches what stands while they run."""
    forward, backward = standing(halves)
    facts = {"forward": forward, "backward": backward, "results": halves.forward_outputs}
    context.attach(STANDING, json.dumps(facts))
    return halves


def note_eagers_peak(graph: Graph, context: PassContext) -> Graph:
    """Returns the graph as it is, and attaches eager's planned peak of an inference graph."""
    if graph.kind == "inference":
        facts = facts_of(eager_peak(Sizes(graph)))
        context.attach(ATTACHMENT, json.dumps(facts | {"budget": None, "budget_bytes": None, "candidates": []}))
    return graph


def facts_of(eager: EagerPeak) -> dict[str, Any]:
    """Returns what a report says of eager's planned peak."""
    origin = "" if eager.node is None else str(origin_of(eager.node) or eager.node.name)
    parts = {"standing": eager.standing, "saved": eager.saved, "others": eager.others}
    return {"eager_bytes": eager.nbytes, "eager_parts": parts, "eager_origin": origin}


__all__ = ["ATTACHMENT", "STANDING", "facts_of", "note_eagers_peak", "note_standing_memory", "standing"]
