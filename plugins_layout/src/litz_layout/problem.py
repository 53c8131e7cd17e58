"""The choice of layouts as a problem on a graph of two-valued variables. In: a Graph. Out: a `Problem`.

A variable is the label (channels first or last) of what one node writes: a convolution's operands and results share
one, a loop has its own, inputs and what others rely on are fixed. Costs, in microseconds: of a label (a convolution's
time), and of two labels that differ: a copy before a library call, made once however many read it, or a loop that reads
across.
All costs of a pair are zero where its labels agree, so that the cheapest labels are a minimum cut (`solve`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from litz.capture.graph import Graph
from litz.capture.layout import pinned_nodes
from litz_layout.costs import ConvolutionCost, Costs
from litz_layout.frames import FIRST, LAST, Orders, convolves_images, find_orders
from litz_layout.roles import CONVOLUTIONS, kind_of
from litz_plugins import LayoutNeed

Needs = Callable[[torch.fx.Node, torch.fx.Node], LayoutNeed]


@dataclass
class Variable:
    """The label of some tensors. node: what writes them. traced: the label when traced. fixed: it has to stay. us: cost
    of either label. why: who fixed it, or where its costs are from."""

    node: torch.fx.Node
    traced: int
    fixed: bool = False
    us: tuple[float, float] = (0.0, 0.0)
    why: str = ""


@dataclass(frozen=True)
class Demand:
    """A user that takes a tensor in one label: that of a variable (a convolution's), or always `label`."""

    user: torch.fx.Node
    variable: int | None
    label: int | None
    why: str


@dataclass(frozen=True)
class Copy:
    """A tensor that some users take in a label of their own: each label costs a copy, where it is not the tensor's."""

    tensor: torch.fx.Node
    variable: int
    us: float
    demands: tuple[Demand, ...]


@dataclass(frozen=True)
class Read:
    """A loop that reads a tensor of one variable and writes one of another: `us` where their labels differ."""

    tensor: torch.fx.Node
    user: torch.fx.Node
    source: int
    target: int
    us: float


@dataclass(frozen=True)
class Problem:
    """Variables, copies and reads; each tensor's orders and variable; the convolutions' costs."""

    variables: tuple[Variable, ...]
    copies: tuple[Copy, ...]
    reads: tuple[Read, ...]
    orders: Mapping[torch.fx.Node, Orders]
    variable_of: Mapping[torch.fx.Node, int]
    convolutions: Mapping[torch.fx.Node, ConvolutionCost] = field(default_factory=dict)


def make_problem(
    graph: Graph, costs: Costs, needs: Needs, lowered: frozenset[Any], keep_output_strides: bool = True
) -> Problem:
    """Returns the problem. keep_output_strides: False frees the layouts of a forward or inference graph's results."""
    return _Maker(graph, costs, needs, lowered, keep_output_strides).make()


class _Maker:
    def __init__(
        self, graph: Graph, costs: Costs, needs: Needs, lowered: frozenset[Any], keep_output_strides: bool
    ) -> None:
        self.graph, self.costs, self.needs, self.lowered = graph, costs, needs, lowered
        self.orders = find_orders(graph, lowered)
        self.pinned, visible = pinned_nodes(graph)
        free = not keep_output_strides and graph.kind != "backward"
        self.returned: frozenset[torch.fx.Node] = frozenset() if free else visible
        self.variables: list[Variable] = []
        self.variable_of: dict[torch.fx.Node, int] = {}
        self.by_writer: dict[torch.fx.Node, int] = {}
        self.convolutions: dict[torch.fx.Node, ConvolutionCost] = {}

    def make(self) -> Problem:
        for node in self.graph.nodes:
            if convolves_images(node):
                self.convolution(node)
            elif node in self.orders:
                self.tensor(node)
        copies: list[Copy] = []
        reads: list[Read] = []
        for node, at in self.variable_of.items():
            if self.orders[node].traced is None and self.variables[at].fixed:
                continue  # in neither layout: what it costs is the same either way
            demands = tuple(self.demands(node))
            if demands:
                copies.append(Copy(node, at, self.scaled(node, self.costs.copy_us(node)), demands))
            reads += self.reads(node, at)
        return Problem(
            tuple(self.variables), tuple(copies), tuple(reads), self.orders, self.variable_of, self.convolutions
        )

    def scaled(self, node: torch.fx.Node, us: float) -> float:
        """Returns the time, doubled in a forward graph for the gradient, but for inputs, which mostly have none."""
        doubled = self.graph.kind == "forward" and node.op != "placeholder"
        return 2 * us if doubled else us

    def convolution(self, node: torch.fx.Node) -> None:
        """Adds one variable for the call: operands are copied to its label, and results have it."""
        tensors = [item for item in (node, *node.users, *node.all_input_nodes) if item in self.orders]
        if not tensors:
            return
        cost = self.costs.convolution(node, with_backward=self.graph.kind == "forward")
        self.convolutions[node] = cost
        results = [item for item in self.results(node) if item in self.orders]
        traced = next((t for item in (*results, *tensors) if (t := self.orders[item].traced) is not None), FIRST)
        fixed = any(item in self.pinned or self.orders[item].traced is None for item in results)
        self.add(node, results, Variable(node, traced, fixed, cost.us, cost.why))

    def results(self, node: torch.fx.Node) -> tuple[torch.fx.Node, ...]:
        return tuple(node.users) if CONVOLUTIONS[node.target].backward else (node,)

    def tensor(self, node: torch.fx.Node) -> None:
        """Gives the node a label: any for what a loop writes, its base's for a view; all else is as it was traced."""
        kind = kind_of(node, self.lowered)
        maker = node.args[0] if kind == "item" else node
        assert isinstance(maker, torch.fx.Node)
        if kind == "item":
            kind = kind_of(maker, self.lowered)
        if kind == "convolution":
            return  # a result of one: done
        if kind == "view":
            base = node.args[0]
            if base in self.variable_of and self.orders[node].traced == self.orders[base].traced:  # type: ignore[index]
                self.variable_of[node] = self.variable_of[base]  # type: ignore[index]
            return
        traced = self.orders[node].traced
        fixed = kind != "loop" or node in self.pinned or traced is None
        if maker in self.by_writer and not fixed:
            self.variable_of[node] = self.by_writer[maker]
            return
        us = (0.0, self.scaled(node, self.costs.parts_us(node)))
        self.add(maker, [node], Variable(node, FIRST if traced is None else traced, fixed, us, _why_fixed(kind)))

    def add(self, writer: torch.fx.Node, tensors: list[torch.fx.Node], variable: Variable) -> None:
        self.by_writer.setdefault(writer, len(self.variables))
        for tensor in tensors:
            self.variable_of[tensor] = len(self.variables)
        self.variables.append(variable)

    def demands(self, tensor: torch.fx.Node) -> Iterator[Demand]:
        """Yields the demand of each user that takes the tensor in a label of its own."""
        traced = self.orders[tensor].traced
        for user in tensor.users:
            kind = kind_of(user, self.lowered)
            if kind == "convolution":
                yield Demand(user, self.by_writer[user], None, f"{user.name} works in it")
            elif kind == "output":
                if tensor in self.returned and traced is not None:
                    yield Demand(user, None, traced, "outputs keep their strides")
            elif kind in ("call", "loop") and traced is not None and self.needs(user, tensor) != "any":
                yield Demand(user, None, traced, f"{user.name} ({user.target}) takes the strides of the trace")
            elif kind == "reshape" and traced is not None and self.leaves(user):
                yield Demand(user, None, traced, f"{user.name} changes the dimensions for a library call")

    def leaves(self, view: torch.fx.Node) -> bool:
        """Returns whether a library call gets what a reshape makes: then its copy would be made there."""
        return any(
            kind_of(user, self.lowered) in ("call", "output", "convolution")
            or user.target in _MATRIX
            or (kind_of(user, self.lowered) in ("view", "reshape") and self.leaves(user))
            for user in view.users
        )

    def reads(self, tensor: torch.fx.Node, at: int) -> Iterator[Read]:
        for user in tensor.users:
            if kind_of(user, self.lowered) != "loop":
                continue
            target = self.by_writer.get(user, self.variable_of.get(user))
            if target is not None and target != at:
                yield Read(tensor, user, at, target, self.scaled(tensor, self.costs.read_us(tensor, user)))


_MATRIX = frozenset(
    getattr(torch.ops.aten, name).default for name in ("mm", "addmm", "bmm", "baddbmm", "mv", "_int_mm", "_scaled_mm")
)
"""Library calls that litz lowers by itself, so that they count as lowered."""


def _why_fixed(kind: str) -> str:
    return {"source": "an input", "call": "a library call's result", "reshape": "a view"}.get(kind, "")


def energy(problem: Problem, labels: tuple[int, ...]) -> float:
    """Returns the µs of all convolutions, copies and reads under these labels, one per variable."""
    total = sum(variable.us[label] for variable, label in zip(problem.variables, labels, strict=True))
    for copy in problem.copies:
        wanted = {label_of(demand, labels) for demand in copy.demands}
        total += copy.us * len(wanted - {labels[copy.variable]})
    return total + sum(read.us for read in problem.reads if labels[read.source] != labels[read.target])


def label_of(demand: Demand, labels: tuple[int, ...]) -> int:
    """Returns the label that a user takes a tensor in."""
    if demand.variable is not None:
        return labels[demand.variable]
    assert demand.label in (FIRST, LAST)
    return demand.label
