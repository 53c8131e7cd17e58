"""The Graph noun: what capture hands to lowering.

A `Graph` is a functional ATen FX graph with what the FX graph alone does not say: what it is for, which inputs stay
put, which are written, what the symbols in its sizes stand for. Capture makes it with `make_graph`; passes derive new
ones with `dataclasses.replace`; nothing changes one in place.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from litz.capture import torch_api
from litz.capture.fx_noun import FXNoun
from litz.capture.graph_text import describe
from litz.logs.units import likely_value
from litz.origins.operations import Provenance

Kind = Literal["inference", "forward", "backward"]


@dataclass(frozen=True, eq=False)
class Graph(FXNoun):
    """One graph to compile.

    name: "graph3_forward"; unique enough for messages, not an identity.
    module: the FX graph. Every tensor- or number-valued node has `meta["val"]`: a fake tensor or a SymInt.
    kind: "inference", or the "forward" or "backward" half of a training graph.
    static_inputs: placeholder positions whose storage stays where it is from call to call (parameters, buffers, and
        those of them that the forward saved for the backward). A strong hint and not a promise: dynamo reuses one
        compiled graph for two module instances, so whoever relies on addresses must compare them on each call.
    dying_inputs: placeholder positions of a backward that hold what the forward made for it alone, so that their
        memory is free after their last use. For costs only: backward(retain_graph=True) keeps them.
    owned_inputs: those of them that share memory with nothing else, so that it may be written after their last use: a
        call of backward(retain_graph=True) is given copies (`litz.runtime.retained`).
    made_inputs: placeholder positions of a backward that hold what the forward made, results that the user sees among
        them: where nobody holds such a result, its memory is free after its last use, too.
    mutated_inputs: placeholder positions that the graph writes, with `aten.copy_` nodes at its end. A write may only
        happen after every read of the old value: `x, y = y, x` is two copies and a clone.
    visible_outputs: output positions that the user's code gets to see, so that strides must be as traced. The other
        outputs are saved for the backward, and may have any layout (see `aot.compile_with_aot`).
    rebuilt_outputs: output positions of which the user gets a view of an input, made by AOTAutograd from the sizes,
        strides and storage offset of what the graph returns. That an input has another offset, no guard sees.
    hints: the value of each backed symbol in this compile's inputs; unbacked symbols (u0) are absent.
    frozen_values: placeholder position -> the tensor that it holds, for parameters and buffers that are to be frozen.
    input_names: the user's names for the placeholders ("L['self'].weight"), for messages; may be empty.
    messages: what the user wants to be told where a condition on sizes does not hold: (condition, message). The
        conditions themselves are on record with the shape_env.
    unclaimed: conditions on record with the shape_env that torch asserts and the program does not.
    earlier: what the stages before this graph noted down (a `litz.report.log.Log`), None in a backward: the traced and
        the joint graph are on the forward's record.
    provenance: what the user calls the inputs, and a backward's outputs, and where what the forward saved was made; for
        messages and comments only.
    bodies: graphs that the graph's higher-order ops call, which are compiled as it is, by the attribute of the module.
    shape_env: decides symbolic questions and records the guards; None where every shape is static.
    """

    kind: Kind
    static_inputs: frozenset[int] = frozenset()
    dying_inputs: frozenset[int] = frozenset()
    owned_inputs: frozenset[int] = frozenset()
    made_inputs: frozenset[int] = frozenset()
    mutated_inputs: frozenset[int] = frozenset()
    visible_outputs: frozenset[int] = frozenset()
    rebuilt_outputs: frozenset[int] = frozenset()
    hints: Mapping[sympy.Symbol, int] = field(default_factory=lambda: MappingProxyType({}))
    shape_env: ShapeEnv | None = None
    frozen_values: Mapping[int, torch.Tensor] = field(default_factory=lambda: MappingProxyType({}))
    input_names: tuple[str, ...] = ()
    messages: tuple[tuple[Any, str], ...] = ()
    unclaimed: tuple[Any, ...] = ()
    earlier: Any = None
    provenance: Provenance = field(default_factory=Provenance)
    bodies: Mapping[str, Graph] = field(default_factory=lambda: MappingProxyType({}))

    def hint(self, size: Any) -> int:
        """Returns a likely value of a size: for costs and orders, never for what must hold."""
        return size if type(size) is int else likely_value(torch_api.sympy_of(size), self.hints)

    def __str__(self) -> str:
        return describe(self)


def make_graph(
    name: str,
    module: torch.fx.GraphModule,
    kind: Kind,
    *,
    visible_outputs: frozenset[int] | None = None,
    example_inputs: Sequence[Any] = (),
    **known: Any,
) -> Graph:
    """A Graph around AOTAutograd's `module`. known: fields of the Graph; the rest is found out from the module.

    visible_outputs: None means all. example_inputs: the fake inputs the graph will be called with, where they are
    more exact than the placeholders' own metadata (AOTAutograd re-strides saved tensors there). Fills in missing
    `meta["val"]`; changes nothing else in `module`.
    """
    placeholders = list(module.graph.find_nodes(op="placeholder"))
    for node, example in zip(placeholders, example_inputs, strict=False):  # no examples: nothing to fill in
        if torch_api.is_fake(example) or (isinstance(example, torch.SymInt) and "val" not in node.meta):
            node.meta["val"] = example
    values = [node.meta.get("val") for node in module.graph.nodes]
    _fill_values(module, torch_api.fake_mode_of(values))
    shape_env = torch_api.shape_env_of(values)
    graph = Graph(
        name=name,
        module=module,
        kind=kind,
        mutated_inputs=_mutated(placeholders, module),
        hints=torch_api.backed_values(shape_env),
        shape_env=shape_env,
        **known,
    )
    everything = frozenset(range(len(graph.outputs)))
    return replace(graph, visible_outputs=everything if visible_outputs is None else visible_outputs)


def saved_names(
    forward: torch.fx.GraphModule, static: frozenset[int], visible: frozenset[int]
) -> dict[str, frozenset[str]]:
    """Returns, for each field of a backward's Graph that has positions of inputs, the names that a forward gives them.
    The partitioner keeps names: a backward's input with the name of a forward's input is that very tensor, saved."""
    inputs = [node.name for node in forward.graph.find_nodes(op="placeholder")]
    dying = torch_api.held_by_backward(forward, visible)
    return {
        "static_inputs": frozenset(inputs[position] for position in static if position < len(inputs)),
        "dying_inputs": dying,
        "owned_inputs": torch_api.alone_in_memory(forward, dying),
        "made_inputs": torch_api.held_by_backward(forward, frozenset()),
    }


def saved_positions(backward: torch.fx.GraphModule, saved: Mapping[str, frozenset[str]]) -> dict[str, frozenset[int]]:
    """Returns the fields of a backward's Graph by what `saved_names` returned."""
    names = [node.name for node in backward.graph.find_nodes(op="placeholder")]
    return {key: frozenset(at for at, name in enumerate(names) if name in those) for key, those in saved.items()}


