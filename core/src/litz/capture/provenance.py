"""Where a graph's nodes and inputs come from in the user's program: in, what tracing noted; out, a `Provenance`.

Names of inputs are known while AOTAutograd has a graph compiled; origins of nodes are read after the graph passes,
which keep the metadata of what they replace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from litz.capture import torch_api
from litz.capture.graph import Graph
from litz.origins.operations import ByPosition, Origin, Provenance

POSITION = "litz_position"
"""The key, in a node's metadata, of its position in the graph as captured. Graph passes hand it on with all other
metadata."""


def named_inputs(
    module: torch.fx.GraphModule, names: Sequence[str], saved: Mapping[str, Origin] | None = None
) -> Provenance:
    """The names of a graph's inputs, and of a backward's gradients.

    names: of dynamo's inputs, in order. saved: of a backward, the origins of the forward's nodes, by name: what it
    saved comes in under the names of those.
    """
    inputs: dict[str, str] = {}
    nodes: dict[str, Origin] = {}
    for node in module.graph.find_nodes(op="placeholder"):
        tangent, found = torch_api.tangent_position(node), torch_api.input_position(node, len(names))
        origin = (saved or {}).get(node.name)
        if found is not None and names[found[0]]:
            inputs[node.name] = names[found[0]] + found[1]
        elif tangent is not None:
            inputs[node.name] = f"gradient of output {tangent}"
        elif origin:
            nodes[node.name] = origin
            inputs[node.name] = f"saved by {origin}"
    gradients = torch_api.gradient_positions(module, len(names))
    outputs = {at: f"gradient of {names[of]}{part}" for at, (of, part) in gradients.items() if names[of]}
    return Provenance(nodes, inputs, outputs)


def with_nodes(provenance: Provenance, module: torch.fx.GraphModule) -> Provenance:
    """Returns the provenance with the origins of the module's nodes added."""
    return replace(provenance, nodes={**provenance.nodes, **origins(module)})


def origins(module: torch.fx.GraphModule) -> Mapping[str, Origin]:
    """Returns the origin of each node that has one, by the node's name."""
    calls = (node for node in module.graph.nodes if node.op not in ("placeholder", "output"))
    found = {node.name: torch_api.origin_of(node) for node in calls}
    return {name: origin for name, origin in found.items() if origin}


def mark_positions(graph: Graph) -> None:
    """Writes the position of each node of a captured graph into the node's metadata."""
    for position, node in enumerate(graph.nodes):
        node.meta[POSITION] = position


def positions_of(graph: Graph) -> Mapping[str, int]:
    """Returns, for each node of a graph after its passes, the position of the marked node that it was made from, by
    name."""
    return {node.name: node.meta[POSITION] for node in graph.nodes if POSITION in node.meta}


def by_position(graph: Graph) -> ByPosition:
    """Returns the provenance of a captured graph, its nodes named by position."""
    known = with_nodes(graph.provenance, graph.module)
    nodes = tuple(known.nodes.get(node.name, Origin()) for node in graph.nodes)
    inputs = tuple(known.inputs.get(node.name, "") for node in graph.placeholders)
    return ByPosition(nodes, inputs, known.outputs, known.program)
