"""From a Schedule to its ExecutionPlan: names, times, memory and tensors, worked out once, in that order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from litz.ir import KernelCall, Program
from litz.schedule.schedule import Cases, Kernel, Schedule, Step
from litz.target import target_of
from litz_plugins import Decision, Estimate, TargetOf

from .in_place import summed_into
from .inputs import plan_inputs
from .memory import plan_memory
from .plan import ExecutionPlan, MemoryPlan
from .results import plan_results
from .tensors import plan_tensors

IN_PLACE = "the kernel that writes the new buffer is the last to read the old one, at the same places"
SUMMED = "the library adds its product to the old buffer, which nobody else reads"

EstimateOf = Callable[[Step, Program], Estimate | None]
Note = Callable[[Decision], None]


def plan_execution(
    schedule: Schedule,
    *,
    estimate: EstimateOf = lambda step, program: None,
    options: Any = None,
    note: Note = lambda decision: None,
    target_of: TargetOf = target_of,
) -> ExecutionPlan:
    """Returns the plan of a schedule, with the plans of its cases.

    estimate: the expected time of a step of a program; None when nobody knows. options: `memory_planning` is used.
    note: takes what is decided about memory. target_of: the devices that it is made for.
    """
    enabled = getattr(options, "memory_planning", True)

    def plan(schedule: Schedule, note: Note, suffix: str = "") -> ExecutionPlan:
        program = schedule.program
        targets = {device: target_of(device) for device in devices_of(schedule)}
        steps, memory = plan_memory(program, named(schedule.steps, suffix), targets, enabled)
        _note_memory(program, memory, steps, note)
        results = plan_results(program, steps, memory, targets)
        return ExecutionPlan(
            program,
            steps,
            {step.name: time for step in steps if (time := estimate(step, program)) is not None},
            memory,
            plan_inputs(program, steps, targets),
            plan_tensors(program, steps, memory, results),
            results,
            targets,
        )

    regions = {name: _region(name, each, partial(plan, note=note)) for name, each in schedule.regions.items()}
    first, cases = replace(plan(schedule, note), regions=regions), schedule.cases
    if cases is None:
        return first
    plans = []
    for variant in cases.distinct:
        if variant.steps is schedule.steps:
            plans.append(first)
            continue
        point = next(point for point, own in enumerate(cases.each) if own is variant)
        plans.append(plan(variant, partial(_note_at, note, cases.grid.at(point)), f"_case{point}"))
    return replace(first, cases=Cases(cases.grid, tuple(plans[number] for number in cases.numbers)))


def _region(name: str, schedule: Schedule, plan: Callable[..., ExecutionPlan]) -> ExecutionPlan:
    """The plan of a region, whose kernels have the region's name in theirs."""
    inner = {key: _region(key, each, plan) for key, each in schedule.regions.items()}
    return replace(plan(schedule, suffix=f"_{name}"), regions=inner)


def devices_of(schedule: Schedule) -> set[torch.device]:
    """Returns the devices of the schedule's buffers and steps."""
    return {buffer.device for buffer in schedule.program.buffers.values()} | {step.device for step in schedule.steps}


def named(steps: Sequence[Step], suffix: str = "") -> tuple[Step, ...]:
    """Returns the steps with kernels named by their place, kernel0, kernel1, ..., and other steps under their own
    names. suffix: is added to the names of kernels and of KernelCalls."""
    found: list[Step] = []
    count = 0
    for step in steps:
        if isinstance(step, Kernel):
            step = replace(step, name=f"kernel{count}{suffix}")
            count += 1
        elif isinstance(step, KernelCall) and suffix:
            step = replace(step, name=f"{step.name}{suffix}")
        found.append(step)
    return tuple(found)


def _note_at(note: Note, at: str, decision: Decision) -> None:
    note(replace(decision, subject=f"{decision.subject} at {at}"))


def _note_memory(program: Program, memory: MemoryPlan, steps: Sequence[Step], note: Note) -> None:
    def record(subject: str, chosen: str, reason: str) -> None:
        note(Decision("execution", subject, chosen, reason))

    in_place = {new: step.name for step in steps if isinstance(step, Kernel) for new in step.inplace}
    pairs = {step.name: summed_into(step, program) for step in steps}
    summed = {pair[0]: name for name, pair in pairs.items() if pair and memory.reuse.get(pair[0]) == pair[1]}
    for new, old in memory.reuse.items():
        if new in summed:
            record(f"{new} over {old} in {summed[new]}", "in place", SUMMED)
        elif new in in_place:
            record(f"{new} over {old} in {in_place[new]}", "in place", IN_PLACE)
        else:
            record(f"{new} in {old}", "took over memory", "the old buffer is dead and of the same size")
    if memory.arena:
        placed = f"{len(memory.arena)} buffers in one allocation of {memory.arena_bytes} bytes"
        record(
            "arena", placed, "these buffers are small, and only kernels touch them: an address is all that kernels need"
        )
