"""Applying a plugin's layout plan: the tensors of a graph get the strides that the plan gives them.

Strides of a graph are in its fake tensors. Lowering allocates what loops write with them, and copies what a library
call returns in other strides; so a plan changes speed and memory order, never a value. What the user sees keeps its
strides, and a library call that wants the strides of the trace gets them, whatever the plan says.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from litz.capture import torch_api
from litz.capture.graph import Graph
from litz.capture.joint.size_readers import lay_out
from litz.capture.layout_needs import LayoutNeeds, Needs
from litz_plugins import Conversion, Decision, LayoutPlan

aten = torch.ops.aten


def apply_layout(
    graph: Graph, plan: LayoutPlan, plugin: str, note: Callable[[Decision], None], needs: Needs | None = None
) -> Graph:
    """The graph with the plan's strides and conversions, and a decision on record for each.

    needs: how library calls take their tensors. ValueError if the plan names a node that is not there, is no tensor, or
    has another number of dimensions.
    """
    nodes = {node.name: node for node in graph.nodes}
    conversions = [_checked(nodes, conversion, plugin) for conversion in plan.conversions]
    kept = _kept(graph, conversions, plan.keep_outputs)
    values: dict[torch.fx.Node, Any] = {}
    for name, order in plan.strides.items():
        value = _tensor(nodes, name, order, plugin)
        node, reason = nodes[name], plan.reasons.get(name, "")
        if _viewed(node) is not None:
            note(Decision("graph", name, "as it was", "a view lies as what it is a view of", plugin=plugin))
            continue
        if node in kept:
            note(Decision("graph", name, "as it was", "inputs and outputs keep their strides", plugin=plugin))
            continue
        values[node] = restrided(value, order)
        note(Decision("graph", name, f"strides {tuple(values[node].stride())}", reason, plugin=plugin))
    conversions += _follow(graph, values, conversions, needs or LayoutNeeds().of)
    for conversion in conversions:
        cost = () if conversion.us is None else (("the copy", conversion.us),)
        subject = f"{conversion.tensor} for {', '.join(conversion.users)}"
        chosen = f"copied in the order {conversion.order}"
        note(Decision("graph", subject, chosen, conversion.reason, cost, plugin=plugin))
    for decision in plan.decisions:
        note(replace(decision, plugin=plugin))
    return _rebuilt(graph, values, conversions) if values or conversions else graph


def restrided(value: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """Returns a fake tensor like `value`, but dense, with its dimensions in memory in the given order, the outermost
    first."""
    stride: list[int | torch.SymInt] = [0] * value.dim()
    step: int | torch.SymInt = 1
    for dim in reversed(order):
        stride[dim] = step
        step = step * value.shape[dim]
    with torch_api.fake_mode_around([value]):
        return torch.empty_strided(value.shape, stride, dtype=value.dtype, device=value.device)


def changed_strides(before: Graph, after: Graph) -> tuple[tuple[Any, ...] | None, ...] | None:
    """Returns, for each output, its strides (ints or SymInts) if they differ from those before, else None; None if no
    output's strides have changed."""
    found = tuple(
        _new_strides(old.meta.get("val"), new.meta.get("val"))
        if isinstance(old, torch.fx.Node) and isinstance(new, torch.fx.Node)
        else None
        for old, new in zip(before.outputs, after.outputs, strict=True)
    )
    return found if any(strides is not None for strides in found) else None


def _new_strides(old: Any, new: Any) -> tuple[Any, ...] | None:
    if not isinstance(old, torch.Tensor) or not isinstance(new, torch.Tensor):
        return None
    return None if _alike(old, new) else tuple(new.stride())


def _alike(old: torch.Tensor, new: torch.Tensor) -> bool:
    """Returns whether two fake tensors of a size have equal strides; without a guard."""
    return all(torch_api.same_statically(a, b) for a, b in zip(old.stride(), new.stride(), strict=True))


