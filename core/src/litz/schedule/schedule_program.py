"""The room's front door: Program in, Schedule out.

    program --core_program_passes--> program --make_schedule (fusion)--> schedule --core_schedule_passes--> schedule

The passes are records, so that plugins can put theirs before and after by name. Fusion is the step between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from litz.ir import Program
from litz_plugins import Decision, Pass, PassContext

from .bodies import simplify_bodies
from .estimate import CostModel, Machine, Machines
from .finish import finish_in_one_launch
from .fusion import fuse
from .fusion_size import most_operations
from .inline import inline_pointwise
from .order import order_steps
from .reduce_in_place import reduce_in_place
from .schedule import Kernel, Schedule, Steps
from .simplify import remove_dead_operations
from .split import split_reductions

MachineLike = Machine | Machines | Any
"""A Machine, a mapping from device type to Machine, or any record of a device with the same figures."""


def core_program_passes(options: Any = None, machine: MachineLike | None = None) -> tuple[Pass, ...]:
    """Core's own passes of stage "program"."""
    return (
        Pass("remove_dead_operations", "program", remove_dead_operations),
        Pass("split_reductions", "program", lambda p, c: split_reductions(p, c, machine), ("remove_dead_operations",)),
        Pass("inline_pointwise", "program", lambda p, c: inline_pointwise(p, c, machine), ("split_reductions",)),
        Pass("simplify_bodies", "program", simplify_bodies, ("inline_pointwise",)),
    )


def core_schedule_passes(options: Any = None) -> tuple[Pass, ...]:
    """Core's own passes of stage "schedule"."""
    return (
        Pass("finish_in_one_launch", "schedule", finish_in_one_launch),
        Pass("order_steps", "schedule", order_steps, after=("finish_in_one_launch",)),
        Pass("reduce_in_place", "schedule", reduce_in_place, after=("order_steps",)),
    )


def make_schedule(
    program: Program,
    *,
    machine: MachineLike | None = None,
    options: Any = None,
    note: Callable[[Decision], None] = lambda decision: None,
    passes: Sequence[Pass] = (),
) -> Schedule:
    """The program's loops fused into kernels, in a legal order.

    machine: what fusion weighs with; None for what torch reports. options: `fusion` and `max_fusion_size` are used.
    note: takes what is decided. passes: schedule passes to run on the result (`core_schedule_passes()` for core's own),
    for callers that have no plugin manager to run them.
    """
    enabled, most = getattr(options, "fusion", True), most_operations(options)
    schedule = Schedule(program, fuse(program, CostModel(program, machine), note, enabled, most))
    for item in passes:
        schedule = item.run(schedule, PassContext(options, "schedule", item.name, item.plugin or "core", note=note))
    return schedule


def prepare(program: Program, options: Any = None, machine: MachineLike | None = None) -> Program:
    """The program after core's program passes, for callers that have no plugin manager to run them."""
    for item in core_program_passes(options, machine):
        program = item.run(program, PassContext(options, "program", item.name))
    return program


def unscheduled(schedule: Steps) -> Program:
    """A schedule, or a plan, as a Program again: each kernel's loop and each call, in order of execution. It prints,
    verifies and runs in the interpreter like any other."""
    operations = [loop for step in schedule.steps for loop in (step.loops if isinstance(step, Kernel) else (step,))]
    return replace(schedule.program, operations=tuple(operations))
