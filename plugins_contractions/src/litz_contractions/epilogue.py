"""Epilogues: the pointwise operations that use a contraction's result, as part of the kernel that makes it.

In: a program and one of its contractions. Out: an `Epilogue`, the stores that the kernel makes of its accumulator, as
one Loop over the result's dimensions. The loop is the IR's own, so core's code generator writes it, and what an
operation means is the same fused and alone: the result is rounded to its dtype before its users see it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import torch

from litz.ir import Buffer, Loop, Node, Operation, Program, Range, Store, Template
from litz.ir.build import load
from litz.ir.index import ONE, ZERO, Expr, loop_var
from litz.ir.node import with_args
from litz.ir.transform import flatten, map_stores
from litz.schedule.choices import check_order, needed_outside
from litz.schedule.fusion_size import exceeds
from litz.schedule.merge import merge, merge_into

ACCUMULATOR = "accumulator"
"""Stands for the sum of products in an epilogue: a buffer that is never in memory."""
SECOND = "accumulator2"
"""The accumulator of a second sum, in a kernel that makes two."""
SUMS = (ACCUMULATOR, SECOND)
ROW_SUM = "row_sum"
"""Stands for the sum of a row of the activation, which the kernel takes besides."""
STAND_INS = (*SUMS, ROW_SUM)

_Join: TypeAlias = Callable[[Loop, Loop, Callable[[str], bool]], Loop | str]

MOST_USERS = 8
"""Operations that one kernel takes over, at most."""
MOST_NODES = 200
MOST_LOADS = 12
"""Beyond so many values or loads the accumulator spills out of the registers."""


@dataclass(frozen=True)
class Epilogue:
    """`loop` is over the result's dimensions and computes, from loads of `ACCUMULATOR`, what is stored. `absorbed` are
    the names of the operations in it, `shared` those of them that core's fusion could have joined with a loop outside
    instead (`shared_users`)."""

    loop: Loop
    absorbed: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    buffers: Mapping[str, Buffer] = field(default_factory=dict)

    def flat(self, program: Program) -> Loop:
        """Returns the loop in flat form (`litz.ir.transform.flatten`), for code generation."""
        return flatten(self.loop, {**program.buffers, **self.buffers})


def accumulator(program: Program, template: Template, dtype: torch.dtype) -> tuple[Node, Buffer, tuple[Range, ...]]:
    """Returns the node that loads the sum, its stand-in buffer, and the ranges of the template's result."""
    (name,) = template.outputs
    assert name is not None
    layout = program.buffers[name].layout
    ranges = tuple(Range(loop_var(n), size) for n, size in enumerate(layout.size))
    buffer = Buffer(ACCUMULATOR, dtype, template.device, layout)
    return load(ACCUMULATOR, place(ranges), dtype), buffer, ranges


def place(ranges: Sequence[Range]) -> tuple[Expr, ...]:
    """Returns the index by which loops read the element at `ranges`: a variable each; 0 along a dimension of size 1."""
    return tuple(ZERO if r.size == ONE else r.var for r in ranges)


def plain(
    program: Program,
    template: Template,
    value: Node,
    ranges: tuple[Range, ...],
    stand_in: Buffer | None = None,
    index: tuple[Expr, ...] | None = None,
) -> Epilogue:
    """Returns the epilogue that stores `value`, the contraction's own result. stand_in: for the accumulator, where
    `value` loads it. index: of the result's element, where that is not the variables of `ranges`."""
    (name,) = template.outputs
    assert name is not None
    store = Store(name, index or place(ranges), value)
    loop = Loop(template.name, template.device, ranges, (), (store,), template.origins)
    return Epilogue(loop, buffers={} if stand_in is None else {stand_in.name: stand_in})


def fused(program: Program, template: Template, start: Epilogue, most: int | None = None) -> Iterator[Epilogue]:
    """Yields `start` with ever more of the operations that use the result, the most last. Nothing where there is none.

    most: nodes of the graph that one kernel may do (`max_fusion_size`).
    """

    def join(loop: Loop, user: Loop, needed: Callable[[str], bool]) -> Loop | str:
        joined = "a reduction" if user.is_reduction else merge_into(loop, user, needed, program.roots)
        fits = not isinstance(joined, str) and len(joined.loads) <= MOST_LOADS and not exceeds(most, joined)
        return joined if fits else "it does not fit"

    return _with_users(program, template, start, join)


