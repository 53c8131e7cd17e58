"""The IR as text: stable from run to run, so that it can be compared with golden files, and whole, so that
`litz_testing.parse.programs` reads it back."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import TYPE_CHECKING, Any

import sympy
import torch
from sympy.printing.str import StrPrinter

from litz.regions import Region

from .arguments import fold, leaves
from .buffer import Buffer, Layout, TensorRef
from .dtypes import short
from .index import Symbol, is_canonical, is_plain_size
from .node import Node
from .operation import Check, Collective, Extern, KernelCall, Loop, Operation, Part, Store, Template, Wait, sizes_in

if TYPE_CHECKING:
    from .program import Program

WORD = re.compile(r"[^\W\d]\w*(?:\.\w+)*")
"""A name that stands in a text as it is; others are quoted."""
OVER = "in the memory of"
"""The text between a buffer and the buffer whose memory it takes over."""
_VALUE = re.compile(r"\bv\d+\b")


def word(name: str) -> str:
    """Returns a name as a text has it."""
    return name if WORD.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def operation_lines(operation: Operation, buffers: Mapping[str, Buffer]) -> list[str]:
    """Returns an operation as text, a line per part."""
    return loop_lines(operation, buffers) if isinstance(operation, Loop) else extern_lines(operation, buffers)


def loop_lines(loop: Loop, buffers: Mapping[str, Buffer] | None = None) -> list[str]:
    """Returns `loop NAME [i0<4, i1<8 | r0<16]`, then the body in order of evaluation, with a name for each shared
    value."""
    ranges = ", ".join(map(str, loop.ranges))
    if loop.reduction_ranges:
        ranges += " | " + ", ".join(map(str, loop.reduction_ranges))
    origins = f"  # {', '.join(map(word, loop.origins))}" if loop.origins else ""
    lines = [f"loop {word(loop.name)} [{ranges}] {loop.device}{origins}"]
    names = node_names(loop)
    values = (node for node in loop.nodes if node.op != "const")
    lines += [f"  {names[node]}: {short(node.dtype)} = {_node_text(node, names)}" for node in values]
    lines += ["  " + _store_text(store, names, loop.device, buffers) for store in loop.stores]
    return lines


def node_names(loop: Loop) -> Mapping[Node, str]:
    """Returns what each value of a loop is called in the loop's text: v0, v1, ..., or the text of a constant."""
    count = itertools.count()
    return {
        node: f"{node.attrs[0]}:{short(node.dtype)}" if node.op == "const" else f"v{next(count)}" for node in loop.nodes
    }


def _position(index: tuple[Any, ...], indirect: list[str]) -> str:
    """`[i0, v3 + 1]`: an index with the values that its placeholders stand for; `[i0, arg0 + 1] at v3` where that would
    not say which stands for which."""
    plain = text = ", ".join(map(str, index))
    for number in reversed(range(len(indirect))):
        text = text.replace(f"arg{number}", indirect[number])
    if list(dict.fromkeys(_VALUE.findall(text))) == indirect:
        return f"[{text}]"
    return f"[{plain}] at {', '.join(indirect)}"


def _node_text(node: Node, names: Mapping[Node, str]) -> str:
    args = [names[arg] for arg in node.args]
    if node.op == "load":
        count = len(node.indirect)
        masked = f" if {args[-1]}" if node.mask is not None else ""
        return f"load {word(node.buffer)}{_position(node.index, args[:count])}{masked}"
    if node.op == "index":
        return f"index {node.attrs[0]}"
    if node.op in ("reduce", "scan"):
        own = f"[{', '.join(map(str, node.over))}]" if node.over else ""
        return f"{node.op}{own} {word(node.attrs[0])} {', '.join(args)}"
    if node.op == "bounded":
        size, what = node.attrs
        said = f" {json.dumps(what, ensure_ascii=False)}" if what else ""
        return f"bounded {args[0]} < {size}{f' if {args[1]}' if len(args) > 1 else ''}{said}"
    return f"{node.op} {', '.join(args)}"


def _store_text(
    store: Store, names: Mapping[Node, str], device: torch.device, buffers: Mapping[str, Buffer] | None
) -> str:
    where = _position(store.index, [names[node] for node in store.indirect])
    sign = "=" if store.mode == "set" else f"{store.mode}="
    masked = f" if {names[store.mask]}" if store.mask is not None else ""
    declared = ""
    if buffers is not None and store.buffer in buffers and buffers[store.buffer].kind == "temporary":
        declared = f"  # {_declared(buffers[store.buffer], device)}"
    return f"store {word(store.buffer)}{where} {sign} {names[store.value]}{masked}{declared}"


