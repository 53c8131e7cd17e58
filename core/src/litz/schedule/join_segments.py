"""Loops over a concatenation of parts of one size: the same position of every part in one iteration.

In and out: a Schedule. Where a loop is cheaper so by the estimate (`litz.schedule.segments` has the form), it takes
that form here, and so do the loops of its kernel's `finish`.
"""

from __future__ import annotations

from dataclasses import replace

from litz.ir import Loop, Range
from litz.ir.operation import storage_roots
from litz_plugins import PassContext

from .estimate import CostModel
from .finish import why_not_finish
from .schedule import Kernel, Schedule
from .segments import at_once


def join_segments(schedule: Schedule, context: PassContext) -> Schedule:
    """Joins the segments of loops over concatenations where that is cheaper (a pass)."""
    if not getattr(context.options, "fusion", True):
        return schedule
    costs, roots = CostModel(schedule.program, context.target_of, context.ask), storage_roots(schedule.steps)
    steps = list(schedule.steps)
    for number, step in enumerate(steps):
        found = costs.joined(step.loop) if isinstance(step, Kernel) else None
        if found is None or not isinstance(step, Kernel):
            continue
        r, loop = found
        count = int(r.size) // int(loop.extents[r.var])
        finish = tuple(_like(other, r, count) for other in step.finish)
        if any(why_not_finish(loop, finish[:n], other, roots) for n, other in enumerate(finish)):
            continue
        apart, together = costs.as_it_is(step.loop).us, costs.as_it_is(loop).us
        pays, why = context.weigh(step.name, True, apart, together)
        reason = why or f"{count} elements take {len(loop.loads)} loads, in place of {len(step.loop.loads)} each"
        chosen = f"{count} segments at once" if pays else "each by itself"
        context.record(step.name, chosen, reason, (("each", apart), ("at once", together)), about=step.name)
        if pays:
            steps[number] = replace(step, loop=loop, finish=finish)
    return replace(schedule, steps=tuple(steps)) if steps != list(schedule.steps) else schedule


def _like(loop: Loop, r: Range, count: int) -> Loop:
    """A loop that finishes another, with the same segments at once if it has that range."""
    return at_once(loop, r, count) if r in loop.ranges else loop
