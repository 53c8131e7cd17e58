"""Sums and products in one order, whatever the loop is: a pass. In and out: a Program.

A code generator chooses how a loop reduces by all its sizes and strides: lanes with partial results along a row, or one
column for each lane. A kind of reduction that is in order has the same bits in each of these.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from litz.ir import Loop, Node, Operation, Program
from litz.ir.node import intern, with_args
from litz.ir.transform import map_stores
from litz_plugins import PassContext

IN_ORDER = {"sum": "sum_in_order", "prod": "prod_in_order"}
"""The kinds of reductions that are rounded, and the kind with one order of each."""
EXACT = frozenset({"max", "min", "any", "all", "argmax", "argmin", *IN_ORDER.values()})
"""Kinds with the same result in each order."""
REASON = "its order of additions may depend on the batch"


def reduce_in_order(program: Program, context: PassContext) -> Program:
    """Returns the program with sums and products of floats in one order (a pass). Other reductions that are rounded are
    on record."""
    operations = tuple(map(partial(_reduced, context=context), program.operations))
    return replace(program, operations=operations)


def _reduced(operation: Operation, context: PassContext) -> Operation:
    if not isinstance(operation, Loop):
        return operation
    kinds = {node.attrs[0] for node in operation.nodes if node.op == "reduce" and node.args[0].dtype.is_floating_point}
    for kind in sorted(kinds - EXACT - IN_ORDER.keys()):
        context.record(operation.name, f"{kind} of {', '.join(operation.origins)}", REASON)
    return replace(operation, stores=map_stores(operation.stores, _in_order)) if kinds & IN_ORDER.keys() else operation


def _in_order(node: Node, args: tuple[Node, ...]) -> Node:
    if node.op != "reduce" or not node.dtype.is_floating_point or node.attrs[0] not in IN_ORDER:
        return with_args(node, args)
    return intern("reduce", node.dtype, args, (IN_ORDER[node.attrs[0]], *node.attrs[1:]))
