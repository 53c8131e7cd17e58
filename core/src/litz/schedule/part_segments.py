"""A pass: each segment of a kernel over a concatenation gets programs of its own where the estimate is lower.

In and out: a Schedule. The kernel of the first segment has the kernels of the others `beside` it, each with its segment
of the loops that finish.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise

from litz.ir.operation import storage_roots
from litz.ir.segments import segment
from litz_plugins import PassContext

from .estimate import CostModel, Form
from .finish import may_finish
from .schedule import Kernel, Schedule


def part_segments(schedule: Schedule, context: PassContext) -> Schedule:
    """Gives each segment of a loop over a concatenation programs of its own, in the same launch, where the estimate is
    lower (a pass)."""
    if not getattr(context.options, "fusion", True):
        return schedule
    costs, roots = CostModel(schedule.program, context.target_of, context.ask), storage_roots(schedule.steps)
    steps = list(schedule.steps)
    for number, step in enumerate(steps):
        # Kernels beside each other have as many programs in each call.
        if not isinstance(step, Kernel) or step.beside or any(loop.free_symbols for loop in step.loops):
            continue
        form = costs.form(step.loop)
        parts = () if form is None or len(form.loops) == 1 else _parts(step, form)
        if not parts or not all(may_finish(part.loop, part.finish, roots) for part in parts):
            continue
        whole, parted = costs.as_it_is(step.loop).us, costs.cost(step.loop).us
        pays, why = context.weigh(step.name, True, whole, parted)
        most = max(len(part.loop.nodes) for part in parts)
        reason = why or f"an element takes {most} operations at most, in place of {len(step.loop.nodes)}"
        chosen = f"{len(parts)} segments by programs of their own" if pays else "one loop"
        context.record(step.name, chosen, reason, (("one loop", whole), ("apart", parted)), about=step.name)
        if pays:
            steps[number] = replace(parts[0], beside=parts[1:])
    return replace(schedule, steps=tuple(steps)) if steps != list(schedule.steps) else schedule


def _parts(kernel: Kernel, form: Form) -> tuple[Kernel, ...]:
    """A kernel for each loop of the form, with its segment of the loops that finish; () where one of these reduces over
    the segments."""
    r = form.range
    if any(r not in loop.ranges for loop in kernel.finish):
        return ()
    places = [0, *accumulate(int(loop.extents[r.var]) for loop in form.loops)]
    parts = []
    for loop, (start, stop) in zip(form.loops, pairwise(places), strict=True):
        mark = f"_{start}" if start else ""
        finish = (segment(other, r, start, stop) for other in kernel.finish)
        named = (replace(other, name=f"{other.name}{mark}") for other in (loop, *finish))
        parts.append(replace(kernel, name=f"{kernel.name}{mark}", loop=next(named), finish=tuple(named)))
    return tuple(parts)
