"""Values on the CPU that a backward makes again, as nothing but the program's text decides them.

In: the halves of a joint graph. Out: halves whose forward saves no value on the CPU
that depends on no input. A model that counts positions on the CPU (`torch.arange(n)` and what is computed of it) and
moves them to a device computes with constants: each half finds that out (`passes/place_constants.py`) unless one half
gets part of the computation from the other. A graph with inputs or outputs on the CPU also has no CUDA graph.
"""

from __future__ import annotations

from typing import Any

import torch

from litz.capture.joint.nouns import Halves
from litz.capture.torch_api import is_pure, is_uninitialized
from litz_plugins.records import PassContext


def rebuild_cpu_values(halves: Halves, context: PassContext) -> Halves:
    """Returns halves whose backward computes what it needs of such values."""
    if not _rebuildable(halves):
        return halves
    halves = halves.copy()
    rebuilt = _rebuildable(halves)
    _rebuild(halves.backward, {placeholder: node for node, placeholder in rebuilt.items()}, halves.forward)
    kept = (item for at, item in enumerate(halves.results) if at < halves.forward_outputs or item not in rebuilt)
    halves.forward.graph.output_node().args = (tuple(kept),)
    return halves


def _rebuildable(halves: Halves) -> dict[torch.fx.Node, torch.fx.Node]:
    """Returns the nodes that are saved and need not be, with the backward's inputs; none where all is on the CPU."""
    saved = [item for item in halves.results[halves.forward_outputs :] if isinstance(item, torch.fx.Node)]
    placeholders = {node.name: node for node in halves.backward.graph.find_nodes(op="placeholder")}
    found = {
        item: placeholders[item.name]
        for item in saved
        if item.name in placeholders and _device(item) == "cpu" and _sources(item)
    }
    return found if any(_device(item) not in ("", "cpu") for item in halves.forward.graph.nodes) else {}


def _device(node: torch.fx.Node) -> str:
    """The type of the device that a node's result lies on, '' for what is no tensor."""
    value = node.meta.get("val")
    return value.device.type if isinstance(value, torch.Tensor) else ""


def _sources(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The nodes that a node is computed from, and the node, in order; none where one of them is an input, is not on the
    CPU, draws random numbers, writes or has no value."""
    found: dict[torch.fx.Node, None] = {}
    waiting = [node]
    while waiting:
        item = waiting.pop()
        if item in found:
            continue
        if not is_pure(item) or is_uninitialized(item) or _device(item) not in ("", "cpu"):
            return []
        found[item] = None
        waiting += item.all_input_nodes
    return [item for item in node.graph.nodes if item in found]


def _rebuild(
    backward: torch.fx.GraphModule, wanted: dict[torch.fx.Node, torch.fx.Node], forward: torch.fx.GraphModule
) -> None:
    """Puts the computation of forward nodes in the place of backward inputs. wanted: by input, the forward's node."""
    graph, made = backward.graph, dict[torch.fx.Node, torch.fx.Node]()
    first = next(node for node in graph.nodes if node.op != "placeholder")
    with graph.inserting_before(first):
        for node in wanted.values():
            for source in _sources(node):
                if source not in made:
                    made[source] = graph.node_copy(source, made.__getitem__)
                    if source.op == "get_attr":
                        made[source].target = _attribute(backward, getattr(forward, str(source.target)))
    for placeholder, node in wanted.items():
        placeholder.replace_all_uses_with(made[node])
        graph.erase_node(placeholder)


def _attribute(module: torch.fx.GraphModule, value: Any) -> str:
    """Gives a module a new attribute, and returns the attribute's name."""
    number = 0
    while hasattr(module, name := f"_rebuilt{number}"):
        number += 1
    setattr(module, name, value)
    return name


__all__ = ["rebuild_cpu_values"]
