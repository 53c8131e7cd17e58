"""A captured graph as text: equal texts for graphs that litz makes the same of.

In: a `Graph`. Out: a line for each node, with what it computes, of what, and all that is known of the result; nodes are
called by their numbers, since names say nothing that a result depends on. Constants are there by the digest of their
bytes. Errors: NotCacheable, for what cannot be told by text.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import sympy
import torch

from litz.capture import torch_api
from litz.capture.aliasing import storages_shared
from litz.capture.graph import Graph
from litz.errors import FunctionPlaceError
from litz.runtime.graph_entry import NotCacheable
from litz.runtime.stored import path_of

LARGEST_CONSTANTS = 64 << 20
"""Bytes of constants that are read for a key."""
_PLAIN = (torch.dtype, torch.layout, torch.memory_format, torch.device, torch.Size)
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_TORCHS = frozenset({"aten", "prims", "prim", "c10d_functional", "_c10d_functional", "rngprims", "higher_order"})
"""Namespaces of ops whose meaning torch's version tells."""
_KERNELS = "triton_kernel_wrapper"
"""What begins the name of the higher-order ops that launch a user's Triton kernel."""


def graph_text(graph: Graph) -> str:
    """Returns all of a graph that its compile may depend on, as text: equal texts mean equal code. Errors:
    NotCacheable for a graph with objects that no text describes."""
    writer = _Writer(graph)
    lines = [f"{graph.kind} graph"]
    lines += writer.module_lines(graph.module)
    lines += _shared_storages(graph)
    for field in ("static", "dying", "owned", "made", "mutated"):
        lines.append(f"{field} inputs {sorted(getattr(graph, f'{field}_inputs'))}")
    for field in ("visible", "rebuilt"):
        lines.append(f"{field} outputs {sorted(getattr(graph, f'{field}_outputs'))}")
    lines += [f"message {condition}: {text}" for condition, text in graph.messages]
    lines += [f"unclaimed {condition}" for condition in graph.unclaimed]
    return "\n".join(lines)


def symbols_text(graph: Graph) -> str:
    """Returns what is known of the sizes: hints, ranges, and what was found to hold so far. '' where all are numbers,
    and were so from the beginning: a size that was asserted to be 4 is 4 by now, and is checked at run time."""
    env = graph.shape_env
    if env is None or not (is_symbolic(graph) or torch_api.facts_of(env)):
        return ""
    lines = [f"{symbol} = {value}" for symbol, value in _sorted(graph.hints)]
    lines += [f"{low} <= {symbol} <= {high}" for symbol, (low, high) in _sorted(torch_api.value_ranges(env))]
    lines += sorted(f"guard {guard}" for guard in torch_api.guards_since(env, 0))
    lines += sorted(torch_api.facts_of(env))
    return "\n".join(lines)


def is_symbolic(graph: Graph) -> bool:
    """Returns whether any value of the graph has a size, or is a number, that is not known."""
    return any(_has_symbol(node.meta.get("val")) or "unbacked_bindings" in node.meta for node in graph.nodes)


