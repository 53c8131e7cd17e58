"""A joint graph cut in two: which tensors the forward keeps, at a price per byte.

In: a joint graph, and a price. Out: the nodes that are kept, and those that the backward computes again. The two cost
the least together: bytes times the price for what is kept, and the time of what is computed again. A minimum cut has
them: each node of the forward is an edge from its "in" to its "out" that costs what it costs to keep its result; an
edge from the source to its "in" costs what it costs to compute it again. What the backward reads is at the sink.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any, cast

import torch
from torch.utils.checkpoint import CheckpointPolicy

from litz.capture.joint.nouns import JointGraph
from litz.capture.torch_api import aliased_argument, is_tangent, min_cut
from litz_plugins import TargetOf

from ..nodes import AGAIN, needed_by, policy_of
from .prices import has_the_same_bits, may_run_again, price
from .sizes import Sizes

Nodes = Set[torch.fx.Node]
Modules = tuple[torch.fx.GraphModule, torch.fx.GraphModule]
NONE: Nodes = frozenset()


@dataclass(frozen=True)
class Cut:
    """kept: nodes whose results the forward saves. again: nodes that the backward computes again."""

    kept: frozenset[torch.fx.Node]
    again: frozenset[torch.fx.Node]


@dataclass(frozen=True, eq=False)
class Cutter:
    """The cuts of one joint graph. target_of: gives the figures by which nodes are priced. usual: the forward and the
    backward that there are without a budget; what that backward computes is free to compute again. strict: may only
    that be computed again which has the same bits then?"""

    joint: JointGraph
    sizes: Sizes
    target_of: TargetOf
    usual: Modules
    strict: bool = False

    @cached_property
    def forward(self) -> tuple[torch.fx.Node, ...]:
        """Returns the nodes that a forward can compute, in order: no gradient of a result is needed for them."""
        behind = set[torch.fx.Node]()
        for node in self.joint.nodes:
            if is_tangent(node) or not behind.isdisjoint(node.all_input_nodes):
                behind.add(node)
        needed = needed_by(self.joint.outputs) - behind
        return tuple(node for node in self.joint.nodes if node in needed)

    @cached_property
    def of_results(self) -> tuple[torch.fx.Node, ...]:
        """Returns those of the forward's nodes that its results need."""
        needed = needed_by(self.joint.outputs[: self.joint.forward_outputs])
        return tuple(node for node in self.forward if node in needed)

    @cached_property
    def computed(self) -> frozenset[str]:
        """Returns the names of the nodes that the usual backward computes."""
        return frozenset(node.name for node in self.usual[1].graph.nodes if node.op == "call_function")

    @cached_property
    def read_later(self) -> Nodes:
        """Returns the nodes of the forward whose results the backward reads, whatever is kept."""
        gradients = self.joint.outputs[self.joint.forward_outputs :]
        inside = set(self.forward)
        later = needed_by(gradients) - inside
        found = {item for node in later for item in node.all_input_nodes if item in inside}
        return found | {item for item in gradients if item in inside}

    @cached_property
    def prices(self) -> dict[torch.fx.Node, float]:
        """Returns the time of each node of the forward, in µs."""
        return {
            node: 0.0 if node.name in self.computed else price(node, self.sizes, self.target_of)
            for node in self.forward
        }

    def cut(self, per_byte: float, fixed: Nodes = NONE, dropped: Nodes = NONE) -> Cut | None:
        """Returns the cheapest cut at a price of so many µs per byte; None where there is no cut. fixed: nodes that are
        not to be computed again. dropped: nodes that are not to be kept."""
        import networkx  # torch's partitioner needs it, too

        graph, inside = networkx.DiGraph(), set(self.forward)
        for node in self.forward:
            into, out = (node.name, "in"), (node.name, "out")
            told, keeping = policy_of(node) in AGAIN, self._keeping(node)
            if told:
                graph.add_edge(into, "sink", capacity=inf)
            stays = node in fixed and node not in dropped and keeping < inf
            once = not told and (stays or not self.may_run_again(node))
            graph.add_edge("source", into, capacity=inf if once else self.prices[node])
            graph.add_edge(into, out, capacity=inf if told or node in dropped else keeping * per_byte)
            if node in self.read_later:
                graph.add_edge(out, "sink", capacity=inf)
            for user in node.users:
                if user in inside:
                    graph.add_edge(out, (user.name, "in"), capacity=inf)
        if "sink" not in graph:
            return Cut(frozenset(), frozenset())
        try:
            _, (near, _) = networkx.minimum_cut(graph, "source", "sink")
        except networkx.NetworkXUnbounded:
            return None
        return self._needed({node for node in self.forward if (node.name, "in") in near})

    def may_run_again(self, node: torch.fx.Node) -> bool:
        """Returns whether the backward may compute a node again."""
        return may_run_again(node) and (not self.strict or has_the_same_bits(node))

    def _keeping(self, node: torch.fx.Node) -> float:
        """Returns the bytes that keeping a node's result takes: none for an input, endless for what is no tensor of its
        own."""
        if node.op == "placeholder":
            return 0.0
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            return 8
        viewed = aliased_argument(node) is not None and self._is_whole(node) and policy_of(node) is None
        if not isinstance(value, torch.Tensor) or viewed:
            return inf
        return float(self.sizes.nbytes(node)) or 1.0

    def _is_whole(self, node: torch.fx.Node) -> bool:
        """Returns whether a node is a view of a tensor, which may be kept as well."""
        base = aliased_argument(node)
        return base is not None and isinstance(base.meta.get("val"), torch.Tensor)

    def _needed(self, there: Nodes) -> Cut:
        """Returns what is kept and what is computed again, of what the backward needs. there: nodes whose inputs the
        forward alone has, so that they are kept or not needed."""
        kept, again = set[torch.fx.Node](), set[torch.fx.Node]()
        queue = list(self.read_later) + [node for node in self.forward if policy_of(node) in AGAIN]
        while queue:
            node = queue.pop()
            if node in kept or node in again:
                continue
            if node in there:
                kept.add(node)
            else:
                again.add(node)
                queue += node.all_input_nodes
        return Cut(frozenset(kept), frozenset(again))

    def halves(self, cut: Cut) -> Modules:
        """Returns the forward and the backward of a cut, made by torch's partitioner: it knows what has to follow
        where random operations, collectives or effects are saved or computed again."""
        joint, told = self.joint.copy(), {node.name for node in self.joint.nodes if policy_of(node) is not None}
        kept, again = {node.name for node in cut.kept}, {node.name for node in cut.again}
        for node in joint.nodes:
            if node.op != "call_function" or policy_of(node) is not None:
                continue
            if node.name in again:
                node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
            elif node.name in kept:
                node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
        modules = min_cut(joint)
        for node in (node for module in modules for node in module.graph.nodes if node.name not in told):
            node.meta.pop("recompute", None)  # no region of the user's, as later passes would think
        return modules


def save_all(joint: JointGraph) -> Modules:
    """Returns the halves with all saved that the backward reads, by torch's partitioner that does so."""
    from functorch.compile import default_partition

    return cast(
        "Modules", default_partition(joint.module, joint.inputs, num_fwd_outputs=joint.forward_outputs, **joint.more)
    )


def saved_names(modules: Modules, forward_outputs: int) -> frozenset[str]:
    """Returns the names of what a forward saves."""
    outputs = cast("Any", modules[0].graph.output_node().args[0])[forward_outputs:]
    return frozenset(item.name for item in outputs if isinstance(item, torch.fx.Node))


__all__ = ["NONE", "Cut", "Cutter", "Modules", "Nodes", "save_all", "saved_names"]
