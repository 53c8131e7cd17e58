"""Sums of many matrix products: each product is added to the sum by the call that makes it.

In: a Graph. Out: the Graph with `((a @ b) + (c @ d)) + ...` as `addmm(addmm(a @ b, c, d), ...)`, where there are many.
A recurrent network's backward sums a product per step of the sequence into the gradient of one weight. By loops, all of
the products are in memory at a time, and read once more; so only the sum is, as the library writes it in place
(`litz.execution.in_place`). Each partial sum is rounded once, where eager rounds the product and the sum.
"""

from __future__ import annotations

import torch

from litz.capture.graph import Graph
from litz.capture.passes.rewrite import Call, Changes, find_escapes, rewrite, same_geometry
from litz.capture.passes.sums import is_whole_sum, terms_of
from litz_plugins.records import PassContext

aten = torch.ops.aten

MANY = 8
"""Products in a sum: below that a kernel that reads all of them, fused with what follows, is as good."""


def sum_products(graph: Graph, context: PassContext | None = None) -> Graph:
    """Returns the graph with long sums of matrix products (`MANY` or more) as chains of `addmm`; the same object if
    there are no such sums."""
    escapes = find_escapes(graph)
    place = {node: number for number, node in enumerate(graph.nodes)}
    kept = {*escapes.outputs, *escapes.written}
    replace: dict[torch.fx.Node, torch.fx.Node] = {}
    emit: dict[torch.fx.Node, Call] = {}
    drop: set[torch.fx.Node] = set()
    for node in graph.nodes:
        if not is_whole_sum(node):
            continue
        products, partial = terms_of(node)
        if len(products) < MANY or len(set(products)) < len(products) or node in escapes.written:
            continue
        if any(term.target != aten.mm.default or len(term.users) != 1 or term in kept for term in products):
            continue
        if any(not same_geometry(term, node) for term in products):
            continue
        if sorted(products, key=place.__getitem__) != products:
            continue  # summed in another order, the sum would be another number
        if context is not None and not context.allows(node.name):
            continue
        for term, before in zip(products[1:], products, strict=False):
            emit[term] = Call(aten.addmm.default, (before, *term.args))
        replace[node] = products[-1]
        drop.update(partial)
        if context is not None:
            context.record(node.name, f"accumulated by {len(products)} products", "only their sum is in memory")
    return rewrite(graph, Changes(replace=replace, emit=emit, drop=frozenset(drop)))


__all__ = ["MANY", "sum_products"]