def pinned_nodes(graph: Graph) -> tuple[frozenset[torch.fx.Node], frozenset[torch.fx.Node]]:
    """(nodes whose strides somebody else relies on, nodes that the user gets and that nobody else relies on).

    The first: inputs; what is written in place; what `as_strided` looks into; what a visible output is a view of. The
    second may have other strides inside the graph if the output is copied back.
    """
    visible = {item for at in graph.visible_outputs if isinstance(item := graph.outputs[at], torch.fx.Node)}
    viewed: set[torch.fx.Node] = set()
    for node in reversed(graph.nodes):
        base = _viewed(node)
        if base is not None and (node in visible or node in viewed or node.target is aten.as_strided.default):
            viewed.add(base)
            if node in visible:
                viewed.add(node)
        viewed.update(torch_api.written_arguments(node))
    inputs = {node for node in graph.nodes if node.op in ("placeholder", "get_attr")}
    return frozenset(viewed | inputs), frozenset(visible - viewed - inputs)


def _viewed(node: torch.fx.Node) -> torch.fx.Node | None:
    """Returns the node that `node` is a view of. One of several results is a view only if the op makes views."""
    if node.op != "call_function":
        return None
    base = torch_api.aliased_argument(node)
    if getattr(node.target, "__name__", "") == "getitem" and base is not None:
        return torch_api.aliased_argument(base) if base.op == "call_function" else None
    return base


def _kept(graph: Graph, conversions: Iterable[Conversion], keep_outputs: bool) -> frozenset[torch.fx.Node]:
    """Nodes that the plan may not touch: pinned ones, and visible outputs that it does not copy back."""
    pinned, visible = pinned_nodes(graph)
    if not keep_outputs:
        return pinned
    returned = {item.tensor for item in conversions if graph.output_node.name in item.users}
    return pinned | {node for node in visible if node.name not in returned}


def _tensor(nodes: Mapping[str, torch.fx.Node], name: str, order: Sequence[int], plugin: str) -> torch.Tensor:
    value = nodes[name].meta.get("val") if name in nodes else None
    if not isinstance(value, torch.Tensor) or value.dim() != len(order):
        raise ValueError(f"plugin {plugin} plans the order {order} for {name}: the graph has no such tensor")
    return value


def _checked(nodes: Mapping[str, torch.fx.Node], conversion: Conversion, plugin: str) -> Conversion:
    _tensor(nodes, conversion.tensor, conversion.order, plugin)
    for user in conversion.users:
        if user not in nodes or nodes[conversion.tensor] not in nodes[user].all_input_nodes:
            raise ValueError(f"plugin {plugin} converts {conversion.tensor} for {user}, which does not read it")
    return conversion


def _follow(
    graph: Graph, values: dict[torch.fx.Node, Any], planned: Iterable[Conversion], needs: Needs
) -> list[Conversion]:
    """Returns the conversions that follow from changed values, in the graph's order: for users that want the traced
    order, and views that only it allows. Views of a changed tensor lie as it does (`values` grows)."""
    orders = {(item.tensor, user): item.order for item in planned for user in item.users}
    found: list[Conversion] = []

    def take_back(tensor: torch.fx.Node, user: torch.fx.Node, reason: str) -> None:
        order = traced_order(graph, tensor.meta["val"])
        orders[tensor.name, user.name] = order
        found.append(Conversion(tensor.name, order, (user.name,), f"{user.target} {reason}"))

    def seen_by(user: torch.fx.Node, tensor: torch.fx.Node) -> Any:
        order = orders.get((tensor.name, user.name))
        return values.get(tensor, tensor.meta.get("val")) if order is None else restrided(tensor.meta["val"], order)

    for node in graph.nodes:
        if node.op != "call_function":
            continue
        for tensor in node.all_input_nodes:
            changed = tensor in values and isinstance(values[tensor], torch.Tensor)
            if changed and (tensor.name, node.name) not in orders and needs(node, tensor) != "any":
                take_back(tensor, node, "takes the strides of the trace")
        base = _viewed(node)
        if base is None or not any(i in values or (i.name, node.name) in orders for i in node.all_input_nodes):
            continue
        try:
            value = _recomputed(node, seen_by)
        except (RuntimeError, ValueError):  # torch's words for "no view of such strides"
            take_back(base, node, "is a view of the strides of the trace only")
            value = _recomputed(node, seen_by)
        if not _lie_alike(value, node.meta["val"]):
            values[node] = value
    return found


