"""Is a Schedule sound? What the compiler checks in debug mode, and tests always. (`litz.execution.check`: is its plan?)

In: a Schedule. Out: nothing, or an IllegalSchedule that has a line for each complaint.
"""

from __future__ import annotations

from collections.abc import Iterator

from litz.ir import TensorRef

from .dependences import dependences
from .finish import why_not_finish
from .merge import race
from .schedule import Kernel, Steps


class IllegalSchedule(ValueError):
    """The schedule breaks a rule; `complaints` has a line for each."""

    def __init__(self, schedule: Steps, complaints: list[str]) -> None:
        self.complaints = complaints
        super().__init__(f"schedule {schedule.program.name} is not legal:\n  " + "\n  ".join(complaints))


def check_schedule(schedule: Steps) -> None:
    """Raise IllegalSchedule unless order and kernels are sound."""
    complaints = [*_complete(schedule), *_ordered(schedule), *_races(schedule)]
    if complaints:
        raise IllegalSchedule(schedule, complaints)


def _complete(schedule: Steps) -> Iterator[str]:
    """Every operation of the program is in one step."""
    done = [name for step in schedule.steps for name in (step.fused if isinstance(step, Kernel) else (step.name,))]
    wanted = [operation.name for operation in schedule.program.operations]
    for name in set(done) ^ set(wanted):
        yield f"operation {name} is {'lost' if name in wanted else 'invented'}"
    for name in {name for name in done if done.count(name) > 1}:
        yield f"operation {name} runs more than once"


def _ordered(schedule: Steps) -> Iterator[str]:
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
