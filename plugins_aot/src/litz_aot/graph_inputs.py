"""A graph and its inputs as a compile without dynamo takes them: the other module that touches private parts of torch.

In: an FX graph, and tensors or numbers. Out: a graph with flat outputs whose tensors are inputs, fake inputs of one
mode, and what a call must be like, as data.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._guards import TracingContext
from torch._guards import tracing as torchs_tracing
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree

from litz.capture import torch_api
from litz.codegen.sizes import python_text
from litz.runtime.stored import path_of

from .errors import ArtifactError


@dataclass(frozen=True)
class FlatGraph:
    """module: the graph, with `state`'s tensors, by name, as its first inputs, and a flat tuple of outputs. names: of
    all its inputs. out_spec: how the outputs were built."""

    module: torch.fx.GraphModule
    state: Mapping[str, torch.Tensor]
    names: tuple[str, ...]
    out_spec: Any


def flat_graph(gm: torch.fx.GraphModule) -> FlatGraph:
    """Returns a copy of a graph, flat. Errors: ArtifactError for a graph that calls modules."""
    flat, new, state = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node](), dict[str, torch.Tensor]()
    tensors = {node: _held(gm, node) for node in gm.graph.find_nodes(op="get_attr")}
    for node, value in tensors.items():
        if isinstance(value, torch.Tensor):
            name = f"state_{str(node.target).replace('.', '_')}"
            known = next((made for old, made in new.items() if old.target == node.target), None)
            new[node] = known or flat.placeholder(name)
            if known is None:
                state[new[node].name] = value.detach() if isinstance(value, torch.nn.Parameter) else value
    for node in gm.graph.nodes:
        if node in new or node.op == "output":
            continue
        if node.op == "call_module" and not isinstance(gm.get_submodule(str(node.target)), torch.fx.GraphModule):
            problem = f"the graph calls the module {node.target}"
            raise ArtifactError(problem, todo="trace the module: dynamo and make_fx make graphs of operations")
        new[node] = flat.node_copy(node, new.__getitem__)
        new[node].meta = dict(node.meta)
    output = gm.graph.output_node()
    found, spec = pytree.tree_flatten(_plain(torch.fx.map_arg(output.args[0], new.__getitem__)))
    flat.output(tuple(found)).meta = dict(output.meta)
    module = torch.fx.GraphModule(gm, flat)
    module.meta = dict(getattr(gm, "meta", {}))
    names = tuple(node.name for node in flat.find_nodes(op="placeholder"))
    return FlatGraph(module, state, names, spec)


def _held(gm: torch.fx.GraphModule, node: torch.fx.Node) -> Any:
    return operator.attrgetter(str(node.target))(gm)


def _plain(value: Any) -> Any:
    """FX's immutable dicts and lists as Python's own."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return tuple(map(_plain, value)) if type(value) is tuple else value


def examples_of(
    gm: torch.fx.GraphModule, inputs: Sequence[Any], dynamic_shapes: str
) -> tuple[FakeTensorMode, list[Any]]:
    """Returns the mode of a trace, and the inputs as fake tensors and numbers of the mode. See `standalone_compile`.
    Errors: ArtifactError for inputs that do not fit the graph."""
    nodes = list(gm.graph.find_nodes(op="placeholder"))
    known, given = [_noted(node) for node in nodes], list(inputs)
    if dynamic_shapes == "from_graph":
        given += [None] * (len(nodes) - len(given))
        given = [own if own is not None else value for own, value in zip(known, given, strict=False)]
        missing = [node.name for node, value in zip(nodes, given, strict=False) if value is None]
        if missing:
            problem = f"nothing is given for {', '.join(missing)}, of which the graph has no meta['example_value']"
            raise ArtifactError(problem, todo="give inputs for all placeholders")
        mode = torch_api.fake_mode_of([*known, *map(_noted, gm.graph.nodes)]) or _new_mode()
    elif dynamic_shapes == "from_example_inputs":
        mode = _new_mode()
    else:
        context = TracingContext.try_get()
        if context is None or context.fake_mode is None:
            todo = 'call it inside a backend of torch.compile, or use dynamic_shapes="from_graph"'
            raise ArtifactError("no trace is under way, from which sizes could be taken", todo=todo)
        env = context.fake_mode.shape_env  # dynamo and its backends have a mode each, of one environment
        modes = (value.fake_mode for value in given if isinstance(value, FakeTensor))
        mode = next((own for own in modes if own.shape_env is env), context.fake_mode)
    if len(given) != len(nodes):
        raise ArtifactError(f"{len(given)} inputs are given for a graph that takes {len(nodes)}")
    if any(isinstance(value, (list, dict, set)) for value in given):
        raise ArtifactError("an input is a list or a dict", todo="give a graph with flat inputs")
    storages = dict[int, torch.UntypedStorage]()
    return mode, [_of_mode(mode, value, storages) for value in given]


