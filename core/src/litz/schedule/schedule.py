"""Schedule: ordered kernels and calls, and nothing else. Made by fusion and passes, taken by `litz.execution`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

import torch

from litz.ir import Buffer, Extern, KernelCall, Loop, Program
from litz.ir.printer import OVER, extern_lines, loop_lines, region_lines, word

from .sizes import SizeGrid


@dataclass(frozen=True)
class Kernel:
    """One kernel to generate: a loop, fused from the operations named by `fused`.

    `name` is that of the first of those operations, which no pass has to change; in an ExecutionPlan kernels are
    numbered by their place.

    `finish` are loops that the kernel runs once its own is done: they reduce partial results that `loop` stores. Their
    output ranges have the variables and the sizes of some of `loop`'s; the other ranges of `loop` are the pieces that
    they reduce over. Of the programs that work on the same outputs of them, the last one to end its part runs them.
    None touches what another of them writes.

    `beside` are kernels that run in the same launch, by programs of their own, at the same time as far as anyone knows:
    none of them, nor this one, touches what another writes. `fused` has their operations as well.

    `inplace` maps a buffer that the kernel writes to a buffer that it reads and whose memory it takes over: every
    element is read, by the iteration that writes it, before it is written.

    `settings` are what the code generator is to choose otherwise, as its `near` names them (`TunableCodegen`): speed
    only. Empty: all as the generator works it out.
    """

    name: str  # of the first operation in it
    loop: Loop  # what it computes
    fused: tuple[str, ...] = ()  # names of its operations
    inplace: Mapping[str, str] = field(default_factory=dict)  # written buffer -> read buffer whose memory it takes
    finish: tuple[Loop, ...] = ()  # loops that run once `loop` is done
    beside: tuple[Kernel, ...] = ()  # kernels that run in the same launch
    settings: Mapping[str, int] = field(default_factory=dict)  # for its code generator: speed only

    @property
    def device(self) -> torch.device:
        """Returns the device that the kernel runs on."""
        return self.loop.device

    @property
    def loops(self) -> tuple[Loop, ...]:
        """Returns the loops that the kernel runs: its own, then those of its `finish`, then those of the kernels
        beside it."""
        return (self.loop, *self.finish, *(loop for kernel in self.beside for loop in kernel.loops))

    @property
    def parts(self) -> tuple[Kernel, ...]:
        """Returns the kernels of the launch, each without the others."""
        return (replace(self, beside=()), *self.beside) if self.beside else (self,)

    @property
    def reads(self) -> tuple[str, ...]:
        """Returns the names of the buffers that must have their values before the kernel runs."""
        later = (name for loop in self.finish for name in loop.reads if name not in self.loop.writes)
        others = (name for kernel in self.beside for name in kernel.reads)
        return tuple(dict.fromkeys((*self.loop.reads, *later, *others)))

    @property
    def writes(self) -> tuple[str, ...]:
        """Returns the names of the buffers that the kernel's loops store to, each once."""
        return tuple(dict.fromkeys(name for loop in self.loops for name in loop.writes))

    @property
    def origins(self) -> tuple[str, ...]:
        """Returns the names of the graph's nodes that the kernel computes, each once."""
        return tuple(dict.fromkeys(name for loop in self.loops for name in loop.origins))


Step = Kernel | Extern


class Steps:
    """The common part of a Schedule and an ExecutionPlan: a program, and its operations as steps in order."""

    program: Program
    steps: tuple[Step, ...]

    @property
    def loops_before(self) -> int:
        """Returns the number of the program's loops before fusion."""
        return len(self.program.loops)

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Returns the steps that are kernels, in order."""
        return tuple(step for step in self.steps if isinstance(step, Kernel))

    @property
    def externs(self) -> tuple[Extern, ...]:
        """Returns the steps that are library calls, in order."""
        return tuple(step for step in self.steps if isinstance(step, Extern))

    @property
    def launched(self) -> tuple[Kernel | KernelCall, ...]:
        """Returns the steps that launch a kernel with a source: those whose source is generated, and those that came
        with a source."""
        return tuple(step for step in self.steps if isinstance(step, (Kernel, KernelCall)))


@dataclass(frozen=True)
class Schedule(Steps):
    """The program's operations as steps in order of execution.

    Buffers of the program that no step writes were fused away and are never allocated. `cases` are schedules of the
    same program for several sizes, where there are any; this one, for the sizes first seen, is one of them, and the one
    that is printed. `regions` are the schedules of the program's regions, by name; all cases share them.
    """

    program: Program  # that is scheduled
    steps: tuple[Step, ...]  # kernels and calls, in order
    cases: Cases[Schedule] | None = None  # schedules for several sizes, if there are any
    regions: Mapping[str, Schedule] = field(default_factory=dict)  # those of the program's regions, by name

    def __str__(self) -> str:
        lines = [f"schedule {self.program.name}: {self.loops_before} loops in {len(self.kernels)} kernels"]
        lines += [f"  {line}" for step in self.steps for line in step_lines(step, self.program.buffers)]
        return "\n".join([*lines, *region_lines({name: str(each).split("\n") for name, each in self.regions.items()})])


FINISH = "then, by the last of the programs that have a piece of its outputs:"
BESIDE = "beside it, by other programs:"


def step_lines(step: Step, buffers: Mapping[str, Buffer]) -> list[str]:
    """Returns the lines that print a step."""
    if isinstance(step, Extern):
        return extern_lines(step, buffers)
    fused = f" = {' + '.join(map(word, step.fused))}" if step.fused else ""
    said = [f"{word(new)} {OVER} {word(old)}" for new, old in step.inplace.items()]
    said += [f"{word(name)}={value}" for name, value in step.settings.items()]
    lines = [f"kernel {word(step.name)}{fused}{''.join(f', {each}' for each in said)}"]
    lines += ["  " + line for line in loop_lines(step.loop, buffers)]
    for loop in step.finish:
        lines += [f"  {FINISH}", *(f"  {line}" for line in loop_lines(loop, buffers))]
    for kernel in step.beside:
        lines += [f"  {BESIDE}", *(f"    {line}" for line in step_lines(kernel, buffers))]
    return lines


Planned = TypeVar("Planned")
"""A Schedule or an ExecutionPlan."""


@dataclass(frozen=True)
class Cases(Generic[Planned]):
    """A grid of sizes, and in `each` the schedule or the plan that runs at each of its points. Points may share one."""

    grid: SizeGrid
    each: tuple[Planned, ...]

    @property
    def distinct(self) -> tuple[Planned, ...]:
        """Returns the different schedules or plans, in order of the first points that they run for."""
        return tuple({id(one): one for one in self.each}.values())

    @property
    def numbers(self) -> tuple[int, ...]:
        """Returns, for each point, the position in `distinct` of what runs there."""
        order = [id(one) for one in self.distinct]
        return tuple(order.index(id(one)) for one in self.each)
