"""Joint graphs split into forward and backward: what torch's partitioner leaves undone."""

from __future__ import annotations

from typing import Any

import torch

from .fake import fake_mode_around
from .operators import memory_owner, written_arguments

Modules = tuple[torch.fx.GraphModule, torch.fx.GraphModule]


def min_cut(joint: Any) -> Modules:
    """Returns the forward and the backward of a `JointGraph` by torch's min-cut partitioner."""
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    halves: Modules = min_cut_rematerialization_partition(
        joint.module, list(joint.inputs), num_fwd_outputs=joint.forward_outputs, **joint.more
    )
    return halves


def with_kept_values(forward: torch.fx.GraphModule, backward: torch.fx.GraphModule, num_fwd_outputs: int) -> Modules:
    """Returns what a partitioner made, with a copy for the backward of each input that is saved for it and that the
    forward writes. Changes both in place.

    A node of a functional graph is one value, and an input's is the one from before the write. The partitioner does not
    see that what it saves is written once the forward ends (a buffer that follows an average, say), and the backward
    would compute with what was written (torch 2.11 to 2.13, TorchInductor too).
    """
    written = {memory_owner(item) for node in forward.graph.nodes for item in written_arguments(node)}
    output = forward.graph.output_node()
    outputs: Any = output.args[0]
    saved = dict.fromkeys(item for item in outputs[num_fwd_outputs:] if isinstance(item, torch.fx.Node))
    lost = [node for node in saved if isinstance(node.meta.get("val"), torch.Tensor) and memory_owner(node) in written]
    if not lost:
        return forward, backward
    kept = {node: _copy(forward.graph, node) for node in lost}
    output.args = ((*outputs[:num_fwd_outputs], *(kept.get(item, item) for item in outputs[num_fwd_outputs:])),)
    placeholders = {node.name: node for node in backward.graph.find_nodes(op="placeholder")}
    for node, copy in kept.items():
        placeholder = placeholders[node.name]
        placeholder._rename(copy.name)  # another tensor than the forward's input of that name
        placeholder.target = placeholder.name
    forward.recompile()
    backward.recompile()
    return forward, backward


def _copy(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node:
    """A copy of what `node` is where it is made: writes come after all reads."""
    value = node.meta["val"]
    last = next(item for item in graph.nodes if item.op != "placeholder") if node.op == "placeholder" else node.next
    with graph.inserting_before(last):
        copy = graph.create_node("call_function", torch.ops.aten.clone.default, (node,), name=f"{node.name}_kept")
    with fake_mode_around([value]):
        made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    copy.meta = {**{key: item for key, item in node.meta.items() if key != "tensor_meta"}, "val": made}
    return copy
