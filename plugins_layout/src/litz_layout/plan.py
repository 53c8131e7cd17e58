"""From labels to a `LayoutPlan`: which tensors change, which copies are made and who asked for them."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import torch

from litz.capture import torch_api
from litz.capture.graph import Graph
from litz_layout.costs import case_of
from litz_layout.frames import LAST, NAMES
from litz_layout.measured import to_json
from litz_layout.picture import draw
from litz_layout.problem import Problem, energy, label_of
from litz_layout.solve import solve
from litz_layout.summary import make_table
from litz_plugins import Conversion, Decision, LayoutPlan

LEAST = 0.01
"""Part of the time of convolutions, copies and reads that a plan has to save."""

SAVED = 1 / 64
"""Share of what a forward saves for its backward that copies of weights may add: a larger one is copied once more."""


def make_plan(graph: Graph, problem: Problem, forced: bool = False) -> LayoutPlan:
    """Returns the cheapest plan. A plan without changes says why. forced: its costs are not the true ones."""
    traced = tuple(variable.traced for variable in problem.variables)
    labels = solve(problem)
    before, after = energy(problem, traced), energy(problem, labels)
    costs = () if forced else (("as traced", before), ("planned", after))
    pays = forced or before - after >= LEAST * before
    if labels == traced:
        decision = Decision("graph", graph.name, "layouts left alone", why_left_alone(problem), costs)
        return LayoutPlan({}, decisions=(decision,), attachments=_attachments(graph, problem, labels, ()))
    strides: dict[str, tuple[int, ...]] = {}
    reasons: dict[str, str] = {}
    for node, at in problem.variable_of.items():
        if labels[at] != traced[at] and node.op == "call_function" and not _is_view(node):
            strides[node.name] = problem.orders[node][labels[at]]
            reasons[node.name] = f"{NAMES[labels[at]]} is cheapest for the graph"
    conversions = _saved_as_copied(graph, _conversions(problem, labels))
    saved = f"{before - after:.1f} µs surely saved{' with the backward' if graph.kind == 'forward' else ''}"
    count = sum(label == LAST and node in problem.convolutions for node, label in _calls(problem, labels))
    reason = (
        f"{count} of {len(problem.convolutions)} convolutions channels last, {len(conversions)} copies; "
        f"{'by layout.force' if forced else saved}"
    )
    decision = Decision("graph", graph.name, "layouts planned", reason, costs)
    attachments = _attachments(graph, problem, labels, conversions)
    if not pays:
        reason = f"a plan would save {before - after:.1f} of {before:.0f} µs, less than the estimate is good for"
        decision = Decision("graph", graph.name, "layouts left alone", reason, costs)
        attachments = _attachments(graph, problem, traced, ())
    us = None if forced else (before, after)
    return LayoutPlan(strides, reasons, conversions, (decision,), attachments=attachments, us=us, pays=pays)


def _attachments(
    graph: Graph, problem: Problem, labels: tuple[int, ...], conversions: tuple[Conversion, ...]
) -> dict[str, str]:
    """Returns the files for a report, by name; none where no convolution chooses."""
    if not problem.convolutions:
        return {}
    cases = [case_of(graph, node) for node in problem.convolutions]
    return {
        "convolutions.json": to_json(cases),
        "layouts.txt": make_table(problem, labels, conversions),
        "layouts.svg": draw(problem, labels, conversions),
    }


def _calls(problem: Problem, labels: tuple[int, ...]) -> list[tuple[torch.fx.Node, int]]:
    return [(variable.node, label) for variable, label in zip(problem.variables, labels, strict=True)]


def _is_view(node: torch.fx.Node) -> bool:
    return torch_api.aliased_argument(node) is not None and getattr(node.target, "__name__", "") != "getitem"


def _conversions(problem: Problem, labels: tuple[int, ...]) -> list[Conversion]:
    found: list[Conversion] = []
    traced = tuple(variable.traced for variable in problem.variables)
    for copy in problem.copies:
        for label in sorted({label_of(demand, labels) for demand in copy.demands} - {labels[copy.variable]}):
            demands = [demand for demand in copy.demands if label_of(demand, labels) == label]
            if labels[copy.variable] == traced[copy.variable] and all(
                label_of(demand, traced) == label for demand in demands
            ):
                continue  # as it was: the library copies by itself, as in eager
            users = tuple(dict.fromkeys(demand.user.name for demand in demands))
            why = "; ".join(dict.fromkeys(demand.why for demand in demands))
            order = problem.orders[copy.tensor][label]
            found.append(Conversion(copy.tensor.name, order, users, f"{NAMES[label]}: {why}", copy.us))
    return found


def _saved_as_copied(graph: Graph, conversions: list[Conversion]) -> tuple[Conversion, ...]:
    """Weights that were copied for the forward are saved for the backward as the copies, so that they are copied once:
    the smallest first, while the copies add little to what is saved. The weights themselves are there anyway."""
    named = {node.name: node for node in graph.module.graph.nodes}
    nbytes = [_nbytes(graph, named[conversion.tensor]) for conversion in conversions]
    room = SAVED * sum(_nbytes(graph, node) for node in _saved(graph))
    found: dict[int, Conversion] = {}
    for at in sorted(range(len(conversions)), key=nbytes.__getitem__):
        saved = _saved_too(graph, conversions[at])
        if saved is not None and nbytes[at] <= room:
            room -= nbytes[at]
            found[at] = saved
    return tuple(found.get(at, conversion) for at, conversion in enumerate(conversions))


def _saved(graph: Graph) -> set[torch.fx.Node]:
    """Returns what a forward makes for its backward alone, views left out."""
    outputs = {item for at, item in enumerate(graph.outputs) if at not in graph.visible_outputs}
    nodes = {item for item in outputs if isinstance(item, torch.fx.Node) and item.op == "call_function"}
    return {node for node in nodes if isinstance(node.meta.get("val"), torch.Tensor) and not _is_view(node)}


def _nbytes(graph: Graph, node: torch.fx.Node) -> int:
    value = node.meta["val"]
    return prod(graph.hint(size) for size in value.shape) * int(value.dtype.itemsize)


def _saved_too(graph: Graph, conversion: Conversion) -> Conversion | None:
    """The conversion of an input, for the backward as well; None where that saves another tensor, or none."""
    outputs = [at for at, item in enumerate(graph.outputs) if getattr(item, "name", "") == conversion.tensor]
    inputs = [at for at, node in enumerate(graph.placeholders) if node.name == conversion.tensor]
    if not outputs or not inputs or graph.visible_outputs.intersection(outputs):
        return None
    if graph.mutated_inputs.intersection(inputs):
        return None
    reason = f"{conversion.reason}; and for the backward"
    return replace(conversion, users=(*conversion.users, graph.output_node.name), reason=reason)


def why_left_alone(problem: Problem) -> str:
    """Returns one sentence that says why layouts stay: there is nothing to choose, or the convolutions' rows say so."""
    if not problem.convolutions:
        return "the graph has no convolution of images or volumes"
    if all(variable.traced == LAST for variable in problem.variables if variable.node in problem.convolutions):
        return "the graph's convolutions are channels last already"
    reasons = dict.fromkeys(cost.why for cost in problem.convolutions.values() if cost.native != "channels last")
    saved = sum(max(0.0, cost.us[0] - cost.us[1]) for cost in problem.convolutions.values())
    if saved == 0:
        return "no convolution gains: " + "; ".join(reasons)
    return f"the copies would cost more than the {saved:.1f} µs that its convolutions would gain"
