"""The bodies of higher-order ops as Graphs of their own: in, a Graph that is final; out, those that can be compiled.

A body goes through the same stages as the graph that calls it, and becomes a region of the graph's Program
(`litz.regions`). An op with a body that cannot be compiled stays a call of torch's, which runs its bodies eagerly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import sympy
import torch
from torch.utils._pytree import tree_leaves

from litz.capture import torch_api
from litz.capture.graph import Graph, constant_of, make_graph
from litz.ir import Layout
from litz.regions import CALLS, operands_of
from litz_plugins import Decision

from .strides import layout_of


def bodies_of(graph: Graph, note: Callable[[Decision], None] = lambda decision: None) -> dict[str, Graph]:
    """Returns the bodies that can be compiled, by the attribute of the graph's module. note: takes why an op's bodies
    run eagerly."""
    found: dict[str, Graph] = {}
    barred: dict[str, str] = {}
    calls = [node for node in graph.nodes if _name(node) in CALLS]
    for call in calls:
        places = operands_of(_name(call), call.args).regions
        bodies = {str(place.target): found.get(str(place.target)) or _body(graph, place) for place in places}
        problem = next(_problems(call, bodies), "")
        if problem:
            note(Decision("lower", call.name, "its bodies run eagerly", problem))
            barred |= dict.fromkeys(bodies, problem)
        found |= {name: body for name, body in bodies.items() if body is not None}
    # All calls that share a body call it alike.
    while True:
        names = [{str(p.target) for p in operands_of(_name(call), call.args).regions} for call in calls]
        more = {name for each in names if each & barred.keys() for name in each} - barred.keys()
        if not more:
            return {name: body for name, body in found.items() if name not in barred}
        barred |= dict.fromkeys(more, "")


def run_eagerly(target: Any, args: Any, kwargs: Any) -> str:
    """Returns why a call that is no call of a region runs its bodies eagerly; "" if the call has no bodies, or if
    `bodies_of` has said why."""
    name = getattr(target, "__name__", "")
    if name in CALLS or not any(isinstance(leaf, torch.fx.GraphModule) for leaf in tree_leaves((args, kwargs))):
        return ""
    inner = getattr(args[0], "__name__", "") if args else ""
    return f"a body of {inner} writes what the call is given" if inner in CALLS else f"litz knows no op {name}"


def _name(node: torch.fx.Node) -> str:
    return str(node.target.__name__) if torch_api.is_higher_order(node.target) else ""  # type: ignore[union-attr]


def _body(graph: Graph, place: torch.fx.Node) -> Graph | None:
    module = constant_of(graph, place) if place.op == "get_attr" else None
    if not isinstance(module, torch.fx.GraphModule):
        return None
    return make_graph(f"{graph.name}_{place.target}", module, "inference")


def _problems(call: torch.fx.Node, bodies: dict[str, Graph | None]) -> Iterator[str]:
    """Yields why bodies cannot be compiled for a call."""
    operands = operands_of(_name(call), call.args)
    for name, body in bodies.items():
        if body is None:
            yield f"{name} is no graph"
        elif body.mutated_inputs:
            yield f"{name} writes what it is given"
        elif len(body.placeholders) != len(operands.values):
            yield f"{name} takes {len(body.placeholders)} values and is given {len(operands.values)}"
        elif missing := _unknown_sizes(body):
            yield f"{name} uses {', '.join(map(str, missing))}, which nothing that it is given tells"
        else:
            for input_, given, sliced in zip(body.placeholders, operands.values, operands.sliced, strict=True):
                if not _lies_alike(input_.meta.get("val"), _value(given), sliced):
                    yield f"{input_.name} of {name} lies in memory otherwise than what is given"


def _value(given: Any) -> Any:
    return given.meta.get("val") if isinstance(given, torch.fx.Node) else given


def _lies_alike(taken: Any, given: Any, sliced: bool | str) -> bool:
    if not isinstance(taken, torch.Tensor) or not isinstance(given, torch.Tensor):
        return isinstance(taken, (torch.SymInt, int)) and isinstance(given, (torch.SymInt, int)) and not sliced
    if taken.layout != torch.strided or given.layout != torch.strided or taken.is_neg() or given.is_neg():
        return False
    if taken.dtype != given.dtype or taken.device != given.device or taken.is_conj() != given.is_conj():
        return False
    own, whole = layout_of(taken), layout_of(given)
    size, stride = (whole.size[1:], whole.stride[1:]) if sliced else (whole.size, whole.stride)
    wanted = Layout.contiguous(size).stride if sliced == "dense" else stride
    return own.stride == wanted and len(own.size) == len(size)


def _unknown_sizes(body: Graph) -> list[sympy.Symbol]:
    """The symbols of a body's values that its inputs do not hold as such, and that no call in it finds out."""
    known: set[Any] = set()
    for node in body.placeholders:
        known.update(_numbers(node.meta.get("val")))
    used: set[Any] = set()
    for node in body.nodes:
        known.update(node.meta.get("unbacked_bindings") or ())
        for number in _numbers(node.meta.get("val")):
            used |= number.free_symbols
    return sorted(used - known, key=str)


def _numbers(value: Any) -> Iterator[sympy.Expr]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _numbers(item)
    elif isinstance(value, torch.Tensor) and value.layout == torch.strided:
        yield from map(torch_api.sympy_of, (*value.shape, *value.stride()))
    elif isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        yield torch_api.sympy_of(value)
