"""Calls with one order of additions for each result: a pass. In and out: a Graph."""

from __future__ import annotations

from torch import Tensor
from torch.utils._pytree import tree_leaves

from litz.capture.graph import Graph
from litz.capture.passes.decompose import decompose
from litz_plugins import PassContext

from . import attention, convolutions, orders
from .errors import NumbersError

RULES = {**orders.RULES, **attention.RULES, **convolutions.RULES}
"""Ops and how each is written with a fixed order."""


def fix_orders(graph: Graph, context: PassContext) -> Graph:
    """Returns the graph with products, convolutions, attention and sums in pieces whose order is fixed (a pass).
    Errors: NumbersError for a graph on another device than a CPU."""
    values = [value for node in graph.nodes for value in tree_leaves(node.meta.get("val")) if isinstance(value, Tensor)]
    for device in {value.device for value in values if value.device.type != "cpu"}:
        raise NumbersError(
            f"numerics.batch_invariant cannot be kept on {device}: the orders of additions are those of CPU kernels",
            todo="leave the option out, or compile for the CPU",
        )
    return decompose(graph, [node for node in graph.nodes if node.target in RULES], RULES)
