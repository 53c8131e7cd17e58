"""Where values leave a graph's functional part: what a pass may not replace or share without a look.

In: a Graph. Out: its nodes that are returned or written.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from litz.capture import torch_api
from litz.capture.graph import Graph


@dataclass(frozen=True)
class Escapes:
    """The nodes where values leave a graph's functional part.

    outputs: nodes that are returned, or of which a view is. written: nodes that are the source or destination of a
    write, or of which a view is. direct: nodes that are returned themselves. strided: nodes into whose storage an
    as_strided looks, whose offset counts from the start of the storage.
    """

    outputs: frozenset[torch.fx.Node]
    written: frozenset[torch.fx.Node]
    direct: frozenset[torch.fx.Node]
    strided: frozenset[torch.fx.Node]


def find_escapes(graph: Graph) -> Escapes:
    """Finds, in one backward sweep, the nodes that are returned or written, directly or through views."""
    direct = frozenset(graph.output_node.all_input_nodes)
    outputs, written = set(direct), set()
    strided: set[torch.fx.Node] = set()
    for node in reversed(graph.nodes):
        if torch_api.written_arguments(node):
            written.update(node.all_input_nodes)
        base = torch_api.aliased_argument(node) if node.op == "call_function" else None
        if base is not None:
            if node in outputs:
                outputs.add(base)
            if node in written:
                written.add(base)
            if node in strided or node.target is torch.ops.aten.as_strided.default:
                strided.add(base)
    return Escapes(frozenset(outputs), frozenset(written), direct, frozenset(strided))


__all__ = ["Escapes", "find_escapes"]
