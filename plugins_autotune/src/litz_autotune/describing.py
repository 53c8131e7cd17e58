"""From a program to its problem. In: a program that was cut out of a graph, and a target. Out: a `Problem`."""

from __future__ import annotations

from litz.ir import Program
from litz.ir.dtypes import short
from litz.ir.operation import Operation, Template
from litz.ir.printer import operation_lines
from litz_contractions.api import canonical
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
