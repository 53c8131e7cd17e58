"""Two passes: kernels over concatenations write several segments in one iteration, or each segment by programs of its
own, where the estimate is lower.

In and out: a Schedule. `litz.schedule.segments` finds the forms of a kernel's loop; the loops of the kernel's `finish`
take the same form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from litz.ir import Loop
from litz.ir.operation import storage_roots
from litz.ir.segments import at_once, segment
from litz_plugins import PassContext

from .estimate import CostModel, Form
from .finish import why_not_finish
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
        if not _may_finish(loop, finish, roots):
            continue
        apart, together = costs.as_it_is(step.loop).us, costs.cost(step.loop).us
        pays, why = context.weigh(step.name, True, apart, together)
        reason = why or f"{count} elements take {len(loop.loads)} loads, in place of {len(step.loop.loads)} each"
        chosen = f"{count} segments at once" if pays else "each by itself"
        context.record(step.name, chosen, reason, (("each", apart), ("at once", together)), about=step.name)
        if pays:
            steps[number] = replace(step, loop=loop, finish=finish)
    return replace(schedule, steps=tuple(steps)) if steps != list(schedule.steps) else schedule


def part_segments(schedule: Schedule, context: PassContext) -> Schedule:
    """Gives each segment of a loop over a concatenation programs of its own, in the same launch, where the estimate is
    lower (a pass)."""
    if not getattr(context.options, "fusion", True):
        return schedule
    costs, roots = CostModel(schedule.program, context.target_of, context.ask), storage_roots(schedule.steps)
    steps = list(schedule.steps)
    for number, step in enumerate(steps):
        if not isinstance(step, Kernel) or step.beside or not _has_sizes(step):
            continue
        form = costs.form(step.loop)
        parts = () if form is None or len(form.loops) == 1 else _parts(step, form)
        if not parts or not all(_may_finish(part.loop, part.finish, roots) for part in parts):
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


def _may_finish(loop: Loop, finish: Sequence[Loop], roots: Mapping[str, str]) -> bool:
    """May the last programs of a loop run these loops?"""
    return not any(why_not_finish(loop, finish[:n], other, roots) for n, other in enumerate(finish))


def _has_sizes(kernel: Kernel) -> bool:
    """Are all sizes of a kernel constants? Kernels beside each other have as many programs in each call."""
    return all(not loop.free_symbols and all(r.size.is_Integer for r in loop.all_ranges) for loop in kernel.loops)


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