def fused_rows(program: Program, template: Template, start: Epilogue) -> Epilogue | None:
    """Returns `start` with the operations that use the result, reductions over its last dimension among them (softmax,
    layer norm, a sum): as many as there are. None where no such reduction can go along.

    The loop's ranges are then those of the rows, and its reduction range the columns.
    """

    def join(loop: Loop, user: Loop, needed: Callable[[str], bool]) -> Loop | str:
        here = user.device == loop.device
        return merge(loop, user, needed, program.roots, MOST_LOADS) if here else "it is on another device"

    every = list(_with_users(program, template, start, join))
    return next((each for each in reversed(every) if each.loop.is_reduction and not each.loop.has_scan), None)


def _with_users(program: Program, template: Template, start: Epilogue, join: _Join) -> Iterator[Epilogue]:
    """`start` with ever more of the operations that use the result. join: makes one loop of two, the second of which
    stores what is needed; or says why not."""
    loop, absorbed, made = start.loop, list[str](), set(start.loop.writes)
    for operation in program.operations[program.positions[template.name] + 1 :]:
        if len(absorbed) == MOST_USERS:
            return
        if not isinstance(operation, Loop) or made.isdisjoint(operation.reads):
            continue
        if any(store.mode != "set" or store.indirect for store in operation.stores):
            continue
        names = [*absorbed, operation.name]
        if not stands(program, template, names):
            continue
        joined = join(loop, operation, needed_outside(program, {template.name, *names}).__contains__)
        if isinstance(joined, str) or len(joined.nodes) > MOST_NODES:
            continue
        loop, absorbed = joined, names
        made.update(operation.writes)
        yield replace(start, loop=loop, absorbed=tuple(absorbed), shared=shared_users(program, template, absorbed))


def exchanged(stores: tuple[Store, ...], old: Node, new: Node) -> tuple[Store, ...]:
    """Returns the stores with a node in another's place."""
    return map_stores(stores, lambda node, args: new if node is old else with_args(node, args))


def stands(program: Program, template: Template, absorbed: Sequence[str]) -> bool:
    """Returns whether a kernel that does all of these has a place in the program's order and somebody who needs it."""
    inside = {template.name, *absorbed}
    try:
        check_order(program, sorted(program.positions[name] for name in inside))
    except ValueError:
        return False
    return bool(needed_outside(program, inside))


def others(program: Program, template: Template, absorbed: Sequence[str]) -> str:
    """Returns what else a kernel does, in words, such as "1 producer and 2 users"; '' for nothing."""
    before = sum(program.positions[name] < program.positions[template.name] for name in absorbed)
    counts = ((before, "producer"), (len(absorbed) - before, "user"))
    return " and ".join(f"{count} {word}{'s' if count > 1 else ''}" for count, word in counts if count)


def shared_users(program: Program, template: Template, absorbed: Sequence[str]) -> tuple[str, ...]:
    """Returns the absorbed operations that core could have fused with a loop outside: a loop that reads their results,
    or one that makes what they read and need not come before the contraction."""
    inside = {template.name, *absorbed}
    before: set[str] | None = None

    def is_shared(name: str) -> bool:
        nonlocal before
        operation = program.operations[program.positions[name]]
        if not isinstance(operation, Loop):
            return False  # another contraction
        readers = [op for buffer in operation.writes for op in program.readers[buffer]]
        if any(isinstance(op, Loop) and op.name not in inside for op in readers):
            return True
        makers = [op for buffer in operation.reads for op in program.writers.get(buffer, ())]
        loops = {op.name for op in makers if isinstance(op, Loop) and op.name not in inside}
        if loops and before is None:
            before = _upstream(program, template)
        return not loops <= (before or set())

    return tuple(name for name in absorbed if is_shared(name))


def _upstream(program: Program, template: Template) -> set[str]:
    """The names of all operations that a contraction's operands come from."""
    found: set[str] = set()
    waiting: list[Operation] = [template]
    while waiting:
        for buffer in waiting.pop().reads:
            for writer in program.writers.get(buffer, ()):
                if writer.name not in found:
                    found.add(writer.name)
                    waiting.append(writer)
    return found
