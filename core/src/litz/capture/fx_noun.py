"""What all nouns of capture share: an FX graph with a name, its ends, and a copy of it to work on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import torch

from litz.capture import torch_api
from litz.capture.snapshot import FXSnapshot


@dataclass(frozen=True, eq=False)
class FXNoun:
    """A noun that is an FX graph. name: "graph0_traced"; for messages, not an identity. module: the FX graph."""

    name: str
    module: torch.fx.GraphModule

    VALUE = "val"
    """The key of a node's fake result in `node.meta`."""

    @property
    def nodes(self) -> tuple[torch.fx.Node, ...]:
        """Returns all nodes in order: placeholders first, the output node last."""
        return tuple(self.module.graph.nodes)

    @property
    def placeholders(self) -> tuple[torch.fx.Node, ...]:
        """Returns the placeholder nodes, in calling order."""
        return tuple(self.module.graph.find_nodes(op="placeholder"))

    @property
    def output_node(self) -> torch.fx.Node:
        """Returns FX's output node, whose first argument is `outputs`."""
        return self.module.graph.output_node()

    @property
    def outputs(self) -> tuple[Any, ...]:
        """Returns what the graph returns, in order: nodes, and plain values (None, int) that are constant."""
        returned = self.output_node.args[0]
        return tuple(returned) if isinstance(returned, (list, tuple)) else (returned,)

    def copy(self) -> Self:
        """Returns an equal graph with nodes of its own, of the same names, to be edited."""
        return replace(self, module=torch_api.copied(self.module))

    def snapshot(self) -> FXSnapshot:
        """Returns what the graph is now, to find later what a plugin changed in place (`litz_plugins.unchanged`)."""
        return FXSnapshot(self, self.VALUE)

    def __str__(self) -> str:
        return f"{type(self).__name__} {self.name}\n{self.module.graph}"


__all__ = ["FXNoun"]
