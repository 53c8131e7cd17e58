"""Tensors that are written in place keep their strides.

In and out: dynamo's graph. For AOTAutograd a write in place is a new tensor (`y.cumsum_(0)` is `y = y.cumsum(0)`),
which lies as the op's own result does. The results of some ops are contiguous however their operands lie. Then a tensor
that eager writes where it lies would have other strides after the write: `as_strided` would read other elements, a
`view` that eager can take would be an error, and the user would see other strides. So the op's result is copied into
the tensor, and copies keep strides.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import Any

import torch
from torch._prims_common import is_contiguous_or_false  # asks nothing of sizes that depend on data
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from litz.capture.joint.nouns import TracedGraph
from litz_plugins.records import PassContext


def keep_written_layouts(traced: TracedGraph, context: PassContext) -> TracedGraph:
    """Returns the graph with copies in the place of writes that would change a tensor's strides."""
    found = {node.name for node in traced.nodes if _changes_strides(node) and context.allows(node.name)}
    if not found:
        return traced
    traced = traced.copy()
    for node in traced.nodes:
        if node.name in found:
            written: Any = node.args[0]
            with node.graph.inserting_before(node):
                result = node.graph.call_method(str(node.target).removesuffix("_"), node.args, node.kwargs)
            result.meta = {**node.meta}
            node.target, node.args, node.kwargs = "copy_", (written, result), {}
            reason = "the op's own result would lie otherwise than the tensor that it is written to"
            context.record(node.name, "write a copy of the result", reason, about=node.name)
    return traced


def _changes_strides(node: torch.fx.Node) -> bool:
    """Returns whether a node writes a tensor that is not contiguous, and its op's own result would lie otherwise.
    Strides that are equal for some sizes alone count as others: a copy is right in any case."""
    if node.op != "call_method" or not _has_counterpart(str(node.target)):
        return False
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda argument: argument.meta.get("example_value"))
    written: Any = args[0]
    if not isinstance(written, torch.Tensor) or written.layout != torch.strided or is_contiguous_or_false(written):
        return False
    with torch.no_grad(), suppress(GuardOnDataDependentSymNode):
        result = getattr(written, str(node.target).removesuffix("_"))(*args[1:], **kwargs)
        return str(result.stride()) != str(written.stride())
    return False  # torch itself cannot take the op apart for such sizes


@cache
def _has_counterpart(method: str) -> bool:
    """Returns whether a method of tensors writes in place what the method without the underscore returns. Draws do not:
    they fill a tensor whatever its values are. A method that makes a view of the tensor itself changes how it lies."""
    counterpart = getattr(torch.Tensor, method.removesuffix("_"), None)
    packet = getattr(torch.ops.aten, method, None)
    if method.endswith("__") or not method.endswith("_") or not callable(counterpart) or packet is None:
        return False
    tags = {tag for overload in packet.overloads() for tag in getattr(packet, overload).tags}
    return not tags & {torch.Tag.inplace_view, torch.Tag.nondeterministic_seeded}


__all__ = ["keep_written_layouts"]
