"""The nouns in front of a Graph: what dynamo traced, AOTAutograd's joint graph, and the two halves of a joint
graph.

Each is an FX graph with a name. Passes derive new ones and change none in place; `copy` gives one to work on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Self

import torch

from litz.capture import torch_api
from litz.capture.fx_noun import FXNoun


@dataclass(frozen=True, eq=False)
class TracedGraph(FXNoun):
    """The graph that dynamo traced, before AOTAutograd: torch's functions and methods, as the user called them.

    name: "graph0_traced". module: its nodes have `meta["example_value"]`, a fake tensor or a SymInt. `call_function`
    has functions such as `torch.nn.functional.softmax`, `call_method` the names of a tensor's methods.
    """

    VALUE = "example_value"


@dataclass(frozen=True, eq=False)
class JointGraph(FXNoun):
    """AOTAutograd's joint graph of a training step, before it is partitioned: functional ATen, forward and backward.

    name: "graph0_joint". module: its placeholders are the forward's inputs ("primals_1") and the gradients of its
    results ("tangents_1"); its nodes have `meta["val"]`. The graph returns the forward's results first, then the
    gradients. forward_outputs: how many results are the forward's. inputs: the fake inputs. more: what else AOTAutograd
    hands a partitioner, by name.
    """

    forward_outputs: int = 0
    inputs: tuple[Any, ...] = ()
    more: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, eq=False)
class Halves:
    """A joint graph that is partitioned: a forward, and a backward that gets what the forward saves.

    name: "graph0_halves". forward: it returns the user's results, `forward_outputs` of them, then what is saved.
    backward: it takes what is saved, by the names of the forward's nodes, and the gradients of the results.
    """

    name: str
    forward: torch.fx.GraphModule
    backward: torch.fx.GraphModule
    forward_outputs: int = 0  # how many of the outputs of the forward the user gets

    @property
    def nodes(self) -> tuple[torch.fx.Node, ...]:
        """Returns the nodes of the forward, then those of the backward."""
        return (*self.forward.graph.nodes, *self.backward.graph.nodes)

    @property
    def parts(self) -> tuple[JointGraph, JointGraph]:
        """Returns the forward and the backward as a noun each."""
        return JointGraph(f"{self.name}.forward", self.forward), JointGraph(f"{self.name}.backward", self.backward)

    @property
    def results(self) -> tuple[Any, ...]:
        """Returns what the forward returns: the user's results, then what is saved."""
        return self.parts[0].outputs

    def copy(self) -> Self:
        """Returns equal halves with nodes of their own, of the same names, to be edited."""
        return replace(self, forward=torch_api.copied(self.forward), backward=torch_api.copied(self.backward))

    def snapshot(self) -> HalvesSnapshot:
        """Returns what the halves are now (`litz_plugins.unchanged`)."""
        return HalvesSnapshot(self)

    def __str__(self) -> str:
        return "\n".join(map(str, self.parts))


class HalvesSnapshot:
    """The state of both halves before a plugin was handed them."""

    def __init__(self, halves: Halves) -> None:
        self._parts = [part.snapshot() for part in halves.parts]

    def change(self) -> str:
        """Returns what was changed since the snapshot, in words; '' for nothing."""
        return next(filter(None, (part.change() for part in self._parts)), "")

    def restore(self) -> None:
        """Gives the halves the nodes of the snapshot."""
        for part in self._parts:
            part.restore()


__all__ = ["FXNoun", "Halves", "JointGraph", "TracedGraph"]
