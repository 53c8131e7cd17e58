"""A graph that was captured on the CPU, made out to be on a CUDA device.

Imports nothing of litz: `benchmarks.same_texts` moves the graphs of any version of litz.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map

if TYPE_CHECKING:
    from litz.capture.graph import Graph

CUDA = torch.device("cuda", 0)


def to_cuda(graph: Graph) -> Graph:
    """The graph with every device in it CUDA's first."""

    def swap(value: Any) -> Any:
        if isinstance(value, torch.device):
            return CUDA
        if isinstance(value, torch._subclasses.FakeTensor):
            with value.fake_mode:
                elements = value.untyped_storage().nbytes() // value.itemsize
                storage = torch.empty((elements,), dtype=value.dtype, device=CUDA)
                return storage.as_strided(value.shape, value.stride(), value.storage_offset())
        return value

    copied = torch.fx.Graph()
    mapping: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in graph.nodes:
        fresh = copied.node_copy(node, lambda n: mapping[n])
        fresh.args, fresh.kwargs = tree_map(swap, fresh.args), tree_map(swap, fresh.kwargs)
        fresh.meta = {**node.meta, "val": tree_map(swap, node.meta.get("val"))}
        mapping[node] = fresh
    return replace(graph, module=torch.fx.GraphModule(graph.module, copied))  # with the constants that it names


def zeros_like_outputs(graph: Graph) -> list[torch.Tensor | None] | None:
    """Zeros like what a graph returns; None where its sizes are symbols, or where it returns something else."""
    found: list[torch.Tensor | None] = []
    for each in graph.module.graph.output_node().args[0]:
        value = getattr(each, "meta", {}).get("val")
        if each is None:
            found.append(None)
        elif isinstance(value, torch.Tensor) and not value._has_symbolic_sizes_strides:
            found.append(torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).zero_())
        else:
            return None
    return found
