"""The cheapest labels of a `Problem`: a minimum cut, which is exact as no pair of equal labels costs anything.

Variables on the source's side of the cut are channels first, those on the sink's channels last. Kolmogorov and Zabih,
"What energy functions can be minimized via graph cuts?", 2004. A copy that several users share has a helper per label:
for channels last it is last as soon as one user is, and the copy is paid where the tensor is first and the helper last.
"""

from __future__ import annotations

from collections.abc import Iterator

import networkx as nx
from networkx.algorithms.flow import boykov_kolmogorov

from litz_layout.frames import FIRST, LAST
from litz_layout.problem import Copy, Problem

_SOURCE, _SINK = -1, -2
_STAY = 1
"""Nanoseconds that another label than the traced one costs by itself: of two equal plans the one that changes less."""
_NEVER = 1 << 60


def solve(problem: Problem) -> tuple[int, ...]:
    """Returns a label for each variable, by a minimum cut. Capacities are whole ns, so the cut is exact."""
    network = nx.DiGraph()
    network.add_nodes_from((_SOURCE, _SINK))

    def add(tail: int, head: int, capacity: int) -> None:
        """Cost of `tail` being first while `head` is last."""
        if capacity > 0 and tail != head:
            known = network.edges[tail, head]["capacity"] if network.has_edge(tail, head) else 0
            network.add_edge(tail, head, capacity=min(_NEVER, known + capacity))

    for at, variable in enumerate(problem.variables):
        if variable.fixed:
            add(*((_SOURCE, at) if variable.traced == FIRST else (at, _SINK)), _NEVER)
            continue
        stay = [_STAY * (label != variable.traced) for label in (FIRST, LAST)]
        add(at, _SINK, _ns(variable.us[FIRST]) + stay[FIRST])
        add(_SOURCE, at, _ns(variable.us[LAST]) + stay[LAST])
    for read in problem.reads:
        add(read.source, read.target, _ns(read.us))
        add(read.target, read.source, _ns(read.us))
    helper = len(problem.variables)
    for copy in problem.copies:
        for tail, head, capacity in _shared(copy, helper):
            add(tail, head, capacity)
        helper += 2
    _, (first, _) = nx.minimum_cut(network, _SOURCE, _SINK, flow_func=boykov_kolmogorov)
    return tuple(
        variable.traced if variable.fixed or at not in network else FIRST if at in first else LAST
        for at, variable in enumerate(problem.variables)
    )


def _shared(copy: Copy, helper: int) -> Iterator[tuple[int, int, int]]:
    """The edges of a copy: `helper` is last if any user is, `helper + 1` first if any user is."""
    yield copy.variable, helper, _ns(copy.us)
    yield helper + 1, copy.variable, _ns(copy.us)
    for demand in copy.demands:
        at = demand.variable
        if at is None:
            at = _SOURCE if demand.label == FIRST else _SINK
        yield helper, at, _NEVER
        yield at, helper + 1, _NEVER


def _ns(us: float) -> int:
    return round(us * 1000)
