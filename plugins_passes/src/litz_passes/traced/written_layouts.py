"""Tensors that are written in place keep their strides.

In and out: dynamo's graph. For AOTAutograd a write in place is a new tensor (`y.cumsum_(0)` is `y = y.cumsum(0)`),
which lies as the op's own result does. The results of some ops are contiguous however their operands lie. Then a tensor
that eager writes where it lies would have other strides after the write: `as_strided` would read other elements, a
`view` that eager can take would be an error, and the user would see other strides. So the op's result is copied into
the tensor, and copies keep strides.
"""

from __future__ import annotations

from typing import Any

import torch

from litz.capture.joint.nouns import TracedGraph
from litz_plugins.records import PassContext

CONTIGUOUS = frozenset({
    *("addbmm_", "addmm_", "baddbmm_", "cumprod_", "cumsum_", "index_add_", "index_copy_", "index_reduce_"),
    *("masked_fill_", "masked_scatter_", "mvlgamma_", "renorm_", "scatter_", "scatter_add_", "scatter_reduce_"),
    *("tril_", "triu_"),
})  # fmt: skip
"""Methods that write in place, and whose counterparts give contiguous results however their operands lie."""


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
    """Returns whether a node writes a tensor that is not contiguous, and its op gives contiguous results."""
    if node.op != "call_method" or node.target not in CONTIGUOUS:
        return False
    written: Any = node.args[0].meta.get("example_value") if isinstance(node.args[0], torch.fx.Node) else None
    return isinstance(written, torch.Tensor) and written.layout == torch.strided and not written.is_contiguous()


__all__ = ["keep_written_layouts"]