def buffer_text(buffer: Buffer) -> str:
    """Returns the declaration of a buffer: `x: f32 [4, 8] cpu`."""
    return f"{word(buffer.name)}: {short(buffer.dtype)} {buffer.layout} {buffer.device}"


def _declared(buffer: Buffer, device: torch.device) -> str:
    """Type and layout of a buffer, and its device where that is not the one of what writes it."""
    elsewhere = "" if buffer.device == device else f" {buffer.device}"
    return f"{short(buffer.dtype)} {buffer.layout}{elsewhere}"


# ----------------------------------------------------------------------------------------------------------- arguments


class _Printer(StrPrinter):
    """sympy's own, with floats that are read back as they were."""

    def _print_Float(self, expr: Any) -> str:
        return repr(float(expr))


def _is_spelled(value: Any) -> bool:
    """Returns whether a text can say what a leaf of a call's arguments is."""
    plain = (bool, int, float, complex, str, TensorRef, sympy.Basic, torch.dtype, torch.device, Region)
    return value is None or isinstance(value, (*plain, torch.layout, torch.memory_format))


def argument_text(value: Any, numbers: Iterator[int]) -> str:
    """Returns an argument of a call as text. numbers: of the objects without a text; each is printed as `@number`."""

    def leaf(item: Any) -> str:
        if isinstance(item, TensorRef):
            return f"{word(item.buffer)}{item.layout}"
        if isinstance(item, str):
            return json.dumps(item, ensure_ascii=False)
        if isinstance(item, torch.device):
            return f"device {item}"
        if isinstance(item, Region):
            return f"region {word(item.name)}"
        if isinstance(item, sympy.Basic):
            return str(_Printer().doprint(item))
        return repr(item) if _is_spelled(item) else f"@{next(numbers)}"

    return str(fold(value, leaf, _container))


def _container(given: Any, parts: list[str]) -> str:
    if isinstance(given, Mapping):
        return f"{{{', '.join(f'{json.dumps(key)}: {part}' for key, part in zip(given, parts, strict=True))}}}"
    return f"tuple({', '.join(parts)})" if isinstance(given, tuple) else f"[{', '.join(parts)}]"


# --------------------------------------------------------------------------------------------------------------- calls

_KINDS: Mapping[type, str] = {
    Extern: "extern",
    Template: "template",
    KernelCall: "kernel",
    Collective: "collective",
    Wait: "wait",
}
_ON_THE_LINE = frozenset(field.name for each in (*_KINDS, Check) for field in fields(each))
"""The fields of calls that their own line has."""


def kind_of_call(extern: Extern) -> str:
    """Returns the word that a call's line begins with: of its class, or of the class that it is a kind of."""
    return next(_KINDS[each] for each in type(extern).__mro__ if each in _KINDS)


def own_device(buffers: Mapping[str, Buffer]) -> torch.device | None:
    """Returns the one device of the buffers that are given, which a call is on where its line names none."""
    found = {buffer.device for buffer in buffers.values() if buffer.kind != "temporary"}
    return found.pop() if len(found) == 1 else None


def extern_line(extern: Extern, buffers: Mapping[str, Buffer]) -> str:
    """Returns one call as a line: kind, name, outputs, target and arguments; then what the call mutates, aliases and
    binds, and the outputs' layouts."""
    text = _check_text(extern) if isinstance(extern, Check) else _call_text(extern)
    if extern.mutates:
        text += f" mutates {', '.join(map(word, extern.mutates))}"
    for output, base in extern.aliases.items():
        text += f" {word(output)} aliases {word(base)}"
    if extern.unbacked:
        text += f" binds {', '.join(f'{item.symbol} = result{_path_text(item.path)}' for item in extern.unbacked)}"
    text += " effect" if extern.effect else ""
    text += f" on {extern.device}" if extern.device != own_device(buffers) else ""
    known = [buffers[name] for name in extern.outputs if name is not None and name in buffers]
    text += "".join(f"  # {_declared(buffer, extern.device)}" for buffer in known)
    return text + (f"  # from {', '.join(map(word, extern.origins))}" if extern.origins else "")


def _call_text(extern: Extern) -> str:
    numbers = itertools.count()
    arguments = [argument_text(value, numbers) for value in extern.args]
    arguments += [f"{word(key)}={argument_text(value, numbers)}" for key, value in extern.kwargs.items()]
    outputs = "".join(f" {'_' if name is None else word(name)}," for name in extern.outputs)[:-1]
    text = f"{kind_of_call(extern)} {word(extern.name)}{outputs} = {target_text(extern)}({', '.join(arguments)})"
    if isinstance(extern, Template) and extern.kind != named_kind(extern.target):
        text += f" as {word(extern.kind)}"
    if isinstance(extern, Collective):
        text += f" group {json.dumps(extern.group)} ranks [{', '.join(map(str, extern.ranks))}]"
    return text


