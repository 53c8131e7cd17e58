"""A program's reductions nested: each owns its ranges, and stands inside of what reads its result. In and out: a
Program of the same meaning."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from math import prod

from litz.ir import Loop, Node, Operation, Program, Range
from litz.ir.build import rounded
from litz.ir.index import Symbol, reduction_var
from litz.ir.node import intern, with_args
from litz.ir.pattern import fits
from litz.ir.transform import map_stores, rename_loop
from litz.schedule.inline import Body, TooComplex

FIRST = 100
"""The number of the first variable that a reduction owns: no loop has so many."""
MOST_POINTS = 1 << 16
"""Points of all ranges of a loop, those that reductions own among them: the interpreter has a tensor of so many."""


def nested(program: Program) -> Program:
    """Returns the program with the reductions of each Loop inside of the Loops that read the results, where the Loop
    has one result, no other operation writes into the buffer, and the readers do not become too large."""
    variables = map(reduction_var, itertools.count(FIRST))
    operations, bodies, roots = list[Operation](), dict[str, Body](), program.roots
    writers = Counter(roots.get(name, name) for operation in program.operations for name in operation.writes)
    for operation in program.operations:
        made: Operation = operation
        if isinstance(operation, Loop):
            made = owning(operation, variables)
            for name in [name for name in made.reads if name in bodies]:
                made = _joined(bodies[name], made, program)
            if made.nested:  # each reader is to see what memory would hold, as where `round_shared` has seen several
                made = replace(made, stores=tuple(replace(s, value=rounded(s.value)) for s in made.stores))
        operations.append(made)
        written = {roots.get(name, name) for name in operation.writes}
        for name, body in [*bodies.items()]:
            if written & {roots.get(read, read) for read in (name, *body.loop.reads)}:
                del bodies[name]
        found = Body.of(made) if isinstance(made, Loop) and made.nested else None
        if found is None:
            continue
        name = found.store.buffer
        if fits("temporary unshared", name, program) and writers[roots.get(name, name)] == 1:
            bodies[name] = found
    return replace(program, operations=tuple(operations))


def owning(loop: Loop, variables: Iterator[Symbol]) -> Loop:
    """Returns the loop without reduction ranges: its reductions have these for their own, with new variables. A loop
    that has a scan, or stores before it has reduced, is returned as it is."""
    if not loop.reduction_ranges or loop.has_scan or any(map(loop.at_reduction_level, loop.stores)):
        return loop
    over = tuple(Range(next(variables), r.size) for r in loop.reduction_ranges)
    moved = rename_loop(loop, {r.var: new.var for r, new in zip(loop.reduction_ranges, over)}, loop.ranges, over)

    def change(node: Node, args: tuple[Node, ...]) -> Node:
        if node.op == "reduce" and not node.over:
            return intern("reduce", node.dtype, args, (*node.attrs, over))
        return with_args(node, args)

    return replace(moved, reduction_ranges=(), stores=map_stores(moved.stores, change))


def _joined(body: Body, reader: Loop, program: Program) -> Loop:
    """The reader with the value in place of its loads; the reader itself where it would become too large."""
    if reader.device != body.loop.device:
        return reader
    try:
        found = body.into(reader)
    except TooComplex:
        return reader
    return found if prod(map(program.hint, found.extents.values())) <= MOST_POINTS else reader
