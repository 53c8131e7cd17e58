"""A pass: kernels over concatenations write several segments in one iteration where the estimate is lower.

In and out: a Schedule. `litz.schedule.segments` finds the form of a kernel's loop; the loops of the kernel's `finish`
take the same form.
"""

from __future__ import annotations

from dataclasses import replace

from litz.ir.operation import storage_roots
from litz.ir.segments import at_once
from litz_plugins import PassContext

from .estimate import CostModel
from .finish import may_finish
from .schedule import Kernel, Schedule


def join_segments(schedule: Schedule, context: PassContext) -> Schedule:
    """Joins the segments of loops over concatenations where the estimate is lower (a pass)."""
    if not getattr(context.options, "fusion", True):
        return schedule
    costs, roots = CostModel(schedule.program, context.target_of, context.ask), storage_roots(schedule.steps)
    steps = list(schedule.steps)
    for number, step in enumerate(steps):
        if not isinstance(step, Kernel) or (form := costs.form(step.loop)) is None or len(form.loops) > 1:
            continue
        r, (loop,) = form.range, form.loops
        count = int(r.size) // int(loop.extents[r.var])
        finish = tuple(at_once(other, r, count) if r in other.ranges else other for other in step.finish)
        if not may_finish(loop, finish, roots):
            continue
        apart, together = costs.as_it_is(step.loop).us, costs.cost(step.loop).us
        pays, why = context.weigh(step.name, True, apart, together)
        reason = why or f"{count} elements take {len(loop.loads)} loads, in place of {len(step.loop.loads)} each"
        chosen = f"{count} segments at once" if pays else "each by itself"
        context.record(step.name, chosen, reason, (("each", apart), ("at once", together)), about=step.name)
        if pays:
            steps[number] = replace(step, loop=loop, finish=finish)
    return replace(schedule, steps=tuple(steps)) if steps != list(schedule.steps) else schedule
