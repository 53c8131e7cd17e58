"""Regions of `torch.compiler.nested_compile_region`: written into the graph that calls them, or kept.

In: dynamo's graph. Out: the same graph with the operations of a region in the place of each call, so that autograd,
passes and memory planning see what the region computes and which of its results are views. A region that is kept is
compiled once, forward and backward, however many calls there are.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves, tree_map_only

from .fake import fake_mode_around
from .random import is_random

Keeps = Callable[[str, int, GraphModule], bool]
"""(the name of a region, how many calls it has, its graph) -> is the region kept?"""


def inline_regions(module: GraphModule, keeps: Keeps = lambda name, calls, body: False) -> None:
    """Replaces the calls of regions in `module`, and in bodies of other ops, by the region's operations, but for those
    of regions that are kept. Regions within a region that is kept are written into that region."""
    regions = [body for body, _ in region_calls(module).values()]
    for body in module.children():
        if isinstance(body, GraphModule) and body not in regions:
            inline_regions(body)  # of a checkpoint: what it computes again has to be seen
    kept = set[GraphModule]()
    while found := {name: shared for name, shared in region_calls(module).items() if shared[0] not in kept}:
        for name, (body, calls) in found.items():
            if keeps(name, len(calls), body):
                kept.add(body)
                inline_regions(body)
            else:
                for call in calls:
                    _inline(module, body, call)
        module.recompile()


def region_calls(module: GraphModule) -> dict[str, tuple[GraphModule, list[Node]]]:
    """Returns the regions that a graph calls, and their calls, by the attribute of the graph's module."""
    found: dict[GraphModule, tuple[str, list[Node]]] = {}
    for call in module.graph.find_nodes(op="call_function", target=torch.ops.higher_order.invoke_subgraph):
        name = str(call.args[0].target)
        found.setdefault(module.get_submodule(name), (name, []))[1].append(call)  # type: ignore[arg-type]
    return {name: (body, calls) for body, (name, calls) in found.items()}


def _inline(module: GraphModule, region: GraphModule, call: Node) -> None:
    place, _, *operands = call.args
    assert isinstance(place, Node)
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


class RegionWork(TorchDispatchMode):
    """The work of a call of a region. problem: why the region cannot be kept, '' if it can. flops: of contractions.
    moved: bytes that contractions, or else the call as a whole, read and write. results: bytes of the results. draws:
    does the region draw random numbers? like: a tensor of its type and device."""

    problem, flops, moved, results, draws = "", 0.0, 0.0, 0.0, False
    like: torch.Tensor | None = None

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation, and notes what it does."""
        from torch.utils.flop_counter import flop_registry

        made = op(*args, **(kwargs or {}))
        self.draws |= is_random(op)
        if (formula := flop_registry.get(op._overloadpacket)) is not None:
            self.flops += _hint(formula(*args, **(kwargs or {}), out_val=made))
            self.moved += _bytes(tree_leaves((args, kwargs, made)))
        return made


def work_of(region: GraphModule) -> RegionWork:
    """Returns what a call of a region does, from a run of its graph with fake tensors."""
    graph, work = torch.fx.Graph(), RegionWork()
    graph.output(graph.graph_copy(region.graph, {}))
    inline_regions(body := GraphModule(region, graph))
    given = [node.meta.get("example_value") for node in graph.find_nodes(op="placeholder")]
    tensors = [value for value in given if isinstance(value, torch.Tensor)]
    sizes = [value for value in given if isinstance(value, (int, torch.SymInt))]
    hop = import_module("torch._higher_order_ops.invoke_subgraph")
    problems = {
        "this torch pairs forward and backward by their order": not hasattr(hop, "_next_invoke_subgraph_call_id"),
        "the region takes no tensors": not tensors,
        "the region takes more than tensors and sizes": len(tensors) + len(sizes) < len(given)
        or any(map(is_traceable_wrapper_subclass, tensors)),
        "the region has tensors or bodies of its own": bool(graph.find_nodes(op="get_attr")),
        "the region finds out sizes": any(node.meta.get("unbacked_bindings") for node in graph.nodes),
    }
    work.problem = next((problem for problem, found in problems.items() if found), "")
    if work.problem:
        return work
    with fake_mode_around(tensors), torch.no_grad(), work:
        fresh = tree_map_only(torch.Tensor, lambda t: t.new_empty_strided(t.shape, t.stride()), given)
        made = tree_leaves(torch.fx.Interpreter(body).run(*fresh))
    if any(value._version for value in fresh if isinstance(value, torch.Tensor)):
        work.problem = "the region writes what it is given"
    work.results = _bytes(made)
    work.moved = max(work.moved, _bytes(tensors) + work.results)
    work.like = next((value for value in made if isinstance(value, torch.Tensor)), tensors[0])
    return work


def _bytes(values: Iterable[Any]) -> float:
    return float(sum(_hint(value.numel()) * value.itemsize for value in values if isinstance(value, torch.Tensor)))


def _hint(number: Any) -> Any:
    return number.node.hint if isinstance(number, torch.SymInt) else number
