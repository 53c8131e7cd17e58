"""The order of steps: one that the dependences allow and that needs little memory at a time.

In: a Schedule. Out: the same steps, reordered only where the peak gets smaller. Where it is measured what is faster
(`mode="max-autotune"`), there is one way more, no larger at its peak: what was just written is read first, while the
cache has it. Effects keep their order, and so do
collectives and waits among themselves; those move in plugins only, which know what a transfer costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from litz.ir import Collective, Program, Wait
from litz.ir.operation import storage_roots
from litz_plugins import PassContext

from .dependences import dependences, topological
from .lifetimes import peak_bytes
from .schedule import Schedule, Step

AS_FUSED, LEAST_MEMORY, NEAREST = "as fused", "least memory", "nearest first"
SUBJECT = "steps"
"""What the order is called in its key."""


def order_steps(schedule: Schedule, context: PassContext) -> Schedule:
    """The pass: the memory-saving order if it has the lower peak, else the order as it was."""
    program = schedule.program
    before = dependences(schedule.steps, program.buffers)
    frugal = tuple(schedule.steps[n] for n in frugal_order(schedule.steps, before, program))
    old, new = peak_bytes(program, schedule.steps), peak_bytes(program, frugal)
    chosen = frugal if new < old else schedule.steps
    if context.tries:
        near = _nearer(chosen, schedule.steps, before, program, context, AS_FUSED if new >= old else LEAST_MEMORY)
        if near is not None:
            context.record("order of steps", NEAREST, context.gate.preferences.why, about=SUBJECT)
            return replace(schedule, steps=near)
    if new >= old:
        return schedule
    context.record("order of steps", "reordered", f"the peak of temporaries falls from {old} B to {new} B")
    return replace(schedule, steps=frugal)


def _nearer(
    chosen: tuple[Step, ...],
    steps: tuple[Step, ...],
    before: Sequence[set[int]],
    program: Program,
    context: PassContext,
    name: str,
) -> tuple[Step, ...] | None:
    """The order that reads soonest what was written, if that is asked for. It is a way only where it needs no more
    memory than the chosen one, and less has to come from memory by the estimate."""
    if not steps or any(isinstance(step, (Collective, Wait)) for step in steps):
        return None
    near = tuple(steps[n] for n in nearest_order(steps, before))
    target = context.target_of(steps[0].device)
    us = [far_bytes(each, program, target.cache_bytes) / target.usual_bandwidth for each in (chosen, near)]
    if us[1] >= us[0] or peak_bytes(program, near) > peak_bytes(program, chosen):
        return None
    way, _ = context.choose(SUBJECT, ((name, us[0]), (NEAREST, us[1])), name, name)
    return near if way == NEAREST else None


def nearest_order(steps: Sequence[Step], before: Sequence[set[int]]) -> list[int]:
    """Positions in an order that takes, of the steps that may come next, the one with something to read that was
    touched last; among equals the first in the old order."""
    readers: dict[str, set[int]] = {}
    for position, step in enumerate(steps):
        for name in step.reads:
            readers.setdefault(name, set()).add(position)
    touched: dict[str, int] = {}

    def age(position: int) -> int:
        return -max((touched.get(name, 0) for name in steps[position].reads), default=0)

    def changed(position: int) -> set[int]:
        now = len(done)
        done.append(position)
        names = (*steps[position].reads, *steps[position].writes)
        touched.update(dict.fromkeys(names, now + 1))
        return {reader for name in names for reader in readers.get(name, ())}

    done: list[int] = []
    return topological(before, age, changed)


def far_bytes(steps: Sequence[Step], program: Program, cache_bytes: int) -> int:
    """Bytes that are read though a cache of so many bytes has them no more, as so many others were touched since."""
    passed = far = 0
    last: dict[str, int] = {}
    for step in steps:
        size = {name: program.hint(program.buffers[name].nbytes) for name in (*step.reads, *step.writes)}
        far += sum(size[name] for name in step.reads if passed - last.get(name, -cache_bytes - 1) > cache_bytes)
        passed += sum(size.values())
        last.update(dict.fromkeys(size, passed))
    return far


def frugal_order(steps: Sequence[Step], before: Sequence[set[int]], program: Program) -> list[int]:
    """Positions in an order that takes, of the steps that may come next, the one that frees most memory net of what
    it allocates; among equals the first in the old order."""
    roots = storage_roots(steps)
    kept = {roots.get(name, name) for name in program.output_buffers}
    temporaries = {name for name, buffer in program.buffers.items() if buffer.kind == "temporary"}
    touched = [sorted({roots.get(n, n) for n in (*step.reads, *step.writes)} & temporaries) for step in steps]
    users: dict[str, set[int]] = {}
    for position, names in enumerate(touched):
        for name in names:
            users.setdefault(name, set()).add(position)
    size = {name: program.hint(program.buffers[name].nbytes) for name in users}
    born: set[str] = set()

    def growth(position: int) -> int:
        total = 0
        for name in touched[position]:
            if name not in born:
                total += size[name]
            if users[name] == {position} and name not in kept:
                total -= size[name]
        return total

    def changed(position: int) -> set[int]:
        affected: set[int] = set()
        for name in touched[position]:
            fresh = name not in born
            born.add(name)
            users[name].discard(position)
            if fresh or len(users[name]) == 1:
                affected |= users[name]
        return affected

    return topological(before, growth, changed)