def _check_text(check: Check) -> str:
    condition = check.condition
    text = (
        f"check {word(check.name)} {_Printer().doprint(condition) if isinstance(condition, sympy.Basic) else condition}"
    )
    text += f" {json.dumps(check.message, ensure_ascii=False)}" if check.message else ""
    text += f" shows {', '.join(map(str, check.shown))}" if check.shown else ""
    return text if check.error is RuntimeError else f"{text} raises {check.error.__name__}"


def target_text(extern: Extern) -> str:
    """Returns what a call calls: the name of an op, or `@name` of a function that only `objects_in` has."""
    return extern.target_name if is_op(extern.target) else f"@{word(extern.target_name)}"


def is_op(target: Any) -> bool:
    """Returns whether a call calls an op, which its name says."""
    return isinstance(target, torch._ops.OpOverload)


def named_kind(target: Any) -> str:
    """Returns the kind of a Template whose text names none: "mm" of aten.mm.default; '' where no op is called."""
    return str(target).split(".")[1] if is_op(target) else ""


def _path_text(path: tuple[Any, ...]) -> str:
    steps = (f"[{step}]" if isinstance(step, int) else f".{step[0]}({', '.join(map(str, step[1:]))})" for step in path)
    return "".join(steps)


def extern_lines(extern: Extern, buffers: Mapping[str, Buffer]) -> list[str]:
    """Returns one call as text: its line, then a line or more for each field that its class adds and that is not as it
    is by default."""
    lines, numbers = [extern_line(extern, buffers)], itertools.count()
    if type(extern) not in _KINDS and not isinstance(extern, Check):
        lines.append(f"  is {type(extern).__name__}")
    for name, value in added_fields(extern):
        if isinstance(value, Loop):
            lines += [f"  {name} =", *(f"    {line}" for line in loop_lines(value))]
        elif is_dataclass(value) and not isinstance(value, TensorRef):
            parts = ((field.name, getattr(value, field.name)) for field in fields(value))
            said = (f"{key}={argument_text(part, numbers)}" for key, part in parts if part is not None)
            lines.append(f"  {name} = {type(value).__name__}({', '.join(said)})")
        else:
            lines.append(f"  {name} = {argument_text(value, numbers)}")
    return lines


def added_fields(extern: Extern) -> Iterator[tuple[str, Any]]:
    """Yields the fields that a class of calls beyond core's plain ones has, where they are not as by default."""
    for field in fields(extern):
        value = getattr(extern, field.name)
        if field.name not in _ON_THE_LINE and (field.default is MISSING or value != field.default):
            yield field.name, value


# ------------------------------------------------------------------------------------------------------------ programs


def program_lines(program: Program) -> list[str]:
    """Returns a whole program as text."""
    lines = [f"program {word(program.name)}", *(f"  size {size_text(s, program.hints)}" for s in sizes_of(program))]
    for number, item in enumerate(program.inputs):
        if isinstance(item, str):
            flags = "".join(f" {flag}" for flag in _FLAGS if item in getattr(program, f"{flag}_inputs"))
            lines.append(f"  input {buffer_text(program.buffers[item])}{flags}")
        elif isinstance(item, sympy.Basic):
            lines.append(f"  input size {item}")
        else:
            lines.append(f"  input {word(item.name or '')}{'' if item.value is None else f' @inputs.{number}'}")
    inputs, written = set(program.input_buffers), {name for item in program.operations for name in item.writes}
    for buffer in program.buffers.values():
        if buffer.kind == "constant":
            lines.append(f"  constant {buffer_text(buffer)}")
        elif buffer.name not in inputs and (buffer.kind == "input" or buffer.name not in written):
            lines.append(f"  {'unnamed input' if buffer.kind == 'input' else 'unused'} {buffer_text(buffer)}")
    for operation in program.operations:
        lines += ["  " + line for line in operation_lines(operation, program.buffers)]
    outputs = (_output_text(item, number) for number, item in enumerate(program.outputs))
    lines.append(f"  return {', '.join(outputs)}".rstrip())
    return [*lines, *region_lines({name: program_lines(region) for name, region in program.regions.items()})]


def region_lines(regions: Mapping[str, list[str]]) -> list[str]:
    """Returns the regions of a program, or of its schedule, as text. regions: the lines of each, by its name."""
    return [
        line
        for name, lines in regions.items()
        for line in (f"  region {word(name)}", *(f"    {each}" for each in lines))
    ]


