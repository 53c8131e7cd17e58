"""Products and convolutions of half types on a processor for which torch's library has no kernels of them: in float32.

In: a Graph. Out: the Graph with the operands converted, the call in float32, and its result converted back. The library
multiplies element by element otherwise, 4 to 100 times slower (`python -m benchmarks.half_products`); sums are held in
float32 either way, and rounded once. The conversions are operations of the graph, and fuse with what makes the operands
and what reads the result. The pass leaves small products as they are, and products of few rows: their time is that of
reading a matrix, which has twice the bytes in float32.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from litz.capture.graph import Graph
from litz.capture.passes.rewrite import Call, Changes, call_at, rewrite, same_layout, tensor_of
from litz.ir.dtypes import HALF
from litz.target import Room, figures_of
from litz_passes.processor import without_kernels
from litz_plugins.records import PassContext

aten, prims = torch.ops.aten, torch.ops.prims
CONVERT = prims.convert_element_type.default

OPERANDS: Mapping[Any, tuple[int, int]] = {
    aten.mm.default: (0, 1),
    aten.bmm.default: (0, 1),
    aten.addmm.default: (1, 2),
    aten.baddbmm.default: (1, 2),
}
"""The places of a product's operands among the arguments."""
CONVOLUTIONS = frozenset({aten.convolution.default, aten.convolution_backward.default})


@dataclass(frozen=True)
class WideFigures(Room):
    """Figures of the products that are worth it, which `figures/any/wide_products.toml` explains."""

    table = "wide_products"
    least_flops: int
    least_rows: int


def widen_products(graph: Graph, context: PassContext) -> Graph:
    """Returns the graph with products and convolutions in float32 where the library has none of their type; the same
    object if there are none."""
    emit: dict[torch.fx.Node, Call] = {}
    for node in graph.nodes:
        if (dtype := _dtype(node)) is None or not _is_worth(graph, node, context) or not context.allows(node.name):
            continue
        if changed := _changed(node, dtype):
            emit |= changed
            context.record(node.name, "in float32", f"the library has no products of {dtype} for this processor")
    return rewrite(graph, Changes(emit=emit))


def _dtype(node: torch.fx.Node) -> torch.dtype | None:
    """Returns the half type of a product's or convolution's tensors, None where they have another or several."""
    if node.target not in OPERANDS and node.target not in CONVOLUTIONS:
        return None
    types = {value.dtype for each in node.all_input_nodes if (value := tensor_of(each)) is not None}
    (dtype,) = types if len(types) == 1 else (None,)
    return dtype if dtype in HALF else None


def _is_worth(graph: Graph, node: torch.fx.Node, context: PassContext) -> bool:
    """Returns whether the call is slow as it is, and long and wide enough to be converted."""
    first = tensor_of(node.all_input_nodes[0])
    assert first is not None
    if first.device.type != "cpu" or first.dtype not in without_kernels():
        return False
    figures = figures_of(context.target_of(first.device), WideFigures)

    def sizes(value: Any) -> list[int]:
        return [graph.hint(size) for size in value.meta["val"].shape]

    if node.target in CONVOLUTIONS:
        # A product with a filter of each group for each place of the result.
        backward = node.target is aten.convolution_backward.default
        places, filters = (sizes(node.args[0]), node.args[2]) if backward else (sizes(node), node.args[1])
        return 2 * prod(places) * prod(sizes(filters)[1:]) >= figures.least_flops
    left, right = OPERANDS[node.target]
    rows, columns = sizes(node.args[left])[-2], sizes(node.args[right])[-1]
    flops = 2 * prod(sizes(node.args[left])) * columns
    return min(rows, columns) >= figures.least_rows and flops >= figures.least_flops


def _changed(node: torch.fx.Node, dtype: torch.dtype) -> dict[torch.fx.Node, Call]:
    """Returns what takes the places of a call and of its results: nothing where results in float32 would lie
    otherwise."""
    arguments = [
        call_at(node, CONVERT, item, torch.float32) if tensor_of(item) is not None else item for item in node.args
    ]
    assert callable(node.target)
    wide = call_at(node, node.target, *arguments, **node.kwargs)
    if node.target is not aten.convolution_backward.default:
        changed = {node: call_at(node, CONVERT, wide, dtype)}
    else:
        results = {user: call_at(user, operator.getitem, wide, user.args[1]) for user in node.users}
        parts = {user: Call(operator.getitem, user.args, meta=part.meta) for user, part in results.items()}
        changed = {user: call_at(user, CONVERT, part, dtype) for user, part in parts.items()} | {node: wide}
    single = {at: call for at, call in changed.items() if call.target is CONVERT}
    alike = all(call.meta and same_layout(call.meta["val"], at.meta["val"]) for at, call in single.items())
    return changed if alike else {}


__all__ = ["widen_products"]
