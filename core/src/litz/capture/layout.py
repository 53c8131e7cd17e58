"""Applying a plugin's layout plan: the tensors of a graph get the strides that the plan gives them.

Strides of a graph are in its fake tensors. Lowering allocates what loops write with them, and copies what a library
call returns in other strides; so a plan changes speed and memory order, never a value. What the user sees keeps its
strides: outputs and inputs are left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from litz.capture import torch_api
from litz.capture.graph import Graph
from litz_plugins import Decision, LayoutPlan


def apply_layout(graph: Graph, plan: LayoutPlan, plugin: str, note: Callable[[Decision], None]) -> Graph:
    """The graph with the plan's strides, and a decision on record for each tensor that the plan names.

    ValueError if the plan names a node that is not there, is no tensor, or has another number of dimensions.
    """
    nodes = {node.name: node for node in graph.nodes}
    kept = {node for node in graph.outputs if isinstance(node, torch.fx.Node)} | set(graph.placeholders)
    values: dict[str, torch.Tensor] = {}
    for name, order in plan.strides.items():
        value = nodes[name].meta.get("val") if name in nodes else None
        if not isinstance(value, torch.Tensor) or value.dim() != len(order):
            raise ValueError(f"plugin {plugin} plans the order {order} for {name}: the graph has no such tensor")
        reason = plan.reasons.get(name, "")
        if nodes[name] in kept:
            note(Decision("graph", name, "as it was", "inputs and outputs keep their strides", plugin=plugin))
            continue
        values[name] = _restrided(value, order)
        note(Decision("graph", name, f"strides {tuple(values[name].stride())}", reason, plugin=plugin))
    return _with_values(graph, values) if values else graph


def _restrided(value: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """A fake tensor of the same size, dense, its dimensions from the outermost to the innermost as in `order`."""
    stride: list[int | torch.SymInt] = [0] * value.dim()
    step: int | torch.SymInt = 1
    for dim in reversed(order):
        stride[dim] = step
        step = step * value.shape[dim]
    mode = torch_api.fake_mode_of([value])
    assert mode is not None, "a graph's tensors are fake"
    with mode:
        return torch.empty_strided(value.shape, stride, dtype=value.dtype, device=value.device)


def _with_values(graph: Graph, values: dict[str, torch.Tensor]) -> Graph:
    copied = torch.fx.Graph()
    mapping: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in graph.nodes:
        fresh = copied.node_copy(node, lambda n: mapping[n])
        fresh.meta = {**node.meta, "val": values[node.name]} if node.name in values else dict(node.meta)
        mapping[node] = fresh
    return replace(graph, module=torch.fx.GraphModule(graph.module, copied))
