"""A few operations of a program as a program of their own: what is measured, and what a kernel means.

In: a Program and some of its operations, or others that stand in for them. Out: a Program whose inputs are what these
read (the tensors first, then the sizes), and whose outputs are what others need of what they write.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch

from litz.ir import Buffer, Extern, Layout, Loop, Operation, Program, TensorRef
from litz.ir.arguments import rebuild
from litz.ir.index import Expr, Symbol
from litz.ir.interpret import interpret
from litz.ir.node import Node, intern
from litz.ir.operation import Range, sizes_in
from litz.ir.transform import map_stores


def cut(program: Program, operations: Sequence[Operation], outputs: Iterable[str]) -> Program:
    """Returns the operations as a Program of the results `outputs`. What they read and do not write are inputs."""
    written: set[str] = set()
    inputs: list[str] = []
    for operation in operations:
        inputs += [name for name in operation.reads if name not in written and name not in inputs]
        written.update(operation.writes)
    touched = dict.fromkeys([*inputs, *(name for op in operations for name in op.writes)])
    buffers = {name: program.buffers[name] for name in touched}
    buffers |= {name: replace(buffers[name], kind="input") for name in inputs}
    buffers |= {name: replace(buffers[name], kind="temporary") for name in written if name not in inputs}
    returned = tuple(TensorRef(name, _whole(buffers[name])) for name in outputs)
    symbols = sorted(_symbols(buffers.values(), operations), key=lambda s: s.name)
    return Program(
        "problem",
        (*inputs, *symbols),
        buffers,
        tuple(operations),
        returned,
        hints={s: program.hint(s) for s in symbols},
    )


def _whole(buffer: Buffer) -> Layout:
    """A reference to all of a buffer counts its offset from the buffer's own start."""
    return Layout(buffer.layout.size, buffer.layout.stride)


def _symbols(buffers: Iterable[Buffer], operations: Iterable[Operation]) -> set[Symbol]:
    found: set[Symbol] = set()
    for buffer in buffers:
        found |= buffer.layout.free_symbols
    for operation in operations:
        if isinstance(operation, Loop):
            found |= operation.free_symbols
        else:
            found |= sizes_in((operation.args, operation.kwargs))
    return found


@dataclass(frozen=True)
class Meaning:
    """The function that a kernel computes, of the tensors and sizes of a cut-out program: run by the interpreter, on
    the device that the tensors are on. more: how many arguments follow that an earlier kernel computes from the others,
    which save the kernel work."""

    program: Program
    more: int = 0

    @property
    def __name__(self) -> str:
        return " + ".join(_label(operation) for operation in self.program.operations)

    def __call__(self, *args: Any) -> tuple[torch.Tensor, ...]:
        """Runs the program on tensors and sizes, in the order of its inputs, and returns its outputs. Tensors with
        dimensions say on which device."""
        devices = {value.device for value in args if isinstance(value, torch.Tensor) and value.dim()}
        program = on_device(self.program, devices.pop()) if len(devices) == 1 else self.program
        return tuple(interpret(program, list(args[: len(args) - self.more])))

    def arguments(self) -> tuple[Any, ...]:
        """Returns the arguments of a KernelCall that stands for the program: references to its inputs, and sizes."""
        buffers = self.program.buffers
        return tuple(
            TensorRef(item, _whole(buffers[item])) if isinstance(item, str) else item for item in self.program.inputs
        )


def _label(operation: Operation) -> str:
    if isinstance(operation, Extern):
        return operation.target_name
    return " + ".join(operation.origins) or "loop"


def on_device(program: Program, device: torch.device) -> Program:
    """Returns the same program for another device."""
    return replace(
        program,
        buffers={name: replace(buffer, device=device) for name, buffer in program.buffers.items()},
        operations=tuple(replace(operation, device=device) for operation in program.operations),
    )


# Canonical names.


def canonical(program: Program) -> Program:
    """Returns the program with buffers, sizes and operations named by their order: equal problems have equal text."""
    names = {name: f"b{number}" for number, name in enumerate(program.buffers)}
    symbols = [item for item in program.inputs if isinstance(item, sympy.Symbol)]
    sizes = {symbol: _renamed(symbol, f"n{number}") for number, symbol in enumerate(symbols)}
    rename = _Rename(names, sizes)
    return Program(
        "problem",
        tuple(names[item] if isinstance(item, str) else sizes.get(item, item) for item in program.inputs),
        {names[name]: rename.buffer(buffer) for name, buffer in program.buffers.items()},
        tuple(rename.operation(op, f"op{number}") for number, op in enumerate(program.operations)),
        tuple(rename.value(item) for item in program.outputs),
        hints={sizes[symbol]: value for symbol, value in program.hints.items() if symbol in sizes},
    )


def _renamed(symbol: Symbol, name: str) -> Symbol:
    return sympy.Symbol(name, **symbol._assumptions_orig)


@dataclass(frozen=True)
class _Rename:
    names: Mapping[str, str]
    sizes: Mapping[Symbol, Symbol]

    def expr(self, expr: Expr) -> Expr:
        return expr.xreplace(self.sizes) if self.sizes and isinstance(expr, sympy.Basic) else expr

    def layout(self, layout: Layout) -> Layout:
        size, stride = map(self.expr, layout.size), map(self.expr, layout.stride)
        return Layout(tuple(size), tuple(stride), self.expr(layout.offset))

    def buffer(self, buffer: Buffer) -> Buffer:
        return replace(buffer, name=self.names[buffer.name], layout=self.layout(buffer.layout))

    def value(self, value: Any) -> Any:
        if isinstance(value, TensorRef):
            return TensorRef(self.names[value.buffer], self.layout(value.layout))
        return self.expr(value)

    def operation(self, operation: Operation, name: str) -> Operation:
        if isinstance(operation, Loop):
            return self.loop(operation, name)
        args, kwargs = rebuild((operation.args, operation.kwargs), self.value)
        outputs = tuple(output if output is None else self.names[output] for output in operation.outputs)
        return replace(operation, name=name, args=args, kwargs=kwargs, outputs=outputs, origins=())

    def loop(self, loop: Loop, name: str) -> Loop:
        stores = map_stores(loop.stores, self.node, lambda store: tuple(map(self.expr, store.index)))
        return replace(
            loop,
            name=name,
            ranges=tuple(Range(r.var, self.expr(r.size)) for r in loop.ranges),
            reduction_ranges=tuple(Range(r.var, self.expr(r.size)) for r in loop.reduction_ranges),
            stores=tuple(replace(store, buffer=self.names[store.buffer]) for store in stores),
            origins=(),
        )

    def node(self, node: Node, args: tuple[Node, ...]) -> Node:
        attrs = node.attrs
        if node.op == "load":
            attrs = (self.names[node.buffer], tuple(map(self.expr, node.index)), attrs[2])
        elif node.op in ("index", "bounded"):
            attrs = (self.expr(attrs[0]), *attrs[1:])
        return intern(node.op, node.dtype, args, attrs)
