"""From a program to its problem. In: a program that was cut out of a graph, and a target. Out: a `Problem`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import sympy

from litz.ir import Buffer, Layout, Loop, Node, Program, Range, TensorRef
from litz.ir.arguments import rebuild
from litz.ir.dtypes import short
from litz.ir.index import Expr, Symbol
from litz.ir.node import intern
from litz.ir.operation import Operation, Template
from litz.ir.printer import operation_lines
from litz.ir.transform import map_stores
from litz_plugins import Target

from .problem import Operand, Problem


def describe(program: Program, target: Target) -> Problem:
    """Returns the problem that a cut-out program is (`subprogram.cut`)."""
    named = canonical(program)
    operands = tuple(
        Operand(tuple(map(_plain, b.layout.size)), tuple(map(_plain, b.layout.stride)), short(b.dtype))
        for b in named.buffers.values()
    )
    body = tuple(line.strip() for op in named.operations for line in operation_lines(op, named.buffers))
    return Problem(kind_of(program.operations[0]), operands, body, tuple(named.hints.values()), target.name)


def kind_of(operation: Operation) -> str:
    """Returns the kind of a contraction ("mm", "bmm", ...); "loop" or the op's name for anything else."""
    if isinstance(operation, Template):
        return operation.kind
    return getattr(operation, "target_name", "loop")


def _plain(expr: object) -> int | str:
    return int(expr) if getattr(expr, "is_Integer", False) else str(expr)  # type: ignore[call-overload]


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
