"""Fold what is known before the model runs: tensors with one value everywhere, and what is computed of them.

A uniform tensor comes from `full`, or from a number that the model holds as a 0-dimensional CPU tensor. Exact pointwise
ops of uniform tensors become one `full`; ops whose result depends on the device's math library (exp, sin) do only where
eager has torch compute one number on the CPU: that number would travel to the kernel's device in every call.
Tensors with more than one value are left alone: storing them costs memory and saves a kernel nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from litz.capture import torch_api
from litz.capture.eager_types import holds
from litz.capture.graph import Graph, constant_of
from litz.capture.passes.rewrite import Call, Changes, rewrite, tensor_of
from litz_passes.escapes import find_escapes
from litz_plugins.records import PassContext

aten, prims = torch.ops.aten, torch.ops.prims

Number = bool | int | float

# Rounded once and correctly, or not at all, wherever they run.
_EXACT: frozenset[Callable[..., Any]] = frozenset(
    op
    for packet in (
        *(aten.add, aten.sub, aten.mul, aten.neg, aten.abs, aten.maximum, aten.minimum, aten.where),
        *(aten.eq, aten.ne, aten.lt, aten.le, aten.gt, aten.ge, aten.clamp),
        *(aten.logical_and, aten.logical_or, aten.logical_not, aten.logical_xor, aten.relu),
        *(aten.bitwise_and, aten.bitwise_or, aten.bitwise_not, aten.bitwise_xor, aten.isnan),
        *(aten.floor, aten.ceil, aten.trunc, aten.round, aten.sign, aten.div, aten.sqrt),
    )
    for op in (getattr(packet, name) for name in packet.overloads())
    if not op._schema.is_mutable and op != aten.round.decimals
)
CONVERSIONS = frozenset({prims.convert_element_type.default, aten._to_copy.default})
VIEWS = frozenset(
    {
        *(aten.view.default, aten.expand.default, aten.permute.default, aten.unsqueeze.default, aten.squeeze.dims),
        *(aten.slice.Tensor, aten.select.int, aten.alias.default, prims.broadcast_in_dim.default),
    }
)
# Where the value stands among the arguments.
_FILLS = {aten.full.default: 1, aten.full_like.default: 1, aten.scalar_tensor.default: 0}
_COPIES = frozenset({aten.clone.default, aten.lift_fresh_copy.default, aten.lift_fresh.default})


def fold_constants(graph: Graph, context: PassContext | None = None) -> Graph:
    """Returns the graph with every foldable tensor of one value as a `full`; the same object if there is no such
    tensor."""
    escapes = find_escapes(graph)
    emit: dict[torch.fx.Node, Call] = {}
    for node, value in uniform_values(graph).items():
        if node.op != "call_function" or node.target == aten.full.default:
            continue
        if torch_api.aliased_argument(node) is not None and (node in escapes.outputs or node in escapes.written):
            continue  # a view that leaves the graph has to go on sharing its base's storage
        size = _contiguous_size(graph, node)
        if size is not None:
            tensor = node.meta["val"]
            emit[node] = Call(aten.full.default, (size, value), {"dtype": tensor.dtype, "device": tensor.device})
    return rewrite(graph, Changes(emit=emit))


def uniform_values(graph: Graph) -> dict[torch.fx.Node, Number]:
    """Returns the nodes of the graph whose elements all have one known value, with that value."""
    values: dict[torch.fx.Node, Number] = {}
    for node in graph.nodes:
        tensor = tensor_of(node)
        if tensor is None or tensor.layout != torch.strided or tensor.dtype.is_complex:
            continue
        value = _value_of(graph, node, tensor, values)
        if value is not None:
            values[node] = value
    return values


def _value_of(
    graph: Graph, node: torch.fx.Node, tensor: torch.Tensor, values: dict[torch.fx.Node, Number]
) -> Number | None:
    if node.op == "get_attr":
        constant = constant_of(graph, node)
        if isinstance(constant, torch.Tensor) and constant.dim() == 0 and constant.device.type == "cpu":
            return None if torch_api.is_fake(constant) else constant.item()
        return None
    if node.op != "call_function":
        return None
    if node.target in _FILLS:
        fill: Any = node.args[_FILLS[node.target]]
        known = isinstance(fill, (bool, int, float)) and holds(tensor.dtype, fill)
        return _as_stored(fill, tensor.dtype) if known else None
    first: Any = node.args[0] if node.args else None
    if node.target in VIEWS or node.target in _COPIES:
        source = tensor_of(first)
        return values.get(first) if source is not None and source.dtype == tensor.dtype else None
    if node.target in CONVERSIONS:
        return _as_stored(values[first], tensor.dtype) if first in values else None
    exact = node.target in _EXACT and node.kwargs.get("alpha", 1) == 1
    if node.all_input_nodes and (exact or _is_one_of_the_cpus(node, tensor)):
        return _evaluate(node, tensor.dtype, values)
    return None


def _is_one_of_the_cpus(node: torch.fx.Node, tensor: torch.Tensor) -> bool:
    """Returns whether the node computes one number, on the CPU, as torch does when it is evaluated here."""
    if tensor.dim() or tensor.device.type != "cpu" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    return torch.Tag.pointwise in node.target.tags and torch_api.is_pure(node)


def _as_stored(value: Number, dtype: torch.dtype) -> Number | None:
    """`value` after a round trip through `dtype`; None where it does not fit (the conversion is the device's own)."""
    if not dtype.is_floating_point and dtype != torch.bool and isinstance(value, float):
        limits = torch.iinfo(dtype)
        if not math.isfinite(value) or not limits.min <= value <= limits.max:
            return None
    try:
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            return torch.full((), value, dtype=dtype).item()  # torch.tensor takes no such number
        # From double: torch.tensor(0.1) would be a float32 already.
        held = torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)
        return held.to(dtype).item()
    except (RuntimeError, OverflowError):
        return None


