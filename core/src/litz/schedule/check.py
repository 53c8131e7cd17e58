"""Is a Schedule sound? What the compiler checks in debug mode, and tests always.

In: a Schedule. Out: nothing, or an IllegalSchedule that has a line for each complaint.
"""

from __future__ import annotations

from collections.abc import Iterator

from litz.ir import TensorRef

from .arena import ALIGNMENT, barred_buffers
from .dependences import dependences
from .finish import why_not_finish
from .memory import Lifetimes, same_memory, same_positions
from .merge import race
from .schedule import Kernel, Schedule


class IllegalSchedule(ValueError):
    """The schedule breaks a rule; `complaints` has a line for each."""

    def __init__(self, schedule: Schedule, complaints: list[str]) -> None:
        self.complaints = complaints
        super().__init__(f"schedule {schedule.program.name} is not legal:\n  " + "\n  ".join(complaints))


def check_schedule(schedule: Schedule) -> None:
    """Raise IllegalSchedule unless order, kernels and memory plan are sound."""
    complaints = [*_complete(schedule), *_ordered(schedule), *_races(schedule), *_memory(schedule), *_arena(schedule)]
    if complaints:
        raise IllegalSchedule(schedule, complaints)


def _complete(schedule: Schedule) -> Iterator[str]:
    """Every operation of the program is in one step."""
    done = [name for step in schedule.steps for name in (step.fused if isinstance(step, Kernel) else (step.name,))]
    wanted = [operation.name for operation in schedule.program.operations]
    for name in set(done) ^ set(wanted):
        yield f"operation {name} is {'lost' if name in wanted else 'invented'}"
    for name in {name for name in done if done.count(name) > 1}:
        yield f"operation {name} runs more than once"


def _ordered(schedule: Schedule) -> Iterator[str]:
    """Steps respect the dependences of the operations in them, and read nothing that has not been written."""
    program = schedule.program
    step_of = {}
    for number, step in enumerate(schedule.steps):
        for name in step.fused if isinstance(step, Kernel) else (step.name,):
            step_of[name] = number
    legal = dependences(program.operations, program.buffers, waits_stay=False)
    for operation, before in zip(program.operations, legal, strict=True):
        for position in before:
            other = program.operations[position].name
            if step_of.get(other, -1) > step_of.get(operation.name, -1):
                yield f"{operation.name} runs before {other}, which it depends on"
    written = {name for name, buffer in program.buffers.items() if buffer.kind != "temporary"}
    for step in schedule.steps:
        for name in step.reads:
            if name not in written:
                yield f"{step.name} reads {name} before anything writes it"
        written.update(step.writes)
    for item in program.outputs:
        if isinstance(item, TensorRef) and item.buffer not in written:
            yield f"output {item.buffer} is never written"


def _races(schedule: Schedule) -> Iterator[str]:
    for kernel in schedule.kernels:
        for loop in kernel.loops if len(kernel.fused) > 1 else ():
            reason = race(loop)
            if reason is not None:
                yield f"{kernel.name}: {reason}"
        for number, loop in enumerate(kernel.finish):
            reason = why_not_finish(kernel.loop, kernel.finish[:number], loop, schedule.program.roots)
            if reason is not None:
                yield f"{kernel.name}: its finish {loop.name} {reason}"


def _memory(schedule: Schedule) -> Iterator[str]:
    """Every temporary is allocated once, before its first use, and kept until its last."""
    program, plan = schedule.program, schedule.memory
    lifetimes = Lifetimes(program, schedule.steps)
    holder: dict[str, str] = {}  # memory, by the buffer that it was allocated for -> whose it is now
    home: dict[str, str] = {}
    freed: set[str] = set()
    for number, step in enumerate(schedule.steps):
        for name in plan.allocate[number]:
            if name in home:
                yield f"{name} is allocated twice"
            old = plan.reuse.get(name)
            if old is None:
                home[name] = name
            else:
                home[name] = home.get(old, old)
                if holder.get(home[name]) != old:
                    yield f"{name} takes over the memory of {old}, which is not {old}'s any more"
                if old in freed or old in lifetimes.fixed or old in lifetimes.roots:
                    yield f"{name} takes over the memory of {old}, which is not free to give"
                if program.buffers[old].nbytes != program.buffers[name].nbytes:
                    yield f"{name} takes over the memory of {old}, which has another size"
                inplace = isinstance(step, Kernel) and step.inplace.get(name) == old
                if lifetimes.last[old] > number or (lifetimes.last[old] == number and not inplace):
                    yield f"{name} takes over the memory of {old} while it is needed"
            holder[home[name]] = name
        for name in (*step.reads, *step.writes):
            root = lifetimes.root(name)
            if program.buffers[root].kind != "temporary":
                continue
            dying = isinstance(step, Kernel) and name in step.inplace.values()
            if root in freed or (root not in home) or (holder[home[root]] != root and not dying):
                yield f"{step.name} uses {name}, which has no memory then"
        if isinstance(step, Kernel):
            for new, old in step.inplace.items():
                if not same_memory(old, new, program) or not same_positions(step.loop, old, new):
                    yield f"{step.name} cannot write {new} in place of {old}"
        for name in plan.free[number]:
            root = lifetimes.root(name)
            if root in lifetimes.fixed:
                yield f"{name} is freed, but is not the schedule's to free"
            if lifetimes.last[root] > number:
                yield f"{name} is freed before its last use"
            freed.add(name)
    for name in program.output_buffers & freed:
        yield f"output {name} is freed"


def _arena(schedule: Schedule) -> Iterator[str]:
    """What lies in the arena may lie there, in bytes of its own for as long as it lives."""
    program, steps, plan = schedule.program, schedule.steps, schedule.memory
    lifetimes = Lifetimes(program, steps)
    barred = barred_buffers(program, steps, lifetimes)
    if len({program.buffers[name].device for name in plan.arena if name in lifetimes.first}) > 1:
        yield "the arena has buffers of several devices"
    inplace = {pair for step in schedule.kernels for pair in step.inplace.items()}
    for new, old in plan.reuse.items():
        if plan.arena.get(new) != plan.arena.get(old):
            yield f"{new} takes over the memory of {old}, which is not where the arena has it"
    allocated = [name for names in plan.allocate for name in names]
    living: dict[str, range] = {}
    for name in (*plan.arena.keys() - set(allocated), *(name for name in allocated if name in plan.arena)):
        if name in barred or name not in lifetimes.first:
            yield f"{name} is in the arena, where it may not be"
            continue
        start = plan.arena[name]
        own = range(start, start + int(program.buffers[name].nbytes))
        if start < 0 or start % ALIGNMENT or own.stop > plan.arena_bytes:
            yield f"{name} is at {start} in the arena, which is no place for it"
        living = {other: taken for other, taken in living.items() if lifetimes.last[other] >= lifetimes.first[name]}
        for other, taken in living.items():
            apart = own.stop <= taken.start or taken.stop <= own.start
            if not apart and not ((name, other) in inplace and own == taken):
                yield f"{name} is in the arena where {other} is"
        living[name] = own
