"""How large the tensors of an FX graph are, and eager's planned peak of the graph.

In: a noun with FX nodes. Out: bytes, for the sizes of this compile; questions about sizes leave no guard.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from litz.capture.fx_noun import FXNoun
from litz.capture.torch_api import (
    backed_values,
    is_tangent,
    memory_owners,
    shape_env_of,
    sympy_of,
    without_guards,
)
from litz.logs.units import likely_value


@dataclass(frozen=True, eq=False)
class Sizes:
    """The sizes of the tensors of one graph."""

    noun: FXNoun

    @cached_property
    def shape_env(self) -> Any:
        """Returns what decides symbolic questions, None where all sizes are static."""
        return shape_env_of([node.meta.get("val") for node in self.noun.nodes])

    @cached_property
    def owners(self) -> Mapping[torch.fx.Node, torch.fx.Node]:
        """Returns, for each node, the node that made its memory."""
        return memory_owners(self.noun.nodes)

    @cached_property
    def _hints(self) -> Mapping[Any, int]:
        return backed_values(self.shape_env)

    def hint(self, size: Any) -> int:
        """Returns a likely value of a size."""
        return size if type(size) is int else int(likely_value(sympy_of(size), self._hints))

    def nbytes(self, node: torch.fx.Node) -> int:
        """Returns the bytes of a node's tensor; 0 for a node of another kind."""
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            return 0
        with without_guards(self.shape_env):
            return self.hint(value.numel()) * value.itemsize


def eager_peak(sizes: Sizes) -> int:
    """Returns the most bytes that are alive at a time where each node runs alone, in the order of the graph, as in
    eager: inputs all the time, gradients of results from their first use, results from when they are made, and every
    other tensor from its node to the last use of it or of a view of it."""
    nodes, owners = sizes.noun.nodes, sizes.owners
    last: dict[torch.fx.Node, int] = {}
    first = {node: 0 if node.op == "placeholder" and not is_tangent(node) else at for at, node in enumerate(nodes)}
    for at, node in enumerate(nodes):
        for used in node.all_input_nodes:
            owner = owners[used]
            last[owner] = at
            if is_tangent(owner) and owner not in last:
                first[owner] = at
    kept = {owners[item] for item in sizes.noun.outputs if isinstance(item, torch.fx.Node)}
    change = [0] * (len(nodes) + 1)
    for node in nodes:
        if owners[node] is not node or node.op == "output":
            continue
        nbytes = sizes.nbytes(node)
        change[first[node]] += nbytes
        if node.op != "placeholder" and node not in kept:
            change[last.get(node, first[node]) + 1] -= nbytes
    return _most(change)


def _most(change: Sequence[int]) -> int:
    most = now = 0
    for step in change:
        now += step
        most = max(most, now)
    return most


__all__ = ["Sizes", "eager_peak"]
