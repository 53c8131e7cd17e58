"""Products of three matrices in the cheaper order. In: a Graph. Out: the Graph, or the same object if nothing changed.

Of (a @ b) @ c with sizes n x k, k x m and m x p, one order takes n * m * (k + p) multiplications and the other
k * p * (m + n).
"""

from __future__ import annotations

import torch

from litz.capture.passes.rewrite import Call, Changes, call_at, rewrite, tensor_of
from litz_plugins.patterns import CallPattern, Capture

MM = torch.ops.aten.mm.default
INNER = CallPattern(MM, Capture("a"), Capture("b"), name="inner", alone=True)
CHAIN = CallPattern(MM, INNER, Capture("c"))
"""(a @ b) @ c, where nobody else uses a @ b."""
GAIN = 2
"""How many times cheaper the other order has to be: rounding changes, so a little is not worth it."""


def multiply_in_cheaper_order(graph, context):
    """Multiplies (a @ b) @ c as a @ (b @ c) where that takes half the multiplications or fewer; returns the graph."""
    place = {node: number for number, node in enumerate(graph.nodes)}
    emit: dict[torch.fx.Node, Call] = {}
    for outer in graph.nodes:
        found = CHAIN.match(outer)
        if found is None or found["inner"] in emit:
            continue
        inner, a, b, c = (found[name] for name in ("inner", "a", "b", "c"))
        if place[c] >= place[inner]:
            continue  # b @ c takes the place of a @ b, where c is not known yet
        before, after = multiplications(graph, a, b, c)
        if before < GAIN * after or not context.allows(outer.name):
            continue
        emit[inner] = call_at(inner, MM, b, c)  # gives another tensor than `inner`: call_at works out which
        emit[outer] = Call(MM, (a, inner))  # gives the tensor that `outer` gave
        reason = f"{after} multiplications in place of {before}"
        context.record(outer.name, "the other order", reason, about=outer.name)
    return rewrite(graph, Changes(emit=emit))


def multiplications(graph, a, b, c):
    """How many `(a @ b) @ c` takes, and how many `a @ (b @ c)`. Sizes that are symbols count by their likely values:
    the result is right for any, as both orders are."""
    (n, k), (m, p) = (map(graph.hint, tensor_of(node).shape) for node in (a, c))
    return n * m * (k + p), k * p * (m + n)
