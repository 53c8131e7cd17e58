"""Sums over a row of which all but one value are 0: `sum(where(r == k, v, 0) * w)` is `v * w`, without a walk.

In and out: a Program. The gradient of a cross entropy is such a row before the softmax's gradient sums it up; so is any
one-hot vector's product. What is left is a pointwise loop, so that the kernel that wrote the row needs one walk over it
instead of two, and its rows may lie anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from litz.ir import Loop, Node, Operation, Program, Range, build
from litz.ir.index import Expr
from litz.ir.node import is_number, with_args
from litz.ir.transform import map_stores
from litz.schedule.inline import inline_pointwise
from litz_plugins import VETOED, PassContext


def pick_elements(program: Program, context: PassContext) -> Program:
    """Replaces reductions of which all values but one are 0 by a read of that one (a pass), and inlines what has become
    pointwise."""
    operations: list[Operation] = []
    for operation in program.operations:
        found = _without_walk(operation) if isinstance(operation, Loop) else None
        if found is not None and context.allows(operation.name):
            context.record(f"reduction {operation.name}", "no walk", "all values but one are 0", about=operation.name)
            operation = found
        elif found is not None:
            context.record(f"reduction {operation.name}", "whole", VETOED, about=operation.name)
        operations.append(operation)
    if all(new is old for new, old in zip(operations, program.operations, strict=True)):
        return program
    return inline_pointwise(replace(program, operations=tuple(operations)), context)


@dataclass(frozen=True)
class _Picked:
    """A value that is `value` where the reduction variable is `place`, else `other`, which is 0 unless a factor is not
    finite. All three are the same along the row."""

    place: Node
    value: Node
    other: Node


def _without_walk(loop: Loop) -> Loop | None:
    """The loop as a pointwise one; None where a reduction of it needs all values, or it stores any of them."""
    reduces = [node for node in loop.nodes if node.op == "reduce"]
    if not reduces or len(loop.reduction_ranges) != 1 or any(map(loop.at_reduction_level, loop.stores)):
        return None
    (row,) = loop.reduction_ranges
    if not (row.size.is_Integer and int(row.size) >= 2):
        return None
    sums: dict[Node, Node] = {}
    for node in reduces:
        found = _picked(node.args[0], loop, row) if node.attrs[0] == "sum" and node.dtype.is_floating_point else None
        if found is None:
            return None
        sums[node] = build.cast(_sum(found, row.size), node.dtype)
    if loop.has_scan:
        return None
    stores = map_stores(loop.stores, lambda node, args: sums.get(node) or with_args(node, args))
    return replace(loop, reduction_ranges=(), stores=stores)


def _picked(node: Node, loop: Loop, row: Range) -> _Picked | None:
    if node.op == "where":
        condition, value, other = node.args
        place = _place(condition, loop, row)
        if place is None or loop.levels[value] or not is_number(other, 0):
            return None
        return _Picked(place, value, other)
    if node.op == "cast" and node.dtype.is_floating_point and node.args[0].dtype.is_floating_point:
        inner = _picked(node.args[0], loop, row)
        return inner and _Picked(inner.place, build.cast(inner.value, node.dtype), build.cast(inner.other, node.dtype))
    if node.op == "mul":
        for number, factor in enumerate(node.args):
            inner = None if loop.levels[factor] else _picked(node.args[1 - number], loop, row)
            if inner is not None:
                value, other = (build.call("mul", part, factor) for part in (inner.value, inner.other))
                return _Picked(inner.place, value, other)
    return None


def _place(condition: Node, loop: Loop, row: Range) -> Node | None:
    """Returns the value that the position in the row is compared with."""
    if condition.op != "eq":
        return None
    for position, place in (condition.args, condition.args[::-1]):
        if position.op == "index" and position.attrs[0] == row.var and not loop.levels[place]:
            return place
    return None


def _sum(picked: _Picked, size: Expr) -> Node:
    """Returns the sum of one value and the others, which are 0 or not a number."""
    inside = build.call(
        "bitwise_and",
        build.call("ge", picked.place, build.const(0, picked.place.dtype)),
        build.call("lt", picked.place, build.index(size)),
    )
    chosen = build.call("where", inside, picked.value, picked.other)
    return chosen if picked.other.op == "const" else build.call("add", chosen, picked.other)
