"""Results of regions that are views: of what a region is given, or of another of its results.

In: a joint graph with calls of regions of `nested_compile_region`, whose forward regions also return what they save for
their backward. Out: the same graph, which views operands and results itself. A region returns memory of its own, so
without this pass each call copies the weights that its backward reads.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.fx import Node

from litz.capture.joint.nouns import JointGraph
from litz.capture.torch_api import aliased_argument, copied, fake_mode_around, memory_owner, region_calls
from litz_plugins.records import PassContext


def view_regions(joint: JointGraph, context: PassContext) -> JointGraph:
    """Returns the joint graph with views of operands and of other results in place of results of regions."""
    found = {
        name: views
        for name, (body, _) in region_calls(joint.module).items()
        if (views := _Views(copied(body))).again and context.allows(name)
    }
    if not found:
        return joint
    joint = joint.copy()
    calls = region_calls(joint.module)
    for name, views in found.items():
        setattr(joint.module, name, views.region)
        for call in calls[name][1]:
            views.apply(joint.module.graph, call)
    joint.module.recompile()
    return joint


class _Views:
    """A region without results that are views. again: by position, the owner of such a result's memory, an input or a
    result, and the views that lead from there to the result. kept: the positions of owners among the results."""

    def __init__(self, region: torch.fx.GraphModule) -> None:
        self.region = region
        self.inputs = region.graph.find_nodes(op="placeholder")
        self.again: dict[int, tuple[Node, list[Node]]] = {}
        self.kept: dict[Node, int] = {}
        output = region.graph.output_node()
        results: list[Any] = list(output.args[0])  # type: ignore[arg-type]
        for at, owner, chain in list(self._owners(results)):
            if owner.op != "placeholder" and owner not in self.kept:
                self.kept[owner] = results.index(owner) if owner in results else at
            if chain or self.kept.get(owner) != at:
                self.again[at] = owner, chain
        for at, (owner, _) in self.again.items():
            results[at] = owner if self.kept.get(owner) == at else None
        output.args = (tuple(results),)
        self.values = tuple(item.meta["val"] if isinstance(item, Node) else item for item in results)
        region.recompile()

    def _owners(self, results: list[Any]) -> Iterator[tuple[int, Node, list[Node]]]:
        """Yields the position, the owner and the views of each result that the caller can view itself."""
        for at, result in enumerate(results):
            if not isinstance(result, Node) or not isinstance(result.meta.get("val"), torch.Tensor):
                continue
            owner, chain = memory_owner(result), list[Node]()
            while result is not owner:
                base = aliased_argument(result)
                if base is None or any(node is not base and node not in self.inputs for node in result.all_input_nodes):
                    break  # a size that the region works out
                chain.insert(0, result)
                result = base
            else:
                yield at, owner, chain

    def apply(self, graph: torch.fx.Graph, call: Node) -> None:
        """Has the graph view what a call of the region is given and returns."""
        given: dict[Node, Any] = dict(zip(self.inputs, call.args[2:], strict=True))
        call.meta["val"] = self.values
        taken = [user for user in call.users if user.target is operator.getitem and user.args[1] in self.again]
        for user in taken:
            owner, chain = self.again[user.args[1]]  # type: ignore[index]
            with graph.inserting_before(user):
                value: Any = given.get(owner)
                if value is None:
                    value = graph.call_function(operator.getitem, (call, self.kept[owner]))
                    value.meta = {**call.meta, "val": owner.meta["val"]}
                for node in chain:
                    value = _viewed(graph, node, {**given, aliased_argument(node): value}, call)
            user.replace_all_uses_with(value)
            graph.erase_node(user)


def _viewed(graph: torch.fx.Graph, node: Node, values: Mapping[Any, Any], call: Node) -> Node:
    """A view of a region in the graph that calls the region."""
    made = graph.node_copy(node, lambda item: values[item])
    args, kwargs = torch.fx.map_arg((made.args, dict(made.kwargs)), lambda item: item.meta["val"])
    with fake_mode_around([node.meta["val"]]):
        value = made.target(*args, **kwargs)  # type: ignore[operator]
    made.meta = {**call.meta, "val": value}
    return made
