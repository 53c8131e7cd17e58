"""The order of steps: one that the dependences allow and that needs little memory at a time.

In: a Schedule. Out: the same steps, reordered only where the peak gets smaller. What a forward saved for a backward
alone counts until its last use: a backward had better begin with what frees most of it. Where it is measured what is
faster (`mode="max-autotune"`), there is one way more, no larger at its peak: what was just written is read first, while
the cache has it. Effects keep their order, and so do collectives and waits among themselves, and a wait with the
computation under its communication; those move in plugins only, which know what a transfer costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from litz.ir import Collective, Program, Wait
from litz.ir.operation import storage_roots
from litz.logs.units import size_text
from litz.schedule.dependences import dependences, topological
from litz.schedule.lifetimes import held_bytes
from litz.schedule.schedule import Schedule, Step
from litz_plugins import PassContext

AS_FUSED, NEAREST = "as fused", "nearest first"
SUBJECT = "steps"
"""The subject of the order's decision, in its key."""
SMALL = 1 / 128
"""Share of the peak: a step that adds less is not put off. Small kernels are launched together where they are near each
other (`run_beside`)."""


def order_steps(schedule: Schedule, context: PassContext) -> Schedule:
    """Puts the steps into the order with the lowest peak of several (a pass); the order stays if none is lower."""
    program, steps = schedule.program, schedule.steps
    before = dependences(steps, program.buffers)
    old = held_bytes(program, steps)
    best, found, how = steps, old, ""
    for name, order in _orders(steps, before, program, old).items():
        other = tuple(steps[n] for n in order)
        held = held_bytes(program, other)
        if held < found:
            best, found, how = other, held, name
    if context.tries:
        near = _nearer(best, found, steps, before, program, context, how or AS_FUSED)
        if near is not None:
            context.record("order of steps", NEAREST, context.gate.preferences.why, about=SUBJECT)
            return replace(schedule, steps=near)
    if best is steps:
        return schedule
    reason = f"{how}: the peak of memory falls from {size_text(old)} to {size_text(found)}"
    context.record("order of steps", "reordered", reason)
    return replace(schedule, steps=best)


def _orders(steps: Sequence[Step], before: Sequence[set[int]], program: Program, held: int) -> dict[str, list[int]]:
    """Returns the orders to try, by what each aims at."""
    if any(isinstance(step, Collective | Wait) for step in steps):
        # What is put off would hide no transfer, nor would what a wait is put before.
        before = _under_way(steps, before)
        return {"steps that free most memory come first": frugal_order(steps, before, program)}
    found = {"steps that free most memory come first": frugal_order(steps, before, program)}
    late = late_order(steps, before, program, int(held * SMALL))
    return {"steps with large results run right before their readers": late, **found}


def _under_way(steps: Sequence[Step], before: Sequence[set[int]]) -> list[set[int]]:
    """The dependences, and each wait after the computation that the program has between the communication and it."""
    found = [set(names) for names in before]
    for number, step in enumerate(steps):
        started = [other for other in before[number] if isinstance(step, Wait) and isinstance(steps[other], Collective)]
        if started:
            found[number].update(range(min(started) + 1, number))
    return found


def _nearer(
    chosen: tuple[Step, ...],
    held: int,
    steps: tuple[Step, ...],
    before: Sequence[set[int]],
    program: Program,
    context: PassContext,
    name: str,
) -> tuple[Step, ...] | None:
    """The order that reads soonest what was written, if that is asked for. The order is a way only where it needs no
    more memory than the `held` bytes of the chosen one, and less has to come from memory by the estimate."""
    if not steps or any(isinstance(step, (Collective, Wait)) for step in steps):
        return None
    near = tuple(steps[n] for n in nearest_order(steps, before))
    target = context.target_of(steps[0].device)
    us = [far_bytes(each, program, target.cache_bytes) / target.usual_bandwidth for each in (chosen, near)]
    if us[1] >= us[0] or held_bytes(program, near) > held:
        return None
    way, _ = context.choose(SUBJECT, ((name, us[0]), (NEAREST, us[1])), name, name)
    return near if way == NEAREST else None


def nearest_order(steps: Sequence[Step], before: Sequence[set[int]]) -> list[int]:
    """Returns the positions in an order that takes, of the steps that may come next, the one with something to read
    that was touched last; among equals the first in the old order."""
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
    """Returns the bytes that are read after a cache of `cache_bytes` bytes has lost them, because that many others were
    touched since."""
    passed = far = 0
    last: dict[str, int] = {}
    for step in steps:
        size = {name: program.hint(program.buffers[name].nbytes) for name in (*step.reads, *step.writes)}
        far += sum(size[name] for name in step.reads if passed - last.get(name, -cache_bytes - 1) > cache_bytes)
        passed += sum(size.values())
        last.update(dict.fromkeys(size, passed))
    return far


def frugal_order(steps: Sequence[Step], before: Sequence[set[int]], program: Program) -> list[int]:
    """Returns the positions in an order that takes, of the steps that may come next, the one that frees most memory net
    of what it allocates; among equals the first in the old order."""
    memory = _Memory(steps, program)
    return topological(before, memory.growth, memory.run)


def late_order(steps: Sequence[Step], before: Sequence[set[int]], program: Program, least: int = 0) -> list[int]:
    """Returns the positions in the old order, except for steps that add more than `least` bytes to what is held: those
    come right before the first that must follow them."""
    memory = _Memory(steps, program)
    grown = []
    for position in range(len(steps)):
        grown.append(memory.growth(position))
        memory.run(position)
    place = list(range(len(steps)))
    after: list[list[int]] = [[] for _ in steps]
    for position, earlier in enumerate(before):
        for other in earlier:
            after[other].append(position)
    for position in reversed(range(len(steps))):
        if grown[position] > least and after[position]:
            place[position] = min(place[other] for other in after[position])
    return topological(before, place.__getitem__)


class _Memory:
    """The memory that each step would add to what is held, while steps run one after the other."""

    def __init__(self, steps: Sequence[Step], program: Program) -> None:
        roots = storage_roots(steps)
        self.kept = {roots.get(name, name) for name in program.output_buffers}
        self.born = {roots.get(name, name) for name in program.dying_inputs}
        own = {name for name, buffer in program.buffers.items() if buffer.kind == "temporary"} | self.born
        self.touched = [sorted({roots.get(n, n) for n in (*step.reads, *step.writes)} & own) for step in steps]
        self.users: dict[str, set[int]] = {}
        for position, names in enumerate(self.touched):
            for name in names:
                self.users.setdefault(name, set()).add(position)
        self.size = {name: program.hint(program.buffers[name].nbytes) for name in self.users}

    def growth(self, position: int) -> int:
        """Bytes that a step allocates, less those that it frees, if it comes next."""
        total = 0
        for name in self.touched[position]:
            if name not in self.born:
                total += self.size[name]
            if self.users[name] == {position} and name not in self.kept:
                total -= self.size[name]
        return total

    def run(self, position: int) -> Iterable[int]:
        """A step runs. Whose growth is another one from there on?"""
        affected: set[int] = set()
        for name in self.touched[position]:
            fresh = name not in self.born
            self.born.add(name)
            self.users[name].discard(position)
            if fresh or len(self.users[name]) == 1:
                affected |= self.users[name]
        return affected
