"""The stages in front of a Graph: from what dynamo traced to the halves of a joint graph.

    TracedGraph --traced--> TracedGraph --AOTAutograd--> JointGraph --joint--> JointGraph
                --partition--> Halves --partitioned--> Halves

In: how passes of a stage are run. Out: `EarlierStages`, which capture calls while it captures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch

from litz.capture import torch_api
from litz_plugins.records import Stage

if TYPE_CHECKING:
    from litz.capture.joint import Halves, JointGraph

Modules = tuple[torch.fx.GraphModule, torch.fx.GraphModule]


@dataclass(frozen=True)
class EarlierStages:
    """run: runs the passes of a stage ("traced", "joint" or "partitioned") over its noun; core has none. partition:
    returns the forward and the backward of a joint graph. log: what both noted down, for `Graph.earlier`. keeps: which
    regions are compiled once for all their calls."""

    run: Callable[[Stage, Any], Any] = lambda stage, noun: noun
    partition: Callable[[JointGraph], Modules] = torch_api.min_cut
    log: Any = None
    keeps: torch_api.Keeps = lambda name, calls, body: False

    def traced(self, name: str, module: torch.fx.GraphModule) -> torch.fx.GraphModule:
        """Returns the module that AOTAutograd traces: `module` itself where no pass changed the graph."""
        from litz.capture.joint import TracedGraph  # here: a process that finds its graphs traces none

        return cast("TracedGraph", self.run("traced", TracedGraph(name, module))).module

    def halves(
        self, name: str, module: torch.fx.GraphModule, inputs: Any = (), *, num_fwd_outputs: int, **more: Any
    ) -> Modules:
        """Splits a joint graph: a partitioner as AOTAutograd calls one."""
        from litz.capture.joint import JointGraph

        joint = JointGraph(f"{name}_joint", module, num_fwd_outputs, tuple(inputs), more)
        halves = self.finished(name, self.partition(self.run("joint", joint)), num_fwd_outputs)
        return halves.forward, halves.backward

    def finished(self, name: str, modules: Modules, num_fwd_outputs: int) -> Halves:
        """Returns what a partitioner made, after the passes of stage "partitioned"."""
        from litz.capture.joint import Halves

        modules = torch_api.with_kept_values(*modules, num_fwd_outputs)
        return cast("Halves", self.run("partitioned", Halves(f"{name}_halves", *modules, num_fwd_outputs)))


__all__ = ["EarlierStages"]
