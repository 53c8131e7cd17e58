"""Inputs before the first step: whose address is read, and who has to be aligned. In: steps. Out: an `InputPlan`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from litz.ir import Extern, KernelCall, Program
from litz.schedule.schedule import Kernel, Step
from litz_plugins import Target

from .plan import ExecutionPlan, InputPlan


def inputs_written_over(plan: ExecutionPlan) -> tuple[int, ...]:
    """Returns the positions of the inputs whose memory kernels take over."""
    names = {old for variant in plan.variants for kernel in variant.kernels for old in kernel.inplace.values()}
    return tuple(at for at, name in enumerate(plan.program.inputs) if isinstance(name, str) and name in names)


def plan_inputs(program: Program, steps: Sequence[Step], targets: Mapping[torch.device, Target]) -> InputPlan:
    """Returns which inputs' addresses are read (those that kernels on their own device use, empty ones aside), and
    which inputs must be aligned: those that kernels only read, where the target says so."""
    launched = [step for step in steps if isinstance(step, (Kernel, KernelCall))]
    written = frozenset(name for step in steps for name in step.writes)
    used = {(name, kernel.device) for kernel in launched for name in (*kernel.reads, *kernel.writes)}
    read = {name for kernel in launched if targets[kernel.device].aligned for name in kernel.reads}
    calls = [step for step in steps if isinstance(step, Extern) and not isinstance(step, KernelCall)]
    moved = {name for call in calls for name in call.mutates}  # a call that writes an input may move it
    addressed, aligned = [], []
    for name in program.input_buffers:
        buffer = program.buffers[name]
        target = targets[buffer.device]
        if target.addressed and buffer.nbytes != 0 and (name, buffer.device) in used and name not in moved:
            addressed.append(name)
        fixed = name in program.static_inputs and (buffer.layout.offset * buffer.dtype.itemsize) % 16 == 0
        if target.aligned and name in read and name not in written and not fixed:
            aligned.append(name)
    returned = frozenset(aligned) & {program.roots.get(name, name) for name in program.output_buffers}
    return InputPlan(tuple(addressed), tuple(aligned), returned, written & {*program.input_buffers})
