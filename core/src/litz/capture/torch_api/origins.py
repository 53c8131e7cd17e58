"""What tracing notes of where nodes come from: module paths, source lines, and the names of inputs.

All of it is metadata that torch keeps for people, so nothing here raises: what is not there, or is of another form in
another version of torch, is not known.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from torch._ops import OpOverload

from litz.origins.operations import Origin

TORCH = os.path.dirname(torch.__file__) + os.sep
_FRAME = re.compile(r'^ *File "(.*)", line (\d+)', re.MULTILINE)
_SOURCE = re.compile(r"^[LG]\['(\w+)'\]")
_HELD = re.compile(r"\._(?:modules|parameters|buffers)\[(['\"])(.*?)\1\]")
_CLOSURE = re.compile(r"^\.__closure__\[\d+\]\.cell_contents\.?")


def origin_of(node: torch.fx.Node) -> Origin:
    """Returns where a node of a traced graph comes from: its module, line and op. A node of a backward has the module
    of its forward."""
    meta = node.meta
    forward = meta.get("nn_module_stack")
    stack = forward or meta.get("fwd_nn_module_stack")
    trace = meta.get("stack_trace")
    file, line = _user_frame(trace) if isinstance(trace, str) else ("", 0)
    called = meta.get("original_aten") or node.target
    op = str(getattr(called, "overloadpacket", called)) if isinstance(called, OpOverload) else ""
    # A node that the partitioner computes once more for the backward is not of the gradient.
    backward = meta.get("partitioner_tag") == "is_backward" or bool(not forward and meta.get("fwd_nn_module_stack"))
    return Origin(_module_path(stack), file, line, op, backward)


def _module_path(stack: Any) -> str:
    """The path of the innermost module of `nn_module_stack`: its values are (path, class)."""
    if not isinstance(stack, Mapping) or not stack:
        return ""
    last = list(stack.values())[-1]
    path = last[0] if isinstance(last, (tuple, list)) and last else last
    return user_name(path) if isinstance(path, str) else ""


@lru_cache(maxsize=4096)
def _user_frame(trace: str) -> tuple[str, int]:
    """File and line of the innermost frame that is not torch's own; ('', 0) without any."""
    frames = _FRAME.findall(trace)
    own = [frame for frame in frames if not frame[0].startswith(TORCH)] or frames
    return (own[-1][0], int(own[-1][1])) if own else ("", 0)


@lru_cache(maxsize=4096)
def user_name(source: str) -> str:
    """Returns the user's name of a value for dynamo's: "layers.0.weight" for "L['self']._modules['layers']..."."""
    root = _SOURCE.match(source)
    rest = source[root.end() :] if root else source
    rest = _HELD.sub(lambda held: f".{held.group(2)}", _CLOSURE.sub(".", rest))
    name = "" if root is None or root.group(1) in ("self", "fn") else root.group(1)
    return (name + rest).lstrip(".").removeprefix("self.") if name + rest != "self" else ""


def placeholder_names(gm: Any) -> tuple[str, ...]:
    """Returns the user's names for the inputs of dynamo's graph, in order, '' for an input without a name; () for the
    wrapper that compiled autograd passes."""
    if not isinstance(gm, torch.fx.GraphModule):  # compiled autograd hands over a wrapper
        return ()
    return tuple(_placeholder_name(node) for node in gm.graph.find_nodes(op="placeholder"))


def _placeholder_name(node: torch.fx.Node) -> str:
    source = getattr(node, "_dynamo_source", None) or getattr(node.meta.get("grapharg"), "source", None)
    try:
        name = getattr(source, "name", "")
        name = name() if callable(name) else name  # a method before torch 2.10
    except Exception:  # sources of generated values have none
        return ""
    return user_name(name) if isinstance(name, str) else ""


def input_position(node: torch.fx.Node, count: int) -> tuple[int, str] | None:
    """Returns which of `count` inputs of dynamo's graph a placeholder of AOTAutograd's is, and the part of it that it
    is (of a tensor subclass); None for all else that AOTAutograd passes along."""
    described = node.meta.get("desc")
    if described is None:  # inputs have their order while they are neither joined nor split, and all are there
        given = [str(placeholder.target) for placeholder in node.graph.find_nodes(op="placeholder")]
        at = given.index(str(node.target))
        whole = len(given) == count and all(re.fullmatch(r"(primals_|arg)\d+(_1)?", name) for name in given)
        return (at, "") if whole else None
    return _described(described, count)


def _described(described: Any, count: int) -> tuple[int, str] | None:
    part = ""
    while hasattr(described, "base"):
        part = f".{described.attr}{part}" if hasattr(described, "attr") else part
        described = described.base
    at = getattr(described, "idx", None)
    return (at, part) if _is_plain(described, "Input") and isinstance(at, int) and at < count else None


def _is_plain(described: Any, kind: str) -> bool:
    return type(described).__name__ == f"PlainAOT{kind}"  # by name: where the classes are is torch's own


def gradient_positions(module: torch.fx.GraphModule, count: int) -> dict[int, tuple[int, str]]:
    """Returns, for each output of a backward that is the gradient of one of dynamo's `count` inputs, the input's
    position and the part of the input (of a tensor subclass, else '')."""
    described = module.graph.output_node().meta.get("desc")
    if not isinstance(described, (list, tuple)):
        return {}
    given = {at: _described(item.grad_of, count) for at, item in enumerate(described) if hasattr(item, "grad_of")}
    return {at: found for at, found in given.items() if found is not None}


def tangent_position(node: torch.fx.Node) -> int | None:
    """Returns the position of the output whose gradient a backward's placeholder is; None for any other placeholder."""
    output = getattr(node.meta.get("desc"), "output", None)
    at = getattr(output, "idx", None)
    return at if _is_plain(output, "Output") and isinstance(at, int) else None
