"""Gradients of a convolution's bias as sums of their own, which fuse with what makes or uses the same values.

In: a Graph. Out: the Graph with `convolution_backward` without the bias's gradient, and a sum of the incoming gradient
over all dimensions but the channels. torch's convolutions on a GPU compute it as that sum too, by a kernel of its own
(the ability `separate_bias`, as in the forward); a loop can be part of the kernel that makes the gradient.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from litz.capture.graph import Graph
from litz.capture.joint.size_readers import CONVOLUTION_RESULTS
from litz.capture.passes.rewrite import Call, Changes, rewrite, tensor_of
from litz_plugins.records import PassContext

aten, MASK = torch.ops.aten, CONVOLUTION_RESULTS
GRADIENT, BIAS = 0, 2
"""Places: the incoming gradient among `convolution_backward`'s arguments, and the bias's gradient among the results."""


def split_bias_gradients(graph: Graph, context: PassContext) -> Graph:
    """Returns the graph with gradients of biases as sums, on devices whose library makes them by a kernel of its own;
    the same object if there are none."""
    emit: dict[torch.fx.Node, Call] = {}
    drop: set[torch.fx.Node] = set()
    for node in graph.nodes:
        arguments: tuple[Any, ...] = node.args
        if node.target != aten.convolution_backward.default or len(arguments) != MASK + 1 or not arguments[MASK][BIAS]:
            continue
        results, value = list(node.users), tensor_of(arguments[GRADIENT])
        if value is None or any(user.target is not operator.getitem for user in results):
            continue
        if "separate_bias" not in context.target_of(value.device).abilities or not context.allows(node.name):
            continue
        others = [dim for dim in range(value.dim()) if dim != 1]
        for user in results:
            if user.args[1] == BIAS:
                emit[user] = Call(aten.sum.dim_IntList, (arguments[GRADIENT], others))
        mask = [*arguments[MASK][:BIAS], False]
        if any(mask):
            meta = {**node.meta, "val": (*node.meta["val"][:BIAS], None)}
            emit[node] = Call(node.target, (*arguments[:MASK], mask), meta=meta)
        else:
            drop.add(node)
        context.record(node.name, "bias gradient apart", "the library sums it by a kernel of its own, and a loop fuses")
    return rewrite(graph, Changes(emit=emit, drop=frozenset(drop)))
