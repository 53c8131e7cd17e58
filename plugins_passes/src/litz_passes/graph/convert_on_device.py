"""Tensors of the CPU that go to a device in another dtype: copied as they are, and converted on the device.

`self.table.to(x.device, x.dtype)` of a table of sines that lies on the CPU: torch converts on the CPU, into memory that
is not pinned, and copies then. The table is an input of the graph, since the model may write it, so no call may keep
the copy. In and out: a Graph. The conversion is an operation of the device and fuses with what reads the tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from litz.capture.graph import Graph
from litz.capture.passes.rewrite import Call, Changes, rewrite, tensor_of
from litz.target import Room, figures_of
from litz_plugins import Target
from litz_plugins.records import PassContext

aten, prims = torch.ops.aten, torch.ops.prims

INTEGERS = frozenset({torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32})
WIDE = frozenset({torch.float32, torch.float64})
SAME: Mapping[torch.dtype, frozenset[torch.dtype]] = {
    **dict.fromkeys(INTEGERS, INTEGERS | WIDE),
    **dict.fromkeys(FLOATS, FLOATS | WIDE),
}
"""To which types a type is converted with the same results on every device. A float beyond all integers differs, and a
CPU rounds float64 and integers to float32 before it rounds them to half types."""


@dataclass(frozen=True)
class ConvertFigures(Room):
    """Figures of conversions behind a copy, which `figures/any/convert_on_device.toml` explains."""

    table = "convert_on_device"
    most_times: float


def convert_on_device(graph: Graph, context: PassContext) -> Graph:
    """Returns the graph with copies from the CPU to a device that convert nothing, and conversions on the device; the
    same graph if no copy converts, or where this would copy many more bytes."""
    changed = {node: call for node in graph.nodes if (call := _apart(node, context)) is not None}
    if changed:
        reason = "a copy of the bytes as they are is faster than a conversion on the CPU"
        context.record(graph.name, f"{len(changed)} tensors converted on their device", reason)
    return rewrite(graph, Changes(emit=changed))


def _apart(node: torch.fx.Node, context: PassContext) -> Call | None:
    """Returns the copy and the conversion as two calls; None for what is no such copy, or should stay one."""
    if node.target is not aten._to_copy.default:
        return None
    source, result = tensor_of(node.args[0]), tensor_of(node)
    if source is None or result is None or not source.ndim:
        return None
    if source.device.type != "cpu" or result.device.type == "cpu":
        return None
    if source.dtype == result.dtype or result.dtype not in SAME.get(source.dtype, ()):
        return None
    target: Target = context.target_of(result.device)
    if source.dtype.itemsize > figures_of(target, ConvertFigures).most_times * result.dtype.itemsize:
        return None
    with result.fake_mode:  # type: ignore[attr-defined]  # a fake tensor's
        copied = torch.empty_strided(result.shape, result.stride(), dtype=source.dtype, device=result.device)
    kwargs = {key: value for key, value in node.kwargs.items() if key != "dtype"}
    copy = Call(node.target, node.args, kwargs, {**node.meta, "val": copied})
    return Call(prims.convert_element_type.default, (copy, result.dtype))


__all__ = ["convert_on_device"]
