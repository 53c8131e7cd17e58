"""Reductions and broadcasts that work on their argument, where nobody needs it any more.

In: a Schedule in its final order. Out: the same, `all_reduce(x)` made `all_reduce_(x)` where x is a temporary that it
is the last to read. The functional op would allocate and copy first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch._ops import OpOverload

from litz.ir import Collective, Program, TensorRef, Wait
from litz.ir.operation import storage_roots
from litz.schedule.schedule import Schedule, Step
from litz_plugins import PassContext

IN_PLACE = {"all_reduce": "all_reduce_", "all_reduce_coalesced": "all_reduce_coalesced_", "broadcast": "broadcast_"}
"""Functional op -> the one that writes its first argument (a tensor, or the list of them)."""


def reduce_in_place(schedule: Schedule, context: PassContext) -> Schedule:
    """Lets reductions and broadcasts write over an argument that nothing reads afterwards (a pass)."""
    if not getattr(context.options, "memory_planning", True):
        return schedule
    steps = list(schedule.steps)
    for number, step in enumerate(steps):
        if not isinstance(step, Collective) or (target := _in_place_target(step)) is None:
            continue
        given = step.args[0] if isinstance(step.args[0], (tuple, list)) else (step.args[0],)
        pairs = list(zip(given, step.outputs, strict=True))
        if len({ref.buffer for ref, _ in pairs}) < len(pairs):
            continue
        if all(_may_be_written(ref, out, number, steps, schedule.program) for ref, out in pairs):
            written = tuple(ref.buffer for ref, _ in pairs)
            aliases = {out: ref.buffer for ref, out in pairs if out is not None}
            steps[number] = replace(step, target=target, mutates=written, aliases=aliases)
            context.record(step.name, "in place", f"nothing else needs {', '.join(written)} any more")
    return schedule if steps == list(schedule.steps) else replace(schedule, steps=tuple(steps))


def _in_place_target(step: Collective) -> OpOverload | None:
    if not isinstance(step.target, OpOverload):
        return None
    namespace, _, name = step.target._schema.name.partition("::")
    if namespace != "_c10d_functional" or name not in IN_PLACE:
        return None
    found: OpOverload = getattr(torch.ops._c10d_functional, IN_PLACE[name]).default
    return found


def _may_be_written(ref: TensorRef, out: str | None, number: int, steps: Sequence[Step], program: Program) -> bool:
    """Returns whether the argument is a whole temporary that lies as the result does and that no later step reads."""
    buffer = program.buffers[ref.buffer]
    if out is None or buffer.kind != "temporary" or not buffer.layout.is_contiguous():
        return False
    if ref.layout != buffer.layout or program.buffers[out].layout != buffer.layout:
        return False
    if ref.buffer in storage_roots(steps) or ref.buffer in program.output_buffers:  # there are views of it
        return False
    # Another collective that reads it may still be under way, on another stream.
    others = (step for step in steps[:number] if isinstance(step, (Collective, Wait)))
    return not any(ref.buffer in step.reads for step in (*others, *steps[number + 1 :]))