def _has_symbol(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        strided = (*value.stride(), value.storage_offset()) if value.layout == torch.strided else ()
        return any(isinstance(number, torch.SymInt) for number in (*value.shape, *strided))
    if isinstance(value, (list, tuple)):
        return any(map(_has_symbol, value))
    return isinstance(value, _SYMBOLIC)


def _sorted(found: Mapping[sympy.Symbol, Any]) -> list[tuple[sympy.Symbol, Any]]:
    return sorted(found.items(), key=lambda item: str(item[0]))


def _shared_storages(graph: Graph) -> Iterator[str]:
    """Inputs that are parts of one storage."""
    for positions in storages_shared([node.meta.get("val") for node in graph.placeholders]):
        yield f"inputs {[*positions]} share a storage"


class _Writer:
    """Text of a graph's nodes and of the graphs inside of it."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.read = 0
        self._text = cache(str)
        self.target = cache(_target_text)

    def module_lines(self, module: torch.fx.GraphModule, prefix: str = "%") -> list[str]:
        numbers = {node: f"{prefix}{number}" for number, node in enumerate(module.graph.nodes)}
        return [self._line(node, numbers, module) for node in module.graph.nodes]

    def _line(self, node: torch.fx.Node, numbers: Mapping[torch.fx.Node, str], module: torch.fx.GraphModule) -> str:
        value = self.value(node.meta["val"]) if "val" in node.meta else "?"
        text = f"{numbers[node]}: {value} = "
        if node.op == "placeholder":
            return f"{text}input"
        if node.op == "get_attr":
            return f"{text}constant {self._constant(node, numbers[node], module)}"
        arguments = [self.argument(item, numbers) for item in node.args]
        arguments += [f"{name}={self.argument(item, numbers)}" for name, item in node.kwargs.items()]
        if node.op == "output":
            return f"return {', '.join(arguments)}"
        if node.op != "call_function":
            raise NotCacheable(f"its node {node.name} is a {node.op}")
        text += f"{self.target(node.target)}({', '.join(arguments)})"
        about = node.meta.get("original_aten")
        if about is not None and about is not node.target:
            text += f" of {about}"
        if node.meta.get("unbacked_bindings"):
            text += f" binds {node.meta['unbacked_bindings']}"
        if node.meta.get("source_fn_stack"):  # attention is known by what it was traced from
            text += f" from {_callable_text(node.meta['source_fn_stack'][-1][1])}"
        return text

    def value(self, value: Any) -> str:
        """Returns what is known of a node's result, as text."""
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, (list, tuple)):
            return f"({', '.join(map(self.value, value))})"
        if isinstance(value, _SYMBOLIC):
            return f"{type(value).__name__} {self._size(value)}"
        if value is None or isinstance(value, (bool, int, float, str, complex)):
            return repr(value)
        return type(value).__name__

    def _tensor(self, value: torch.Tensor) -> str:
        parts = [str(value.dtype), str(value.device), f"[{', '.join(map(self._size, value.shape))}]"]
        if value.layout == torch.strided and not value.is_nested:
            parts += [f"({', '.join(map(self._size, value.stride()))})", f"+{self._size(value.storage_offset())}"]
        else:
            parts.append(str(value.layout))
        marks = ("requires_grad", value.requires_grad), ("conj", value.is_conj()), ("neg", value.is_neg())
        parts += [name for name, holds in (*marks, ("zero", value._is_zerotensor())) if holds]
        return " ".join(parts)

    def _size(self, value: Any) -> str:
        return str(value) if isinstance(value, int) else self._text(torch_api.sympy_of(value))

    def argument(self, value: Any, numbers: Mapping[torch.fx.Node, str]) -> str:
        """Returns an argument of a call as text. numbers: what nodes are called. Errors: NotCacheable for an object
        that no text describes."""
        if isinstance(value, torch.fx.Node):
            return numbers[value]
        if value is None or isinstance(value, (bool, int, float, str, complex)):
            return repr(value)
        if isinstance(value, torch.Size) or (isinstance(value, (list, tuple)) and type(value) is not range):
            return f"{'[' if isinstance(value, list) else '('}{', '.join(self.argument(v, numbers) for v in value)}]"
        if isinstance(value, Mapping):
            return f"{{{', '.join(f'{key!r}: {self.argument(item, numbers)}' for key, item in value.items())}}}"
        if isinstance(value, slice):
            return f"slice{self.argument((value.start, value.stop, value.step), numbers)}"
        if isinstance(value, _SYMBOLIC):
            return f"{type(value).__name__} {self._size(value)}"
        if isinstance(value, (*_PLAIN, range)):
            return str(value)
        if isinstance(value, (torch._ops.OpOverload, torch._ops.HigherOrderOperator)):
            return self.target(value)
        raise NotCacheable(f"an argument is {type(value).__name__}, which no text tells")

    def _constant(self, node: torch.fx.Node, number: str, module: torch.fx.GraphModule) -> str:
        value = operator.attrgetter(str(node.target))(module)
        if isinstance(value, torch.fx.GraphModule):
            lines = self.module_lines(value, f"{number}.")
            return "graph {\n" + "\n".join(lines) + "\n}"
        if not isinstance(value, torch.Tensor):
            raise NotCacheable(f"its constant {node.target} is {type(value).__name__}, which no text tells")
        return f"{self._tensor(value)} {self._content(str(node.target), value)}"

    def _content(self, name: str, value: torch.Tensor) -> str:
        if torch_api.is_fake(value) or type(value) not in (torch.Tensor, torch.nn.Parameter):
            raise NotCacheable(f"its constant {name} is a {type(value).__name__}")
        if value.layout != torch.strided or value.is_quantized or value.device.type == "meta":
            raise NotCacheable(f"its constant {name} is of {value.layout} on {value.device}")
        self.read += value.numel() * value.itemsize
        if self.read > LARGEST_CONSTANTS:
            raise NotCacheable(f"its constants have more than {LARGEST_CONSTANTS >> 20} MiB")
        flat = value.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
        data = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
        return hashlib.sha256(data).hexdigest()[:32]


def _target_text(target: Callable[..., Any]) -> str:
    """Returns what a node calls, as text."""
    if isinstance(target, torch._ops.OpOverload):
        if target.namespace in _TORCHS:
            return str(target)
        return f"{target._schema} {sorted(map(str, target.tags))}"
    name = getattr(target, "__name__", type(target).__name__)
    if isinstance(target, torch._ops.HigherOrderOperator):
        if name.startswith(_KERNELS):
            raise NotCacheable("it launches a Triton kernel of the user's, which torch keeps in a table of the process")
        if not type(target).__module__.startswith("torch."):
            raise NotCacheable(f"it calls {name}, a higher-order op that is not torch's")
        return f"higher order {name}"
    path = _callable_text(target)
    if not path.startswith(("_operator:", "operator:", "math:", "builtins:", "torch:", "torch.")):
        raise NotCacheable(f"it calls {path or name}, a function of the user's")
    return path


def _callable_text(value: Any) -> str:
    """Returns the import path of a function; its name if it has no place in a module."""
    if isinstance(value, str):
        return value
    try:
        return path_of(value)
    except FunctionPlaceError:
        return getattr(value, "__name__", type(value).__name__)
