"""How large the tensors of an FX graph are, and eager's planned peak of the graph.

In: a noun with FX nodes. Out: bytes, for the sizes of this compile; questions about sizes leave no guard.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
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

from ..nodes import needed_by


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


@dataclass(frozen=True)
class EagerPeak:
    """Eager's planned peak of a graph, in bytes. node: at which it is. standing: of inputs, in a backward with the
    results and their gradients. saved: of what the forward made for the backward."""

    nbytes: int
    node: torch.fx.Node | None
    standing: int
    saved: int

    @property
    def others(self) -> int:
        """Returns the bytes of temporaries, and of gradients that are made."""
        return self.nbytes - self.standing - self.saved


def eager_peak(sizes: Sizes, forward_outputs: int | None = None) -> EagerPeak:
    """Returns the most bytes that are alive at a time where each node runs alone, in the order of the graph, as in
    eager: inputs all the time, gradients of results from their first use, results from when they are made, and every
    other tensor from its node to the last use of it or of a view of it. forward_outputs: how many of the outputs are
    the forward's; None for all."""
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
    made = [node for node in nodes if owners[node] is node and node.op != "output"]
    ends = {
        node: len(nodes) if node.op == "placeholder" or node in kept else last.get(node, first[node]) for node in made
    }
    for node in made:
        nbytes = sizes.nbytes(node)
        change[first[node]] += nbytes
        if ends[node] < len(nodes):
            change[ends[node] + 1] -= nbytes
    held = list(accumulate(change))
    most = max(held, default=0)
    at = held.index(most) if held else 0
    results = [item for item in sizes.noun.outputs[:forward_outputs] if isinstance(item, torch.fx.Node)]
    forward, seen = needed_by(results), {owners[item] for item in results}
    worst = nodes[at] if at < len(nodes) else None
    standing, saved = 0, 0
    for node in made:
        if first[node] <= at <= ends[node]:
            stands = node.op == "placeholder" or (node in seen and worst not in forward)
            standing += sizes.nbytes(node) * stands
            read_later = node in forward and any(user not in forward for user in _readers(node, owners))
            saved += sizes.nbytes(node) * (read_later and not stands)
    return EagerPeak(most, worst, standing, saved)


def _readers(node: torch.fx.Node, owners: Mapping[torch.fx.Node, torch.fx.Node]) -> Iterator[torch.fx.Node]:
    """Yields what reads a tensor or a view of it, outputs apart."""
    for user in node.users:
        if user.op != "output":
            yield user
            if owners[user] is owners[node]:
                yield from _readers(user, owners)


__all__ = ["EagerPeak", "Sizes", "eager_peak"]
