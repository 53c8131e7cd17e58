"""The plan for a graph, from beginning to end: costs, problem, cut, plan. In: what the hook is handed. Out: a plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from litz.capture.graph import Graph
from litz.lower import core_lowerings
from litz_layout.costs import Costs
from litz_layout.plan import make_plan
from litz_layout.problem import Needs, Problem, make_problem
from litz_plugins import LayoutPlan, OptionsView, Target

FORCED_US = 1e9
"""What channels first costs a convolution when channels last is forced, in µs."""


def choose_layouts(graph: Graph, target: Target, options: OptionsView, needs: Needs) -> LayoutPlan:
    """Returns the cheapest layouts of a graph with convolutions on a target."""
    plan = make_plan(graph, find_problem(graph, target, options, needs), options["layout.force"])
    return replace(plan, keep_outputs=options["layout.keep_output_strides"] or graph.kind == "backward")


def find_problem(graph: Graph, target: Target, options: OptionsView, needs: Needs) -> Problem:
    """Returns the problem that a graph poses under these options."""
    problem = make_problem(graph, Costs(graph, target, options), needs, _loops(), options["layout.keep_output_strides"])
    if options["layout.force"]:
        for variable in problem.variables:
            if variable.node in problem.convolutions and not variable.fixed:
                variable.us = (FORCED_US, 0.0)
    return problem


def _loops() -> frozenset[Any]:
    return frozenset(core_lowerings())