def _evaluate(node: torch.fx.Node, dtype: torch.dtype, values: dict[torch.fx.Node, Number]) -> Number | None:
    """The op's value on one element, computed by torch itself on the CPU; None unless all operands are uniform."""

    def element(argument: Any) -> Any:
        if not isinstance(argument, torch.fx.Node):
            return argument
        tensor = argument.meta["val"]
        # Type promotion treats 0-dimensional tensors unlike others, so keep the category.
        return torch.full([1] if tensor.dim() else [], values[argument], dtype=tensor.dtype)

    if not all(input in values for input in node.all_input_nodes):
        return None
    if node.kwargs and any(isinstance(value, torch.fx.Node) for value in node.kwargs.values()):
        return None
    try:
        result = node.target(*(element(argument) for argument in node.args), **node.kwargs)  # type: ignore[operator]
    except (RuntimeError, TypeError, ZeroDivisionError):
        return None  # whatever is wrong is for the model's run to report
    return result.item() if result.dtype == dtype and result.numel() == 1 else None


def _contiguous_size(graph: Graph, node: torch.fx.Node) -> list[Any] | None:
    """The node's sizes as arguments for `full`, or None if its strides are not what `full` gives or its sizes are
    symbols that no argument at hand stands for."""
    tensor = node.meta["val"]
    if not all(isinstance(size, int) for size in (*tensor.shape, *tensor.stride())):
        return _symbolic_size(node)
    expected = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if stride != expected:
            return None
        expected *= max(size, 1)
    return list(tensor.shape)


def _symbolic_size(node: torch.fx.Node) -> list[Any] | None:
    """Sizes borrowed from an operand that is a `full` of the very same geometry."""
    tensor = node.meta["val"]
    for operand in node.all_input_nodes:
        other = tensor_of(operand)
        if operand.target != aten.full.default or other is None or other.dim() != tensor.dim():
            continue
        pairs = [*zip(tensor.shape, other.shape, strict=True), *zip(tensor.stride(), other.stride(), strict=True)]
        if all(torch_api.same_statically(x, y) for x, y in pairs):
            return list(operand.args[0])  # type: ignore[arg-type]
    return None
