"""Inputs before the first step: whose address is read, and who has to be aligned. In: steps. Out: an `InputPlan`."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence

import torch

from litz.ir import Extern, KernelCall, Program
from litz.schedule.schedule import Kernel, Step
from litz_plugins import Target

from .plan import InputPlan


def plan_inputs(program: Program, steps: Sequence[Step], targets: Mapping[torch.device, Target]) -> InputPlan:
    near = {device for device, target in targets.items() if target.addressed}
    strict = {device for device, target in targets.items() if target.aligned}
    launched = [step for step in steps if isinstance(step, (Kernel, KernelCall))]
    written = frozenset(name for step in steps for name in step.writes)
    aligned = tuple(_aligned(program, launched, written, strict))
    return InputPlan(tuple(_addressed(program, steps, launched, near)), aligned, written & {*program.input_buffers})


def _addressed(
    program: Program, steps: Sequence[Step], launched: Sequence[Kernel | KernelCall], near: Container[torch.device]
) -> Iterator[str]:
    """Inputs on devices that have addresses (`near`) which kernels on their own device use, empty ones aside. A call
    that writes an input may move it."""
    used = {(name, kernel.device) for kernel in launched for name in (*kernel.reads, *kernel.writes)}
    calls = [step for step in steps if isinstance(step, Extern) and not isinstance(step, KernelCall)]
    moved = {name for call in calls for name in call.mutates}
    for name in program.input_buffers:
        buffer = program.buffers[name]
        there = buffer.nbytes != 0 and buffer.device in near
        if (name, buffer.device) in used and name not in moved and there:
            yield name


def _aligned(
    program: Program,
    launched: Sequence[Kernel | KernelCall],
    written: frozenset[str],
    strict: Container[torch.device],
) -> Iterator[str]:
    """Inputs that kernels on `strict` devices read: those assume 16-byte alignment, unless they write the input too."""
    read = {name for kernel in launched for name in kernel.reads if kernel.device in strict}
    for name in program.input_buffers:
        buffer = program.buffers[name]
        fixed = name in program.static_inputs and (buffer.layout.offset * buffer.dtype.itemsize) % 16 == 0
        if name in read and name not in written and buffer.device in strict and not fixed:
            yield name