def _noted(node: torch.fx.Node) -> Any:
    """Returns what a graph says of a node's result."""
    return node.meta.get("example_value", node.meta.get("val"))


def _new_mode() -> FakeTensorMode:
    return FakeTensorMode(shape_env=ShapeEnv())


def _of_mode(mode: FakeTensorMode, value: Any, storages: dict[int, torch.UntypedStorage]) -> Any:
    """An input as one of the mode, with the sizes that it has: symbols only of the mode's own environment. storages:
    those made so far, as fake tensors of another mode may share one."""
    if isinstance(value, torch.SymInt):
        return value if value.node.shape_env is mode.shape_env else torch_api.hint_of(value)
    if not isinstance(value, torch.Tensor) or (isinstance(value, FakeTensor) and value.fake_mode is mode):
        return value
    if not isinstance(value, FakeTensor):
        return mode.from_tensor(value, static_shapes=True)
    kept = value.fake_mode.shape_env is mode.shape_env
    memory = value.untyped_storage()
    numbers = [value.shape, value.stride(), (value.storage_offset(), memory.nbytes())]
    size, stride, (offset, nbytes) = ([n if kept else torch_api.hint_of(n) for n in row] for row in numbers)
    with mode:
        if memory._cdata not in storages:
            storages[memory._cdata] = torch.empty(nbytes, dtype=torch.uint8, device=value.device).untyped_storage()
        found = torch.empty(0, dtype=value.dtype, device=value.device)
        found.set_(storages[memory._cdata], offset, size, stride)
    return found.requires_grad_(value.requires_grad)


def fake_state(mode: FakeTensorMode, flat: FlatGraph) -> list[Any]:
    """Returns the tensors that a graph holds, as inputs of a trace."""
    return [mode.from_tensor(value, static_shapes=True) for value in flat.state.values()]


def as_it_is(gm: torch.fx.GraphModule) -> FlatGraph | None:
    """Returns a graph of dynamo's, which is flat; None for another one."""
    if not torch_api.returns_flat_tuple(gm):
        return None
    nodes = gm.graph.find_nodes(op="get_attr")
    if any(isinstance(_held(gm, node), torch.Tensor) for node in nodes):
        return None
    returned = gm.graph.output_node().args[0]
    names = tuple(node.name for node in gm.graph.find_nodes(op="placeholder"))
    return FlatGraph(gm, {}, names, pytree.tree_flatten([0] * len(returned))[1])  # type: ignore[arg-type]


@contextmanager
def tracing(mode: FakeTensorMode) -> Iterator[None]:
    """A trace of its own, in which inputs are of a mode."""
    with torchs_tracing(TracingContext(mode)):
        yield


def described(name: str, value: Any, autograd: bool) -> dict[str, Any]:
    """Returns what an input must be like, as `litz_aot.inputs` has it."""
    if isinstance(value, FakeTensor) and value.layout == torch.strided:
        return {
            "kind": "tensor",
            "name": name,
            "dtype": str(value.dtype),
            "device": str(value.device),
            "size": [_number(size) for size in value.shape],
            "stride": [_number(step) for step in value.stride()],
            "conj": value.is_conj(),
            "grad": value.requires_grad if autograd else None,
        }
    if isinstance(value, torch.SymInt) or type(value) in (int, float, bool):
        return {"kind": "number", "name": name, "value": _number(value)}
    return {"kind": "other", "name": name, "type": path_of(type(value))}


def _number(value: Any) -> int | float | str | None:
    if not isinstance(value, (torch.SymInt, torch.SymFloat)):
        return value
    expr = torch_api.sympy_of(value)
    if expr.is_Integer:
        return int(expr)
    try:
        return python_text(expr)
    except NotImplementedError:
        return None


def guard_texts(guards: Sequence[Any], env: ShapeEnv | None, inputs: Sequence[Any]) -> list[str]:
    """Returns what must hold of the sizes that inputs tell, as texts of Python: the guards, and the ends of ranges.
    That a size is neither 0 nor 1, which torch assumes of all that vary, is left out."""
    tensors = [value for value in inputs if isinstance(value, FakeTensor)]
    plain = [torch_api.sympy_of(size) for tensor in tensors for size in tensor.shape]
    plain += [torch_api.sympy_of(value) for value in inputs if isinstance(value, torch.SymInt)]
    symbols = {expr for expr in plain if expr.is_Symbol}
    found = [python_text(guard) for guard in guards if guard.free_symbols <= symbols]
    for symbol, (low, high) in torch_api.value_ranges(env).items():
        if symbol in symbols:
            found += [f"{int(low)} <= {symbol}"] if low.is_Integer and int(low) > 2 else []
            found += [f"{symbol} <= {int(high)}"] if high.is_Integer and int(high) < 2**62 else []
    return list(dict.fromkeys(found))
