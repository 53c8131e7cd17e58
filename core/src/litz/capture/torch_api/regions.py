"""Regions of `torch.compiler.nested_compile_region`, written into the graph that calls them.

In: dynamo's graph. Out: the same graph with the operations of each region in the place of each call, so that autograd,
passes and memory planning see what a region computes and which of its results are views. A region compiles as often as
the graph calls it.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Node


def inline_regions(module: torch.fx.GraphModule) -> None:
    """Replaces every call of a region in `module`, and in regions themselves, by the region's operations."""
    graph = module.graph
    calls = graph.find_nodes(op="call_function", target=torch.ops.higher_order.invoke_subgraph)
    for call in calls:
        _inline(module, call)
    if calls:
        module.recompile()


def _inline(module: torch.fx.GraphModule, call: Node) -> None:
    place, _, *operands = call.args
    assert isinstance(place, Node)
    region = module.get_submodule(str(place.target))
    assert isinstance(region, torch.fx.GraphModule)
    inline_regions(region)
    graph = module.graph
    values: dict[Node, Any] = dict(zip(region.graph.find_nodes(op="placeholder"), operands, strict=True))
    with graph.inserting_before(call):
        for held in region.graph.find_nodes(op="get_attr"):
            name = f"{place.target}_{held.target}".replace(".", "_")
            setattr(module, name, operator.attrgetter(held.target)(region))
            values[held] = graph.get_attr(name)
            values[held].meta = dict(held.meta)
        results: Any = graph.graph_copy(region.graph, values)
    for user in list(call.users):
        assert user.target is operator.getitem, user
        user.replace_all_uses_with(results[user.args[1]])
        graph.erase_node(user)
    graph.erase_node(call)
    if not place.users:
        graph.erase_node(place)
