"""The candidates of a budget: ways to cut a joint graph, from fast and large to slow and small.

In: a joint graph. Out: `Candidate`s, planned. No candidate depends on the budget, so that all budgets choose from the
same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import inf
from typing import Any

import torch

from litz.capture.joint.nouns import JointGraph
from litz.capture.torch_api import min_cut
from litz_plugins import TargetOf

from ..nodes import policy_of
from .cut import NONE, Cut, Cutter, Modules, Nodes, save_all, saved_names
from .plans import Candidate
from .prices import microseconds
from .sizes import Sizes

PRICES = (1e-12, 1e6)
"""µs per byte: for the one, time alone counts, and for the other bytes."""
MOST_PRICES = 4
"""Cuts that bisection looks for between the two."""
SEGMENTS = (2, 4, 8, 16)
"""Numbers of equal parts of the forward of which each is computed again by itself."""
SHARES = (0.25, 0.5, 0.75)
"""Shares of the forward, from its beginning, that are computed again where the rest is saved."""
MOST_REPAIRS = 3

Planned = Callable[[Modules], tuple[Any, Any]]


@dataclass(frozen=True, eq=False)
class Search:
    """The search of one joint graph. planned: gives the plans of a forward and a backward. strict: are results to have
    eager's bits? Then the usual forward saves all that the backward reads (strict mode's partitioner does)."""

    joint: JointGraph
    planned: Planned
    target_of: TargetOf
    strict: bool = False

    @cached_property
    def cutter(self) -> Cutter:
        """Returns what cuts the graph."""
        return Cutter(self.joint, Sizes(self.joint), self.target_of, self.usual, self.strict)

    @cached_property
    def candidates(self) -> tuple[Candidate, ...]:
        """Returns the candidates: first the cut that there is without a budget."""
        found, known = [self._plan("as without a budget", self.usual)], {self._saved(self.usual)}
        for name, cut in self._cuts():
            modules = self.cutter.halves(cut)
            if self._saved(modules) not in known:
                known.add(self._saved(modules))
                found.append(self._plan(name, modules))
        return tuple(found)

    @cached_property
    def usual(self) -> Modules:
        """Returns the forward and the backward that there are without a budget."""
        return (save_all if self.strict else min_cut)(self.joint.copy())

    def repaired(self, least: Candidate, slowest: float) -> Iterator[Candidate]:
        """Yields smaller candidates than `least`, each smaller and no faster than the one before. slowest: the time of
        the slowest candidate, so that no budget gets a faster plan than a larger budget."""
        dropped: Nodes = NONE
        for number in range(MOST_REPAIRS):
            worst = self._worst(least, dropped)
            cut = None if worst is None else self.cutter.cut(PRICES[1], self._border(SEGMENTS[-1]), dropped | {worst})
            if worst is None or cut is None:
                return
            dropped |= {worst}
            other = self._plan(f"repaired {number + 1} times", self.cutter.halves(cut))
            if other.peak < least.peak and other.us >= slowest:
                least, slowest = other, other.us
                yield other

    def _worst(self, candidate: Candidate, dropped: Nodes) -> torch.fx.Node | None:
        """The saved tensor at a candidate's peak that frees the most bytes for the time of computing it again."""
        nodes = {
            node.name: node for node in self.cutter.forward if self.cutter.may_run_again(node) and node not in dropped
        }
        held = [nodes[each.name] for each in candidate.held() if each.saved and each.name in nodes]
        return max(held, key=self._freed_per_us, default=None)

    def _freed_per_us(self, node: torch.fx.Node) -> float:
        us = self.cutter.prices[node]
        return self.cutter.sizes.nbytes(node) / us if us else inf

    def _plan(self, name: str, modules: Modules) -> Candidate:
        """A candidate with its plans and its time."""
        plans = self.planned(modules)
        us = sum(estimate.us for plan in plans for estimate in plan.estimates.values())
        if not us:  # a processor that nobody measured: the figures by which loops are compared
            us = sum(microseconds(m.graph.nodes, Sizes(JointGraph(name, m)), self.target_of) for m in modules)
        return Candidate(name, self.joint, modules, plans, us)

    def _saved(self, modules: Modules) -> frozenset[str]:
        return saved_names(modules, self.joint.forward_outputs)

    def _cuts(self) -> Iterator[tuple[str, Cut]]:
        """Yields each cut with its name."""
        for price, cut in sorted(self._by_price().items()):
            yield f"a price of {price:.3g} us per byte", cut
        for share in SHARES:
            border = self._border(SEGMENTS[2])
            nodes = self.cutter.of_results
            late = {node for node in nodes[int(len(nodes) * share) :] if node.name not in self.cutter.computed}
            found = self.cutter.cut(PRICES[1], border | late)
            if found is not None:
                yield f"segments in the first {share:.0%}", found
        for count in SEGMENTS:
            found = self.cutter.cut(PRICES[1], self._border(count))
            if found is not None:
                yield f"{count} segments", found

    def _by_price(self) -> dict[float, Cut]:
        """Cuts by price, found by bisection: the next price lies where the bytes of two neighbours differ the most."""
        found = {price: cut for price in PRICES if (cut := self.cutter.cut(price)) is not None}
        while len(PRICES) <= len(found) < len(PRICES) + MOST_PRICES:
            prices = sorted(found)
            size = {price: sum(map(self.cutter.sizes.nbytes, found[price].kept)) for price in prices}
            pairs = [(size[a] - size[b], a, b) for a, b in pairwise(prices) if b > 2 * a]
            gap, low, high = max(pairs, default=(0, 0.0, 0.0))
            middle = (low * high) ** 0.5
            cut = self.cutter.cut(middle) if gap > 0 else None
            if cut is None:
                break
            found[middle] = cut
        return found

    def _border(self, count: int) -> Nodes:
        """The nodes that cross the borders of so many segments of equal bytes: each border lies near its place where
        the fewest bytes are alive."""
        nodes, owners, sizes = self.cutter.of_results, self.cutter.sizes.owners, self.cutter.sizes
        at = {node: number for number, node in enumerate(nodes)}
        last = dict(at)
        for node in nodes:
            for user in node.users:
                if user in at:
                    last[owners[node]] = max(last.get(owners[node], 0), at[user])
        made = [node for node in nodes if node.op == "call_function" and owners[node] is node and sizes.nbytes(node)]
        whole = sum(map(sizes.nbytes, made))
        places, behind = list[int](), 0
        for node in made:
            behind += sizes.nbytes(node)
            if behind >= whole * (len(places) + 1) / count and len(places) + 1 < count:
                places.append(at[node])
        reach = max(1, len(nodes) // (2 * count))
        border: set[torch.fx.Node] = set()
        for place in places:
            near = range(max(0, place - reach), min(len(nodes) - 1, place + reach))
            alive = {step: [node for node in made if at[node] <= step < last[node]] for step in near}
            best = min(near, key=lambda step: (sum(map(sizes.nbytes, alive[step])), abs(step - place)), default=None)
            border.update(alive[best] if best is not None else ())
        return {node for node in border if policy_of(node) is None}


__all__ = ["Search"]
