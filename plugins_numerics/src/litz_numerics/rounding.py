"""Each rounding that eager makes: a pass. In and out: a Program.

Kernels compute half types in float32 and round where a value is stored. Eager stores the result of every op. A value
that goes from one op to the next within a kernel is therefore rounded in between.
"""

from __future__ import annotations

from dataclasses import replace

from litz.ir import Loop, Node, Operation, Program, Store
from litz.ir.build import cast, rounded
from litz.ir.node import rewrite, with_args
from litz.ir.ops import AS_HALF
from litz_plugins import PassContext


def round_each(program: Program, context: PassContext) -> Program:
    """Returns the program with each half value rounded where it is computed (a pass)."""
    operations = tuple(map(_rounded, program.operations))
    if all(new is old for new, old in zip(operations, program.operations, strict=True)):
        return program
    return replace(program, operations=operations)


def _rounded(operation: Operation) -> Operation:
    if not isinstance(operation, Loop):
        return operation
    stores = tuple(map(_stored, operation.stores))
    changed = any(new is not old for new, old in zip(stores, operation.stores, strict=True))
    return replace(operation, stores=stores) if changed else operation


def _stored(store: Store) -> Store:
    (value,) = rewrite((store.value,), _converted)
    value = value if value.op == "load" else rounded(value)
    return store if value is store.value else replace(store, value=value)


def _converted(node: Node, args: tuple[Node, ...]) -> Node:
    """An operand that eager converts to the half type of the other one is rounded."""
    return cast(args[0], node.dtype) if node.op in AS_HALF.values() else with_args(node, args)
