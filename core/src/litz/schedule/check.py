"""Is a Schedule sound? The compiler checks this in debug mode, and tests always.

In: a Schedule. Out: nothing, or an IllegalSchedule that has a line for each complaint. `litz.execution.check` checks
the ExecutionPlan.
"""

from __future__ import annotations

from collections.abc import Iterator

from litz.ir import Program
from litz.ir.coverage import loops_inside, written_where_read
from litz.ir.promised import check_promises
from litz.ir.verify import Illegal, written_before_read

from .dependences import dependences
from .finish import why_not_finish
from .merge import race
from .schedule import Kernel, Steps
from .schedule_program import unscheduled


def _one_set_of_ranges(program: Program) -> Iterator[str]:
    """No kernel has a reduction that owns its ranges: `litz.schedule.separate` makes Loops of those."""
    for loop in program.loops:
        if loop.nested:
            owned = ", ".join(map(str, loop.nested))
            yield f"{loop.name}: a reduction owns {owned}; no target generates nested reductions, separate them before"


RULES = (written_before_read, loops_inside, written_where_read, _one_set_of_ranges)
"""The rules of the IR that a schedule may break, of what it runs."""


class IllegalSchedule(Illegal):
    """Raised for a schedule that breaks a rule."""


def check_schedule(schedule: Steps) -> None:
    """Raises IllegalSchedule, with every complaint, unless the order and the kernels are sound."""
    run, complaints = unscheduled(schedule), [*_complete(schedule), *_ordered(schedule)]
    complaints += [complaint for rule in RULES for complaint in rule(run)]
    complaints += _races(schedule)
    if complaints:
        raise IllegalSchedule(f"schedule {schedule.program.name}", complaints)


def check_steps(plugin: str, before: Steps, after: Steps) -> Steps:
    """Checks the schedule that a plugin's pass returned. Errors: ValueError where the new schedule gives its caller
    something else than the old one."""
    check_promises(before.program, after.program)
    return after


def _complete(schedule: Steps) -> Iterator[str]:
    """Every operation of the program is in one step."""
    done = [name for step in schedule.steps for name in (step.fused if isinstance(step, Kernel) else (step.name,))]
    wanted = [operation.name for operation in schedule.program.operations]
    for name in set(done) ^ set(wanted):
        yield f"operation {name} is {'lost' if name in wanted else 'invented'}"
    for name in {name for name in done if done.count(name) > 1}:
        yield f"operation {name} runs more than once"


def _ordered(schedule: Steps) -> Iterator[str]:
    """Steps respect the dependences of the operations in them."""
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


def _races(schedule: Steps) -> Iterator[str]:
    for kernel in schedule.kernels:
        for loop in kernel.loops if len(kernel.fused) > 1 else ():
            reason = race(loop)
            if reason is not None:
                yield f"{kernel.name}: {reason}"
        for number, loop in enumerate(kernel.finish):
            reason = why_not_finish(kernel.loop, kernel.finish[:number], loop, schedule.program.roots)
            if reason is not None:
                yield f"{kernel.name}: its finish {loop.name} {reason}"
