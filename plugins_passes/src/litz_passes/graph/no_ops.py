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
from litz.capture.passes.rewrite import Call, Changes, rewrite, same_geometry, tensor_of
from litz_passes.escapes import find_escapes
from litz_plugins.records import PassContext

from .fold_constants import VIEWS, Number, uniform_values

aten, prims = torch.ops.aten, torch.ops.prims

# Views that select and order elements and touch nothing else (a conj or dtype view would not do).
_VIEWS = VIEWS | {aten.reshape.default, aten.as_strided.default}


def remove_no_ops(graph: Graph, context: PassContext | None = None) -> Graph:
    """Returns the graph without ops that return their input unchanged; the same object if there are no such ops."""
    escapes = find_escapes(graph)
    outputs = set(escapes.outputs)
    uniform = uniform_values(graph)
    replace: dict[torch.fx.Node, torch.fx.Node] = {}
    emit: dict[torch.fx.Node, Call] = {}
    for node in graph.nodes:
        if node.op != "call_function" or _finds_out(node):
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
            found = rule(node, uniform) if rule is not None else None
            source = replace.get(found, found) if isinstance(found, torch.fx.Node) else None
            if source is not None and not same_geometry(node, source, offset=node in escapes.strided):
                source = None
            if source is not None and node in outputs:
                if _owns_its_storage(source) and source not in outputs and source not in escapes.written:
                    outputs.add(source)
                else:
                    source = None
        if source is not None:
            replace[node] = replace.get(source, source)
    return rewrite(graph, Changes(replace=replace, emit=emit))


def _finds_out(node: torch.fx.Node) -> bool:
    """Returns whether a size is read off the node's result: torch 2.11's slice of a size that depends on data."""
    return bool(node.meta.get("unbacked_bindings"))


def _owns_its_storage(node: torch.fx.Node) -> bool:
    """Returns whether `node` is an op's fresh result, and no input, constant, view or one of several results."""
    return (
        node.op == "call_function"
        and isinstance(node.target, torch._ops.OpOverload)
        and torch_api.aliased_argument(node) is None
        and not torch_api.is_collective(node.target)
    )


def _is_reshape(node: torch.fx.Node) -> bool:
    """Returns whether an as_strided only changes the shape: from a contiguous tensor to one, over all its elements."""
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


FAR = 100
"""How many views up a chain the same view is looked for: all the way up, a chain of n would take n * n steps."""


def _same_view(node: torch.fx.Node) -> torch.fx.Node | None:
    """The furthest node up the chain of views that has this view's geometry: the same storage seen the same way."""
    found = None
    base: Any = node
    for _ in range(FAR):
        if not isinstance(base, torch.fx.Node) or base.target not in _VIEWS or _finds_out(base):
            break
        base = base.args[0]
        if isinstance(base, torch.fx.Node) and same_geometry(node, base, offset=True):
            found = base
    return found


Uniform = dict[torch.fx.Node, Number]
Rule = Callable[[torch.fx.Node, Uniform], Any]
"""Takes a call and the nodes with one value. Returns the argument that the call returns, if the argument lies in memory
as the result does; something else, or None, if the call returns none of its arguments."""


def _first(node: torch.fx.Node, uniform: Uniform) -> Any:
    """A copy or conversion: a no-op if the geometry, dtype and device are the same."""
    return None if node.kwargs.get("pin_memory") else node.args[0]


def _pad(node: torch.fx.Node, uniform: Uniform) -> Any:
    pads: Any = node.args[1]
    return node.args[0] if all(isinstance(pad, int) and pad == 0 for pad in pads) else None


def _cat(node: torch.fx.Node, uniform: Uniform) -> Any:
    tensors = node.args[0]
    return tensors[0] if isinstance(tensors, (list, tuple)) and len(tensors) == 1 else None


def _add(node: torch.fx.Node, uniform: Uniform) -> Any:
    x, y = node.args[0], node.args[1]
    if _is_zero(_number(y, uniform), node, negative=True):
        return x
    return y if _is_zero(_number(x, uniform), node, negative=True) else None


def _sub(node: torch.fx.Node, uniform: Uniform) -> Any:
    return node.args[0] if _is_zero(_number(node.args[1], uniform), node, negative=False) else None


def _mul(node: torch.fx.Node, uniform: Uniform) -> Any:
    x, y = node.args[0], node.args[1]
    if _number(y, uniform) == 1:
        return x
    return y if _number(x, uniform) == 1 else None


def _div(node: torch.fx.Node, uniform: Uniform) -> Any:
    return node.args[0] if _number(node.args[1], uniform) == 1 else None


def _where(node: torch.fx.Node, uniform: Uniform) -> Any:
    condition, x, y = node.args[:3]
    return (x if uniform[condition] else y) if condition in uniform else None  # type: ignore[index]


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


def _number(value: Any, uniform: Uniform) -> Number | None:
    if isinstance(value, torch.fx.Node):
        return uniform.get(value)
    return value if isinstance(value, (bool, int, float)) else None


def _is_zero(value: Number | None, node: torch.fx.Node, *, negative: bool) -> bool:
    """Returns whether `value` is the zero that leaves every element as it is: for floats, -0.0 in a sum and 0.0 in a
    difference; for integers, just 0."""
    if value is None or value != 0 or node.kwargs.get("alpha", 1) != 1:
        return False
    tensor = tensor_of(node)
    if tensor is None or not tensor.dtype.is_floating_point:
        return tensor is not None and not tensor.dtype.is_complex
    return (math.copysign(1.0, value) < 0) == negative
