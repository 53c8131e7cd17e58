"""Remove ops that return what they were given: views to the same geometry, copies nobody needs, x * 1.

Floating-point rules are kept to the letter: `x + 0.0` turns -0.0 into 0.0, so it stays, while `x - 0.0` and `x * 1` go.
An op that made a fresh tensor stays if its result, or a view of it, is used in a write, or is returned and its input is
not a fresh tensor that nobody else returns: it may be there to keep the two apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from litz.capture import torch_api
from litz.capture.graph import Graph
from litz.capture.passes.constants import Number, uniform_values
from litz.capture.passes.rewrite import Call, Plan, find_escapes, rewrite, same_geometry, tensor_of
from litz_plugins.records import PassContext

aten, prims = torch.ops.aten, torch.ops.prims

# Views that select and order elements and touch nothing else (a conj or dtype view would not do).
_VIEWS = frozenset(
    {
        *(aten.view.default, aten.reshape.default, aten.expand.default, aten.permute.default, aten.unsqueeze.default),
        *(aten.squeeze.dims, aten.slice.Tensor, aten.select.int, aten.as_strided.default, aten.alias.default),
        prims.broadcast_in_dim.default,
    }
)


def remove_no_ops(graph: Graph, context: PassContext | None = None) -> Graph:
    """The graph without ops that return their input unchanged; the same object if there are none."""
    escapes = find_escapes(graph)
    outputs = set(escapes.outputs)
    uniform = uniform_values(graph)
    replace: dict[torch.fx.Node, torch.fx.Node] = {}
    emit: dict[torch.fx.Node, Call] = {}
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if node.target in _VIEWS:
            # The caller may tell a returned view from its base (autograd does), so returned views stay.
            source = None if node in escapes.direct else _same_view(node)
            if source is None and _is_reshape(node):
                emit[node] = Call(aten.view.default, (node.args[0], list(node.args[1])))  # type: ignore[arg-type]
        elif node in escapes.written:
            source = None
        else:
            rule = _RULES.get(node.target)
            source = rule(node, uniform) if rule is not None else None
            source = replace.get(source, source) if source is not None else None
            if source is not None and not same_geometry(node, source, offset=node in escapes.strided):
                source = None
            if source is not None and node in outputs:
                if _owns_its_storage(source) and source not in outputs and source not in escapes.written:
                    outputs.add(source)
                else:
                    source = None
        if source is not None:
            replace[node] = replace.get(source, source)
    return rewrite(graph, Plan(replace=replace, emit=emit))


def _owns_its_storage(node: torch.fx.Node) -> bool:
    """Whether `node` is an op's fresh result, and not an input, a constant, a view or one of several results."""
    return (
        node.op == "call_function"
        and isinstance(node.target, torch._ops.OpOverload)
        and torch_api.aliased_argument(node) is None
        and not torch_api.is_collective(node.target)
    )


def _is_reshape(node: torch.fx.Node) -> bool:
    """Whether an as_strided only changes the shape: from a contiguous tensor to one, over all of its elements."""
    if node.target != aten.as_strided.default:
        return False
    result, source = tensor_of(node), tensor_of(node.args[0])
    if result is None or source is None:
        return False
    known = (*result.shape, *result.stride(), *source.shape, *source.stride(), result.storage_offset())
    return (
        all(isinstance(number, int) for number in known)
        and result.storage_offset() == source.storage_offset()
        and result.numel() == source.numel()
        and result.is_contiguous()
        and source.is_contiguous()
    )


def _same_view(node: torch.fx.Node) -> torch.fx.Node | None:
    """The furthest node up the chain of views that has this view's geometry: the same storage seen the same way."""
    found = None
    base: Any = node
    while isinstance(base, torch.fx.Node) and base.target in _VIEWS:
        base = base.args[0]
        if isinstance(base, torch.fx.Node) and same_geometry(node, base, offset=True):
            found = base
    return found


Rule = Callable[[torch.fx.Node, dict[torch.fx.Node, Number]], torch.fx.Node | None]


def _first(node: torch.fx.Node, uniform: dict[torch.fx.Node, Number]) -> torch.fx.Node | None:
    """A copy or conversion: a no-op if the geometry, dtype and device are the same."""
    return None if node.kwargs.get("pin_memory") else _node(node.args[0])


def _pad(node: torch.fx.Node, uniform: dict[torch.fx.Node, Number]) -> torch.fx.Node | None:
    pads = node.args[1]
    return _node(node.args[0]) if all(isinstance(pad, int) and pad == 0 for pad in pads) else None  # type: ignore


def _cat(node: torch.fx.Node, uniform: dict[torch.fx.Node, Number]) -> torch.fx.Node | None:
    tensors = node.args[0]
    return _node(tensors[0]) if isinstance(tensors, (list, tuple)) and len(tensors) == 1 else None


def _add(node: torch.fx.Node, uniform: dict[torch.fx.Node, Number]) -> torch.fx.Node | None:
    x, y = node.args[0], node.args[1]
    if _is_zero(_number(y, uniform), node, negative=True):
        return _node(x)
    if node.kwargs.get("alpha", 1) == 1 and _is_zero(_number(x, uniform), node, negative=True):
        return _node(y)
    return None


def _sub(node: torch.fx.Node, uniform: dict[torch.fx.Node, Number]) -> torch.fx.Node | None:
    return _node(node.args[0]) if _is_zero(_number(node.args[1], uniform), node, negative=False) else None


def _mul(node: torch.fx.Node, uniform: dict[torch.fx.Node, Number]) -> torch.fx.Node | None:
    x, y = node.args[0], node.args[1]
    if _number(y, uniform) == 1:
        return _node(x)
    return _node(y) if _number(x, uniform) == 1 else None


def _div(node: torch.fx.Node, uniform: dict[torch.fx.Node, Number]) -> torch.fx.Node | None:
    return _node(node.args[0]) if _number(node.args[1], uniform) == 1 else None


def _where(node: torch.fx.Node, uniform: dict[torch.fx.Node, Number]) -> torch.fx.Node | None:
    condition, x, y = node.args[:3]
    if condition not in uniform:
        return None
    return _node(x) if uniform[condition] else _node(y)  # type: ignore[index]


_RULES: dict[Any, Rule] = {
    aten.clone.default: _first,
    aten._to_copy.default: _first,
    prims.convert_element_type.default: _first,
    aten.constant_pad_nd.default: _pad,
    aten.cat.default: _cat,
    aten.add.Tensor: _add,
    aten.sub.Tensor: _sub,
    aten.mul.Tensor: _mul,
    aten.div.Tensor: _div,
    aten.pow.Tensor_Scalar: _div,  # x ** 1, by the same rule
    aten.where.self: _where,
}


def _node(value: Any) -> torch.fx.Node | None:
    return value if isinstance(value, torch.fx.Node) else None


def _number(value: Any, uniform: dict[torch.fx.Node, Number]) -> Number | None:
    if isinstance(value, torch.fx.Node):
        return uniform.get(value)
    return value if isinstance(value, (bool, int, float)) else None


def _is_zero(value: Number | None, node: torch.fx.Node, *, negative: bool) -> bool:
    """Whether `value` is the zero that leaves every element as it is: for floats, -0.0 in a sum and 0.0 in a
    difference; for integers, just 0."""
    if value is None or value != 0 or node.kwargs.get("alpha", 1) != 1:
        return False
    tensor = tensor_of(node)
    if tensor is None or not tensor.dtype.is_floating_point:
        return tensor is not None and not tensor.dtype.is_complex
    return (math.copysign(1.0, value) < 0) == negative
