"""The room's front door: Program in, Schedule out.

    program --core_program_passes--> program --make_schedule (fusion)--> schedule --core_schedule_passes--> schedule

The passes are records, so that plugins can put theirs before and after by name. Fusion is the step between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from litz.ir import Program
from litz.target import target_of
from litz_plugins import Ask, Decision, Gate, Pass, PassContext, TargetOf

from .bodies import simplify_bodies
from .estimate import CostModel
from .fusion import fuse
from .fusion_size import most_operations
from .inline import inline_pointwise
from .join_segments import join_segments
from .part_segments import part_segments
from .schedule import Kernel, Schedule, Steps
from .separate import separate_reductions, separated
from .share import round_shared
from .simplify import remove_dead_operations
from .split import split_reductions


def core_program_passes() -> tuple[Pass, ...]:
    """Returns core's own passes of stage "program", in their order."""
    return (
        Pass("separate_reductions", "program", separate_reductions),
        Pass("remove_dead_operations", "program", remove_dead_operations, ("separate_reductions",)),
        Pass("round_shared", "program", round_shared, ("remove_dead_operations",)),
        Pass("split_reductions", "program", split_reductions, ("round_shared",)),
        Pass("inline_pointwise", "program", inline_pointwise, ("split_reductions",)),
        Pass("round_inlined", "program", round_shared, ("inline_pointwise",)),
        Pass("simplify_bodies", "program", simplify_bodies, ("round_inlined",)),
    )


def core_schedule_passes() -> tuple[Pass, ...]:
    """Returns core's own passes of stage "schedule", in their order: those that make the forms that fusion has counted
    on (`CostModel.form`)."""
    return (
        Pass("join_segments", "schedule", join_segments),
        Pass("part_segments", "schedule", part_segments, after=("join_segments",)),
    )


def make_schedule(
    program: Program,
    *,
    target_of: TargetOf = target_of,
    ask: Ask | None = None,
    options: Any = None,
    note: Callable[[Decision], None] = lambda decision: None,
    passes: Sequence[Pass] = (),
    gate: Gate | None = None,
) -> Schedule:
    """Returns the schedule of a program: its loops fused into kernels, in a legal order.

    target_of: the devices that fusion weighs for. ask: what plugins say of a loop (`PassContext.ask`). options:
    `fusion` and `max_fusion_size` are used. note: takes what is decided. passes: schedule passes to run on the result
    (`core_schedule_passes()` for core's own), for callers that have no plugin manager to run them. gate: decisions not
    to take.
    """
    gate, program = gate or Gate(), separated(program)  # what took a contraction's place may nest reductions
    enabled, most = getattr(options, "fusion", True), most_operations(options)
    schedule = Schedule(program, fuse(program, CostModel(program, target_of, ask), note, enabled, most, gate))
    for item in passes:
        own = PassContext(options, "schedule", item.name, item.plugin or "core")
        schedule = item.run(schedule, replace(own, note=note, target_of=target_of, ask=ask, gate=gate))
    return schedule


def unscheduled(schedule: Steps) -> Program:
    """Returns a schedule, or a plan, as a Program again: each kernel's loops and each call, in order of execution. The
    program prints, verifies and runs in the interpreter like any other."""
    operations = [loop for step in schedule.steps for loop in (step.loops if isinstance(step, Kernel) else (step,))]
    return replace(schedule.program, operations=tuple(operations))
