"""The pass `overlap`: communication where computation hides it. In: a Schedule. Out: the same work, in an order that is
predicted to be faster, or the Schedule as it was.

`planner` makes the orders and chooses: one that is faster by what is likely, in no corner of the estimates slower than
the source's order, and within the memory limit. Then the ranks agree on one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from litz.ir import Collective, Wait
from litz.schedule.schedule import Schedule, Step
from litz_plugins import Estimate, PassContext

from .agree import agreed, signature
from .overlap_record import record
from .planner import Planner
from .source import UNKNOWN, reordered
from .tasks import estimates_of

OPTIONS = ("collectives.bucket_bytes", "collectives.memory_limit", "collectives.pieces")
"""The options that the plan depends on beside the program and the estimates."""


def overlap(schedule: Schedule, context: PassContext) -> Schedule:
    """Moves communication so that computation hides it (a pass). A rank that knows too little to plan follows another's
    plan, else it leaves the source's order."""
    steps, program = schedule.steps, schedule.program
    if not any(isinstance(step, Collective) for step in steps):
        return schedule
    times = dict.fromkeys((step.name for step in steps), UNKNOWN) | estimates_of(steps, program, context)
    planner = Planner(schedule, times, context)
    blind = _why_blind(steps, times)
    own = planner.source if blind else planner.best()
    key = signature(steps, planner.whole.before, program, {name: context.options.get(name) for name in OPTIONS})
    plan = agreed(own.plan, key)
    chosen = own if plan == own.plan else planner.by_plan(plan)
    record(planner, chosen, own, blind)
    if chosen is planner.source and not chosen.plan.cuts:
        return schedule
    return replace(schedule, program=reordered(chosen.source.program, chosen.steps), steps=chosen.steps)


def _why_blind(steps: Sequence[Step], times: Mapping[str, Estimate]) -> str:
    """Returns why no order can be judged; nothing if it can."""
    unknown = [step.name for step in steps if times[step.name] is UNKNOWN]
    if unknown:
        return f"nobody knows the time of {', '.join(unknown[:5])}"
    if not any(times[step.name].us for step in steps if not isinstance(step, (Collective, Wait))):
        return "computation has no times here, so nothing is known to hide anything"
    return ""
