"""The IR as text: stable from run to run, so that it can be compared with golden files."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from .arguments import fold
from .buffer import Buffer
from .dtypes import short
from .node import Node
from .operation import Check, Collective, Extern, KernelCall, Loop, Operation, Store, Template, Wait


def operation_lines(operation: Operation, buffers: Mapping[str, Buffer]) -> list[str]:
    """Returns an operation as text, a line per part."""
    return loop_lines(operation, buffers) if isinstance(operation, Loop) else [extern_line(operation, buffers)]


def loop_lines(loop: Loop, buffers: Mapping[str, Buffer] | None = None) -> list[str]:
    """Returns `loop NAME [i0<4, i1<8 | r0<16]`, then the body in order of evaluation, with a name for each shared
    value."""
    ranges = ", ".join(map(str, loop.ranges))
    if loop.reduction_ranges:
        ranges += " | " + ", ".join(map(str, loop.reduction_ranges))
    origins = f"  # {', '.join(loop.origins)}" if loop.origins else ""
    lines = [f"loop {loop.name} [{ranges}] {loop.device}{origins}"]
    names = node_names(loop)
    values = (node for node in loop.nodes if node.op != "const")
    lines += [f"  {names[node]}: {short(node.dtype)} = {_node_text(node, names)}" for node in values]
    lines += ["  " + _store_text(store, names, buffers) for store in loop.stores]
    return lines


def node_names(loop: Loop) -> Mapping[Node, str]:
    """Returns what each value of a loop is called in the loop's text: v0, v1, ..., or the text of a constant."""
    count = itertools.count()
    return {
        node: f"{node.attrs[0]}:{short(node.dtype)}" if node.op == "const" else f"v{next(count)}" for node in loop.nodes
    }


def _position(index: tuple[Any, ...], indirect: list[str]) -> str:
    text = ", ".join(map(str, index))
    for number in reversed(range(len(indirect))):
        text = text.replace(f"arg{number}", indirect[number])
    return text


def _node_text(node: Node, names: Mapping[Node, str]) -> str:
    args = [names[arg] for arg in node.args]
    if node.op == "load":
        count = len(node.indirect)
        masked = f" if {args[-1]}" if node.mask is not None else ""
        return f"load {node.buffer}[{_position(node.index, args[:count])}]{masked}"
    if node.op == "index":
        return f"index {node.attrs[0]}"
    if node.op in ("reduce", "scan"):
        return f"{node.op} {node.attrs[0]} {', '.join(args)}"
    if node.op == "bounded":
        return f"bounded {args[0]} < {node.attrs[0]}{f' if {args[1]}' if len(args) > 1 else ''}"
    return f"{node.op} {', '.join(args)}"


def _store_text(store: Store, names: Mapping[Node, str], buffers: Mapping[str, Buffer] | None) -> str:
    where = _position(store.index, [names[node] for node in store.indirect])
    sign = "=" if store.mode == "set" else f"{store.mode}="
    masked = f" if {names[store.mask]}" if store.mask is not None else ""
    declared = ""
    if buffers is not None and store.buffer in buffers and buffers[store.buffer].kind == "temporary":
        buffer = buffers[store.buffer]
        declared = f"  # {short(buffer.dtype)} {buffer.layout}"
    return f"store {store.buffer}[{where}] {sign} {names[store.value]}{masked}{declared}"


def _argument(value: Any) -> str:
    return str(fold(value, str, _container))


def _container(given: Any, parts: list[str]) -> str:
    if isinstance(given, Mapping):
        return f"{{{', '.join(f'{key}: {part}' for key, part in zip(given, parts, strict=True))}}}"
    return f"[{', '.join(parts)}]"


_KINDS: Mapping[type, str] = {
    Extern: "extern",
    Template: "template",
    KernelCall: "kernel",
    Collective: "collective",
    Wait: "wait",
}


def extern_line(extern: Extern, buffers: Mapping[str, Buffer]) -> str:
    """Returns one call as a line: kind, name, outputs, target and arguments; then what the call mutates, aliases and
    binds, and the outputs' layouts."""
    if isinstance(extern, Check):
        return f"check {extern.name} {extern.condition}"
    arguments = [_argument(value) for value in extern.args]
    arguments += [f"{key}={_argument(value)}" for key, value in extern.kwargs.items()]
    outputs = ", ".join("_" if name is None else name for name in extern.outputs)
    kind = next(_KINDS[each] for each in type(extern).__mro__ if each in _KINDS)
    text = f"{kind} {extern.name} {outputs} = {extern.target_name}({', '.join(arguments)})"
    if extern.mutates:
        text += f" mutates {', '.join(extern.mutates)}"
    for output, base in extern.aliases.items():
        text += f" {output} aliases {base}"
    if extern.unbacked:
        text += f" binds {', '.join(str(item.symbol) for item in extern.unbacked)}"
    known = [buffers[name] for name in extern.outputs if name is not None and name in buffers]
    return text + "".join(f"  # {short(buffer.dtype)} {buffer.layout}" for buffer in known)