def constant_of(graph: Graph, node: torch.fx.Node) -> Any:
    """Returns the object that a get_attr node names: a tensor constant, or the GraphModule of a higher-order op."""
    return operator.attrgetter(str(node.target))(graph.module)


def symbol_ranges(graph: Graph) -> Mapping[sympy.Symbol, tuple[sympy.Expr, sympy.Expr]]:
    """Returns the least and the greatest value of each symbol, both inclusive."""
    return torch_api.value_ranges(graph.shape_env)


def _fill_values(module: torch.fx.GraphModule, mode: Any) -> None:
    """Give constants and checkpointed random ops the fake value that AOTAutograd leaves out; `item()` its symbol."""
    for node in module.graph.nodes:
        _fill_binding(node)
        if "val" in node.meta:
            continue
        if node.op == "call_function":
            missing = torch_api.missing_value(node, mode)
            if missing is not None:
                node.meta["val"] = missing
        if node.op == "get_attr":
            value = operator.attrgetter(str(node.target))(module)
            if isinstance(value, torch.Tensor):
                node.meta["val"] = value if mode is None else torch_api.make_fake(mode, value)


def _fill_binding(node: torch.fx.Node) -> None:
    """Say which symbols a node binds, which AOTAutograd and torch.export leave out where they trace a graph for the
    second time, and where a size was found to be what is known."""
    if node.op == "call_function" and not node.meta.get("unbacked_bindings") and torch_api.depends_on_data(node.target):
        bindings = torch_api.bindings_of(node.meta.get("val"))
        if bindings:
            node.meta["unbacked_bindings"] = bindings


def _mutated(placeholders: list[torch.fx.Node], module: torch.fx.GraphModule) -> frozenset[int]:
    position = {node: index for index, node in enumerate(placeholders)}
    written = (target for node in module.graph.nodes for target in torch_api.written_arguments(node))
    return frozenset(position[node] for node in written if node in position)