def _recomputed(node: torch.fx.Node, seen_by: Callable[[torch.fx.Node, torch.fx.Node], Any]) -> Any:
    """The fake value of a view of what its arguments are now."""
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda item: seen_by(node, item))
    with torch_api.fake_mode_around(tree_leaves(args)):
        return node.target(*args, **kwargs)  # type: ignore[operator]


def _lie_alike(a: Any, b: Any) -> bool:
    """Returns whether fake tensors, or lists of them, have equal strides and begin at the same place."""
    return all(
        _alike(mine, theirs) and torch_api.same_statically(mine.storage_offset(), theirs.storage_offset())
        for mine, theirs in zip(tree_leaves(a), tree_leaves(b), strict=True)
        if isinstance(mine, torch.Tensor)
    )


def traced_order(graph: Graph, value: torch.Tensor) -> tuple[int, ...]:
    """The dimensions of a fake tensor from the outermost to the innermost; of equal strides the earlier is outer.

    A dimension of extent 1 lies anywhere: it goes where a row-major tensor has it.
    """

    def stride(dim: int) -> int:
        return graph.hint(value.stride(dim))

    real = [dim for dim in range(value.dim()) if graph.hint(value.shape[dim]) != 1]
    order = sorted(real, key=lambda dim: (-stride(dim), dim))
    for dim in range(value.dim()):
        if dim not in real:
            order.insert(next((at for at, other in enumerate(order) if other > dim), len(order)), dim)
    return tuple(order)


def _rebuilt(graph: Graph, values: Mapping[torch.fx.Node, Any], conversions: Sequence[Conversion]) -> Graph:
    """A new FX graph: the same nodes with other strides, and a clone before the first user of each conversion."""
    wanted = {(item.tensor, user): item for item in conversions for user in item.users}
    results = _results(values)
    copied = torch.fx.Graph()
    mapping: dict[torch.fx.Node, torch.fx.Node] = {}
    clones: dict[tuple[str, tuple[int, ...]], torch.fx.Node] = {}
    for node in graph.nodes:
        swapped: dict[torch.fx.Node, torch.fx.Node] = {}
        for source in node.all_input_nodes:
            item = wanted.get((source.name, node.name))
            if item is not None:
                key = (item.tensor, item.order)
                if key not in clones:
                    clones[key] = copied.call_function(aten.clone.default, (mapping[source],))
                    clones[key].meta = {"val": restrided(source.meta["val"], item.order)}
                swapped[source] = clones[key]
        mapping[node] = copied.node_copy(node, ChainMap(swapped, mapping).__getitem__)
        if node in results:
            mapping[node].meta["val"] = results[node]
            lay_out(mapping[node], results[node])
    module = torch_api.make_graph_module(graph.module, copied, type(graph.module).__name__)
    return replace(graph, module=module)


def _results(values: Mapping[torch.fx.Node, Any]) -> dict[torch.fx.Node, Any]:
    """The values to set: a getitem's is one of its op's results, too."""
    found: dict[torch.fx.Node, Any] = dict(values)
    for node, value in values.items():
        source = node.args[0] if node.args else None
        if getattr(node.target, "__name__", "") == "getitem" and isinstance(source, torch.fx.Node):
            parts = list(found.get(source, source.meta["val"]))
            parts[int(node.args[1])] = value  # type: ignore[arg-type]
            found[source] = tuple(parts)
    return found