_FLAGS = ("static", "dying", "owned", "made")


def _output_text(item: Any, number: int) -> str:
    if hasattr(item, "name") and hasattr(item, "value"):  # an Opaque
        if item.name is not None:
            return f"opaque {word(item.name)}"
        return f"opaque {argument_text(item.value, iter(())) if _is_spelled(item.value) else f'@outputs.{number}'}"
    return argument_text(item, iter(()))


def size_text(symbol: Symbol, hints: Mapping[Symbol, int]) -> str:
    """Returns the declaration of a symbol: `s0 about 8`. What is known of one that is no positive integer, as sizes
    are, stands in parentheses."""
    known = "" if is_plain_size(symbol) else f" ({', '.join(assumptions(symbol))})"
    return f"{symbol.name}{known}{f' about {hints[symbol]}' if symbol in hints else ''}"


def assumptions(symbol: Symbol) -> list[str]:
    """Returns what a symbol was made with: `integer`, `not zero`."""
    made = symbol._assumptions.generator
    return [name if holds else f"not {name}" for name, holds in made.items() if name != "commutative"]


def sizes_of(program: Program) -> list[Symbol]:
    """Returns the symbols that a program names, other than the canonical variables of loops: those with hints first."""
    found = dict.fromkeys(program.hints)
    others: set[Symbol] = set()
    for buffer in program.buffers.values():
        others |= buffer.layout.free_symbols
    for value in (*program.inputs, *program.outputs):
        others |= symbols_of(value)
    for operation in program.operations:
        others |= symbols_of_operation(operation)
    found.update(dict.fromkeys(sorted((s for s in others if not is_canonical(s)), key=lambda s: str(s.name))))
    return list(found)


def symbols_of_operation(operation: Operation) -> set[Symbol]:
    """Returns every symbol that an operation's text names."""
    if isinstance(operation, Loop):
        found = {symbol for expr in operation.expressions for symbol in expr.free_symbols}
        return found.union(operation.extents)
    found = symbols_of((operation.args, operation.kwargs))
    found.update(item.symbol for item in operation.unbacked)
    found.update(operation.shown if isinstance(operation, Check) else ())
    for _, value in added_fields(operation):
        found |= symbols_of(value)
    return found


def symbols_of(value: Any) -> set[Symbol]:
    """Returns every symbol in nested arguments."""
    found: set[Symbol] = set()
    for leaf in leaves(value):
        if isinstance(leaf, Loop):
            found |= symbols_of_operation(leaf)
        elif is_dataclass(leaf) and not isinstance(leaf, (type, Layout, TensorRef)):
            found |= symbols_of([getattr(leaf, field.name) for field in fields(leaf)])
        else:
            found |= sizes_in(leaf)
    return found


def objects_in(program: Program) -> dict[str, Any]:
    """Returns what a program's text names but cannot spell, for `litz_testing.parse`: constants by name; functions
    that are no ops by the name of their call ("op5"); a kernel's source ("op5.source"); arguments that have no text, as
    `@0` in the line of op5 ("op5.0"); opaque inputs and outputs by their places ("inputs.2"); classes that plugins add
    ("class Attention"); what a region names, with the region's name in front ("region0/op5")."""
    found: dict[str, Any] = dict(program.constants)
    for operation in program.operations:
        if isinstance(operation, Extern):
            found.update(objects_in_call(operation))
    for kind, items in (("inputs", program.inputs), ("outputs", program.outputs)):
        for number, item in enumerate(items):
            value = getattr(item, "value", None)
            if value is not None and (kind == "inputs" or not _is_spelled(value)):
                found[f"{kind}.{number}"] = value
    for name, region in program.regions.items():
        found |= {f"{name}/{key}": value for key, value in objects_in(region).items()}
    return found


def objects_in_call(extern: Extern) -> dict[str, Any]:
    """Returns what the text of one call names but cannot spell; see `objects_in`."""
    found = {} if is_op(extern.target) or isinstance(extern, Check) else {extern.name: extern.target}
    if isinstance(extern, KernelCall):
        found[f"{extern.name}.source"] = extern.source
    others = (leaf for leaf in leaves((extern.args, extern.kwargs)) if not _is_spelled(leaf))
    added = (type(extern), *(type(value) for _, value in added_fields(extern) if isinstance(value, Part)))
    found |= {f"class {each.__name__}": each for each in added if each not in (*_KINDS, Check)}
    return {**found, **{f"{extern.name}.{number}": leaf for number, leaf in enumerate(others)}}
