"""A Graph as text, for people: one line per node, with dtype, shape, and strides where they are not the usual ones."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from litz.capture.graph import Graph

_SHORT = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "b8",
    torch.complex64: "c64",
    torch.complex128: "c128",
}


def describe(graph: Graph) -> str:
    """Returns the whole graph as text, a line for each node. Reading the graph evaluates no symbol and adds no
    guard."""
    lines = []
    for position, node in enumerate(graph.placeholders):
        marks = [word for word in ("static", "dying", "mutated") if position in getattr(graph, f"{word}_inputs")]
        suffix = f" ({', '.join(marks)})" if marks else ""
        lines.append(f"  %{node.name}: {value_text(node.meta.get('val'))} = input {position}{suffix}")
    for node in graph.nodes:
        if node.op not in ("placeholder", "output"):
            lines.append(f"  {_node_text(node)}")
    outputs = [
        f"{_argument_text(value)}{'' if position in graph.visible_outputs else ' (saved)'}"
        for position, value in enumerate(graph.outputs)
    ]
    lines.append(f"  return {', '.join(outputs)}")
    words = set(re.findall(r"\w+", "\n".join(lines)))
    sizes = [f"{symbol}={value}" for symbol, value in graph.hints.items() if str(symbol) in words]
    header = f"{graph.name} ({graph.kind}){', sizes ' + ', '.join(sizes) if sizes else ''}:"
    return "\n".join([header, *lines])


def value_text(value: Any) -> str:
    """Returns a fake value as text: a tensor as `f32[4, s0]`, with its `stride(...)` unless it is contiguous, and its
    device unless that is the CPU."""
    if isinstance(value, torch.Tensor):
        text = f"{_SHORT.get(value.dtype, str(value.dtype))}[{', '.join(map(str, value.shape))}]"
        if value.layout != torch.strided:
            return f"{text} {value.layout}"
        if [str(s) for s in value.stride()] != _contiguous_text(value):
            text += f" stride({', '.join(map(str, value.stride()))})"
        return text if value.device.type == "cpu" else f"{text} {value.device}"
    if isinstance(value, (list, tuple)):
        return f"({', '.join(value_text(item) for item in value)})"
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return f"{type(value).__name__} {value}"
    return "?" if value is None else type(value).__name__


def _contiguous_text(value: torch.Tensor) -> list[str]:
    strides: list[str] = []
    expected: Any = 1
    for size in reversed(value.shape):
        strides.append(str(expected))
        if not (isinstance(size, int) and size < 2):
            expected = expected * size
    return list(reversed(strides))


def _node_text(node: torch.fx.Node) -> str:
    if node.op == "get_attr":
        return f"%{node.name}: {value_text(node.meta.get('val'))} = constant {node.target}"
    arguments = [_argument_text(argument) for argument in node.args]
    arguments += [f"{name}={_argument_text(value)}" for name, value in node.kwargs.items()]
    target = getattr(node.target, "__name__", str(node.target)) if callable(node.target) else str(node.target)
    if isinstance(node.target, torch._ops.OpOverload):
        target = str(node.target)
    return f"%{node.name}: {value_text(node.meta.get('val'))} = {target}({', '.join(arguments)})"


def _argument_text(value: Any) -> str:
    if isinstance(value, torch.fx.Node):
        return f"%{value.name}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_argument_text(item) for item in value)}]"
    return str(value)
