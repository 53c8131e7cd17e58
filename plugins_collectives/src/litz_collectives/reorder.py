"""The order of communication and computation. In: a Schedule and the times of its steps. Out: its steps, reordered.

Three passes, after the semantics of PyTorch's passes of the same names:

    sink_waits                    each wait as late as possible: right before the first step that needs it
    raise_comms                   each collective as early as possible: right after the last step that it needs; with it
                                  goes a wait that stands right behind it, unless sink_waits puts waits off
    reorder_compute_for_overlap   after each collective, computation that hides it

All keep the dependences, and collectives in their order, so every rank does the same: the order depends on the program
and on estimates, which every rank makes of the same profile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf
from typing import Any

from litz.ir import Collective, Wait
from litz.schedule.dependences import dependences, topological
from litz.schedule.schedule import Schedule, Step
from litz_plugins import PassContext

from .tasks import estimates_of

Rule = Callable[[Sequence[Step], Sequence[set[int]], Mapping[str, float]], list[int]]
"""(steps, what each must follow, µs by name) -> positions in the new order."""


def make_pass(rule: Rule, why: str) -> Callable[[Any, PassContext], Any]:
    """Returns a schedule pass that applies a rule. why: the reason to record where the order changes."""

    def run(schedule: Schedule, context: PassContext) -> Schedule:
        if not any(isinstance(step, (Collective, Wait)) for step in schedule.steps):
            return schedule
        before = dependences(schedule.steps, schedule.program.buffers, waits_stay=False)
        estimates = estimates_of(schedule.steps, schedule.program, context)
        times = {name: estimate.us for name, estimate in estimates.items()}
        order = rule(schedule.steps, before, times)
        if order == list(range(len(order))):
            return schedule
        steps = tuple(schedule.steps[n] for n in order)
        moved = [step.name for step, old in zip(steps, schedule.steps, strict=True) if step is not old]
        context.record("order of steps", "reordered", f"{why}; moved: {', '.join(moved)}")
        return replace(schedule, steps=steps)

    return run


def sink_waits(steps: Sequence[Step], before: Sequence[set[int]], times: Mapping[str, float]) -> list[int]:
    """Returns an order in which waits, and what needs them, come last and all else keeps its order."""
    return topological(before, lambda n: 2 * n + (len(steps) * 2 if isinstance(steps[n], Wait) else 0))


def raise_comms(steps: Sequence[Step], before: Sequence[set[int]], times: Mapping[str, float]) -> list[int]:
    """Returns an order in which collectives, and what they need, come first and all else keeps its order."""
    return topological(before, _raised(steps, before).__getitem__)


def raise_comms_and_waits(steps: Sequence[Step], before: Sequence[set[int]], times: Mapping[str, float]) -> list[int]:
    """Returns the order of `raise_comms`, where waits with nothing but communication between them and what they wait
    for stand so afterwards: how far apart the two are is what `sink_waits` decides."""
    score = _raised(steps, before)
    for number, step in enumerate(steps):
        if isinstance(step, Wait):
            started = [other for other in before[number] if isinstance(steps[other], Collective)]
            if started and all(isinstance(other, (Collective, Wait)) for other in steps[min(started) : number]):
                score[number] = number - len(steps)
    return topological(before, score.__getitem__)


def _raised(steps: Sequence[Step], before: Sequence[set[int]]) -> list[int]:
    """The place of each step in the order of `raise_comms`, as far as the dependences let it stand there."""
    count = len(steps)
    score = list(range(count))
    for number in range(count):
        if isinstance(steps[number], Collective):
            # What a collective needs comes as early as it, unless an earlier one needs it too.
            for needed in (number, *_ancestors(number, before)):
                score[needed] = min(score[needed], number - count)
    return score


def reorder_compute_for_overlap(
    steps: Sequence[Step], before: Sequence[set[int]], times: Mapping[str, float]
) -> list[int]:
    """Returns an order. Between two collectives comes first what the next one needs and the first does not hold up;
    then, as long as the first one's time is not hidden, what neither the first holds up nor the next one needs; then
    what is left that the next one needs. All the rest comes after the last collective, in its order."""
    comms = [number for number, step in enumerate(steps) if isinstance(step, Collective)]
    done: list[int] = []
    gone: set[int] = set()

    def take(number: int) -> None:
        if number not in gone:
            gone.add(number)
            done.append(number)

    def take_with_needs(number: int) -> None:
        for needed in sorted(_ancestors(number, before) | {number}):
            take(needed)

    if not comms:
        return list(range(len(steps)))
    take_with_needs(comms[0])
    for comm, following in pairwise(comms):
        held_up = _descendants(comm, before)
        needed = _ancestors(following, before)
        hidden, whole = 0.0, times.get(steps[comm].name, inf)  # of what nobody knows, as much is hidden as can be
        for number in sorted(needed - held_up - gone):
            take(number)
            hidden += times.get(steps[number].name, 0.0)
        for number in range(len(steps)):
            if hidden >= whole:
                break
            free = number not in gone | held_up | needed and not isinstance(steps[number], (Collective, Wait))
            if free and before[number] <= gone:
                take(number)
                hidden += times.get(steps[number].name, 0.0)
        take_with_needs(following)
    for number in range(len(steps)):
        take(number)
    return done


def rules(passes: Sequence[str]) -> dict[str, tuple[Rule, str]]:
    """Returns the rules, and the reason to record where one changes the order, by the names that the option
    collectives.passes takes. passes: what that option names, as raising communication takes waits along where no pass
    puts them off."""
    raised = raise_comms if "sink_waits" in passes else raise_comms_and_waits
    return {
        "sink_waits": (sink_waits, "waits stand as late as they can"),
        "raise_comms": (raised, "communication starts as early as it can"),
        "reorder_compute_for_overlap": (reorder_compute_for_overlap, "computation hides communication"),
    }


def _ancestors(number: int, before: Sequence[set[int]]) -> set[int]:
    """All that must come before a step."""
    found: set[int] = set()
    pending = list(before[number])
    while pending:
        one = pending.pop()
        if one not in found:
            found.add(one)
            pending.extend(before[one])
    return found


def _descendants(number: int, before: Sequence[set[int]]) -> set[int]:
    """All that must come after a step."""
    found = {number}
    for other in range(number + 1, len(before)):  # whatever must come before a step stands before it
        if before[other] & found:
            found.add(other)
    return found - {number}
