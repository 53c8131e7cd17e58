"""Divisions by constants as multiplications. In: a Program. Out: the Program, or the same object if there is none."""

from __future__ import annotations

import math
from dataclasses import replace

from litz.ir import Loop, Node
from litz.ir.build import call, const
from litz.ir.node import with_args
from litz.ir.transform import map_stores


def multiply_by_reciprocals(program, context):
    """Rewrites x / 8 as x * 0.125, and with the option `inexact` x / 3 as x * 0.333..."""
    inexact = context.options["my_pass.inexact"]

    def rewrite(node: Node, args: tuple[Node, ...]) -> Node:
        """A node of an expression, on arguments that are rewritten already."""
        if node.op != "div" or args[1].op != "const":
            return with_args(node, args)
        divisor = args[1].attrs[0]
        if not has_reciprocal(divisor, inexact):
            return with_args(node, args)
        return call("mul", args[0], const(1 / divisor, node.dtype))

    operations = []
    for operation in program.operations:
        changed = operation
        if isinstance(operation, Loop) and any(node.op == "div" for node in operation.nodes):
            changed = replace(operation, stores=map_stores(operation.stores, rewrite))
        if changed != operation and context.allows(operation.name):
            context.record(operation.name, "rewritten", "a division as a multiplication", about=operation.name)
            operation = changed
        operations.append(operation)
    if tuple(operations) == program.operations:
        return program
    return replace(program, operations=tuple(operations))


def has_reciprocal(divisor: float, inexact: bool) -> bool:
    """Returns whether to multiply by 1 / divisor: it is exact, so that no result changes, or may be rounded."""
    mantissa, exponent = math.frexp(divisor)
    if divisor == 0 or not math.isfinite(divisor) or abs(exponent) > 100:  # its reciprocal would over- or underflow
        return False
    return inexact or abs(mantissa) == 0.5  # 0.5 * 2**n is a power of two
