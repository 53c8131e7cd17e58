"""Inputs before the first step: whose address is read, and who has to be aligned. In: steps. Out: an `InputPlan`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from litz.ir import Extern, KernelCall, Program
from litz.schedule.schedule import Kernel, Step

from .plan import InputPlan


def plan_inputs(program: Program, steps: Sequence[Step]) -> InputPlan:
    launched = [step for step in steps if isinstance(step, (Kernel, KernelCall))]
    written = frozenset(name for step in steps for name in step.writes)
    aligned = tuple(_aligned(program, launched, written))
    return InputPlan(tuple(_addressed(program, steps, launched)), aligned, written & {*program.input_buffers})


def _addressed(program: Program, steps: Sequence[Step], launched: Sequence[Kernel | KernelCall]) -> Iterator[str]:
    """Inputs that kernels on their own device use, empty ones and those on the meta device aside. A call that writes an
    input may move it."""
    used = {(name, kernel.device) for kernel in launched for name in (*kernel.reads, *kernel.writes)}
    calls = [step for step in steps if isinstance(step, Extern) and not isinstance(step, KernelCall)]
    moved = {name for call in calls for name in call.mutates}
    for name in program.input_buffers:
        buffer = program.buffers[name]
        there = buffer.nbytes != 0 and buffer.device.type != "meta"
        if (name, buffer.device) in used and name not in moved and there:
            yield name


def _aligned(program: Program, launched: Sequence[Kernel | KernelCall], written: frozenset[str]) -> Iterator[str]:
    """CUDA inputs that kernels read: those kernels assume 16-byte alignment, unless they write the input too."""
    read = {name for kernel in launched for name in kernel.reads if kernel.device.type == "cuda"}
    for name in program.input_buffers:
        buffer = program.buffers[name]
        fixed = name in program.static_inputs and (buffer.layout.offset * buffer.dtype.itemsize) % 16 == 0
        if name in read and name not in written and buffer.device.type == "cuda" and not fixed:
            yield name
