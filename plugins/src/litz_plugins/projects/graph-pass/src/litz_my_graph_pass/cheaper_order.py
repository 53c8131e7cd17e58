"""Products of three matrices in the cheaper order. In: a Graph. Out: the Graph, or the same object if nothing changed.

Of (a @ b) @ c with sizes n x k, k x m and m x p, one order takes n * m * (k + p) multiplications and the other
k * p * (m + n).
"""

from __future__ import annotations

import torch

from litz.capture.passes.rewrite import Call, Changes, call_at, rewrite, tensor_of

MM = torch.ops.aten.mm.default
GAIN = 2
"""How many times cheaper the other order has to be: rounding changes, so a little is not worth it."""


def multiply_in_cheaper_order(graph, context):
    """Multiplies (a @ b) @ c as a @ (b @ c) where that takes half the multiplications or fewer; returns the graph."""
    place = {node: number for number, node in enumerate(graph.nodes)}
    emit: dict[torch.fx.Node, Call] = {}
    for outer in graph.nodes:
        inner = product_inside(outer)
        if inner is None or inner in emit:
            continue
        (a, b), c = inner.args, outer.args[1]
        if place[c] > place[inner]:
            continue  # b @ c takes the place of a @ b, where c is not known yet
        before, after = multiplications(graph, a, b, c)
        if before < GAIN * after or not context.allows(outer.name):
            continue
        emit[inner] = call_at(inner, MM, b, c)  # gives another tensor than `inner`: call_at works out which
        emit[outer] = Call(MM, (a, inner))  # gives the tensor that `outer` gave
        reason = f"{after} multiplications in place of {before}"
        context.record(outer.name, "the other order", reason, about=outer.name)
    return rewrite(graph, Changes(emit=emit))


def product_inside(node):
    """Returns the `a @ b` of `(a @ b) @ c`, if nobody else uses it; None for any other node."""
    if node.target != MM:
        return None
    inner = node.args[0]
    return inner if inner.target == MM and len(inner.users) == 1 else None


def multiplications(graph, a, b, c):
    """How many `(a @ b) @ c` takes, and how many `a @ (b @ c)`. Sizes that are symbols count by their likely values:
    the result is right for any, as both orders are."""
    (n, k), (m, p) = (map(graph.hint, tensor_of(node).shape) for node in (a, c))
    return n * m * (k + p), k * p * (m + n)
