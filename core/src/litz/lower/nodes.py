"""Facts of FX nodes that a lowering asks for: where a node's tensor lies in eager, and what a graph writes in place."""

from __future__ import annotations

import torch

from litz.capture import torch_api
from litz.capture.graph import Graph
from litz.capture.passes.rewrite import same_geometry
from litz.ir.index import ZERO, Expr
from litz.ir.strides import same_stride

from .context import same_strides
from .strides import layout_of
from .view import View


def has_negative_bit(node: torch.fx.Node) -> bool:
    """Returns whether the node's tensor is the opposite of what lies in its memory, as `z.conj().imag` is."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_neg()


def lies_as_in_eager(node: torch.fx.Node, value: View) -> bool:
    """Returns whether the value has the strides of the node's tensor, and begins where in memory that does."""
    layout = value.layout()
    if layout is None or not same_strides(value.size, layout.stride, eager_strides(node)):
        return False
    return same_stride(layout.offset + storage_start(node), storage_offset(node))


def storage_start(owner: torch.fx.Node) -> Expr:
    """Returns the offset, in elements, at which the buffer of a node begins in its storage: 0 for the buffers of calls,
    which are storages."""
    return ZERO if owner.op == "call_function" else storage_offset(owner)


def storage_offset(node: torch.fx.Node) -> Expr:
    """Returns the storage offset that a node's tensor has in eager."""
    return torch_api.sympy_of(node.meta["val"].storage_offset())


def eager_strides(node: torch.fx.Node) -> tuple[Expr, ...]:
    """Returns the strides that a node's tensor has in eager."""
    return layout_of(node.meta["val"]).stride


def updates_of(graph: Graph) -> dict[torch.fx.Node, torch.fx.Node]:
    """New value of an input -> that input, where both have the same dtype, sizes and strides. A value that several
    inputs get is left out."""
    found: dict[torch.fx.Node, torch.fx.Node] = {}
    shared: set[torch.fx.Node] = set()
    for node in graph.nodes:
        if node.target is torch.ops.aten.copy_.default:
            target, value = node.args[:2]
            if isinstance(value, torch.fx.Node) and isinstance(target, torch.fx.Node) and target.op == "placeholder":
                shared.update({value} & found.keys())
                if same_geometry(target, value):
                    found[value] = target
    return {value: target for value, target in found.items() if value not in shared}


def written_nodes(graph: Graph) -> set[torch.fx.Node]:
    """Returns the nodes whose memory some node writes in place, directly or through a view."""
    found: set[torch.fx.Node] = set()
    for node in graph.nodes:
        for written in torch_api.written_arguments(node):
            base: torch.fx.Node | None = written
            while base is not None and base not in found:
                found.add(base)
                base = torch_api.aliased_argument(base)
    return found
