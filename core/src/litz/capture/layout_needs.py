"""How library calls take their tensors: in any strides, in those of the trace, or row-major.

In: the rows that core and plugins register (`litz_register_layout_needs`), and which ops litz lowers. Out: an answer
per node and argument. Lowering copies an argument that must be row-major; a layout plan puts back the strides of the
trace where an op wants them, so that choosing layouts cannot break an op that nobody thought of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

from litz.capture import torch_api
from litz_plugins import LayoutNeed

aten = torch.ops.aten

Row = LayoutNeed | Mapping[str, LayoutNeed]
Needs = Callable[[torch.fx.Node, torch.fx.Node], LayoutNeed]

LINES = frozenset({"convolution", "_convolution", "convolution_backward"})
"""Ops that take tensors of three dimensions row-major: torch itself copies others, by a kernel that fuses with
nothing."""

_ROWS: Mapping[str, Row] = {
    # Their CUDA kernels lay out the gradient as `self` lies and then index it row-major: pytorch issue 120759.
    "nll_loss2d_forward": {"self": "contiguous", "target": "contiguous"},
    "nll_loss2d_backward": {"self": "contiguous", "grad_output": "contiguous", "target": "contiguous"},
    # Attention wants widths that lie in order, and says so only where it runs.
    **{f"_scaled_dot_product_{kind}_attention": "traced" for kind in ("efficient", "flash", "cudnn")},
    # Kernels that look at the strides and take what comes.
    **dict.fromkeys(("convolution", "_convolution", "convolution_backward"), "any"),
    **dict.fromkeys(("upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d"), "any"),
}
"""Core's rows, by ATen op; all overloads."""


def core_layout_needs() -> dict[OpOverload, Row]:
    """Returns core's own table of how ATen ops take their tensors, by overload."""
    found: dict[OpOverload, Row] = {}
    for name, row in _ROWS.items():
        packet = getattr(aten, name, None)
        if isinstance(packet, OpOverloadPacket):
            found.update({getattr(packet, overload): row for overload in packet.overloads()})
    return found


@dataclass(frozen=True)
class LayoutNeeds:
    """The table of a compile. table: how ops take their tensors. lowered: the ops that litz lowers; their loops read
    any strides."""

    table: Mapping[OpOverload, Row] = field(default_factory=dict)
    lowered: frozenset[Any] = frozenset()

    def of(self, node: torch.fx.Node, argument: torch.fx.Node) -> LayoutNeed:
        """Returns how `node` takes `argument`, one of its inputs. An argument that the node writes in place keeps the
        strides of the trace ("traced")."""
        target = node.target
        if not isinstance(target, OpOverload):
            return "any" if torch_api.aliased_argument(node) is argument else "traced"
        if any(written is argument for written in torch_api.written_arguments(node)):
            return "traced"
        value = argument.meta.get("val")
        if target._overloadpacket.__name__ in LINES and isinstance(value, torch.Tensor) and value.dim() == 3:
            return "contiguous"
        row = self.table.get(target)
        if row is not None:
            needs = {row} if isinstance(row, str) else {row.get(name, "any") for name in _names(node, argument)}
            return max(needs, key=_STRICTNESS.__getitem__, default="any")
        if torch.Tag.needs_contiguous_strides in target.tags:
            return "contiguous"
        if target in self.lowered:
            return "any"
        # A library call that draws does so in the order of memory.
        flexible = torch.Tag.flexible_layout in target.tags and not torch_api.is_random_draw(target)
        return "any" if flexible else "traced"


_STRICTNESS: Mapping[LayoutNeed, int] = {"any": 0, "traced": 1, "contiguous": 2}


def _names(node: torch.fx.Node, argument: torch.fx.Node) -> Iterator[str]:
    """Names of the schema's arguments that `argument` is given for, alone or in a list."""
    assert isinstance(node.target, OpOverload)
    names = [item.name for item in node.target._schema.arguments]
    for name, value in (*zip(names, node.args, strict=False), *node.kwargs.items()):
        if value is argument or (isinstance(value, (list, tuple)) and any(item is argument for item in value)):
            yield name
