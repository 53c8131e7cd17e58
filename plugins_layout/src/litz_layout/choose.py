"""The plan for a graph, from beginning to end: costs, problem, cut, plan. In: what the hook is handed. Out: a plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from litz.capture.decompositions import FUSED_ATTENTION
from litz.capture.graph import Graph
from litz_layout.costs import Costs
from litz_layout.plan import make_plan
from litz_layout.problem import Needs, Problem, make_problem
from litz_plugins import LayoutPlan, OptionsView, Target

FORCED_US = 1e9
"""What channels first costs a convolution when channels last is forced, in µs."""


def choose_layouts(
    graph: Graph, target: Target, options: OptionsView, needs: Needs, lowered: frozenset[Any]
) -> LayoutPlan:
    """Returns the cheapest layouts of a graph with convolutions on a target. lowered: the ops that are lowered."""
    plan = make_plan(graph, find_problem(graph, target, options, needs, lowered), options["layout.force"])
    return replace(plan, keep_outputs=options["layout.keep_output_strides"] or graph.kind == "backward")


def find_problem(graph: Graph, target: Target, options: OptionsView, needs: Needs, lowered: frozenset[Any]) -> Problem:
    """Returns the problem that a graph poses under these options. lowered: the ops that are lowered."""
    # Kernels of attention, litz's own too, give the strides of the trace.
    loops = frozenset(op for op in lowered if getattr(op, "_opname", "") not in FUSED_ATTENTION)
    problem = make_problem(graph, Costs(graph, target, options), needs, loops, options["layout.keep_output_strides"])
    if options["layout.force"]:
        for variable in problem.variables:
            if variable.node in problem.convolutions and not variable.fixed:
                variable.us = (FORCED_US, 0.0)
    return problem
