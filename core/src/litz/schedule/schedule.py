"""Schedule: ordered kernels and calls, with a plan for their memory. Made by scheduling, taken by code generation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from litz.ir import Extern, KernelCall, Loop, Program
from litz.ir.printer import extern_line, loop_lines
from litz_plugins import Decision, Estimate

from .sizes import SizeGrid


@dataclass(frozen=True)
class Kernel:
    """One kernel to generate: a loop, fused from the operations named by `fused`.

    `finish` are loops that the kernel runs once its own is done: they reduce partial results that `loop` stores. Their
    output ranges have the variables and the sizes of some of `loop`'s; the other ranges of `loop` are the pieces that
    they reduce over. Of the programs that work on the same outputs of them, the last one to end its part runs them.
    None touches what another of them writes.

    `inplace` maps a buffer that the kernel writes to a buffer that it reads and whose memory it takes over: every
    element is read, by the iteration that writes it, before it is written.
    """

    name: str
    loop: Loop
    fused: tuple[str, ...] = ()
    inplace: Mapping[str, str] = field(default_factory=dict)
    finish: tuple[Loop, ...] = ()

    @property
    def device(self) -> torch.device:
        return self.loop.device

    @property
    def loops(self) -> tuple[Loop, ...]:
        """What the kernel runs, one after the other."""
        return (self.loop, *self.finish)

    @property
    def reads(self) -> tuple[str, ...]:
        """Buffers that must be there before the kernel runs."""
        later = (name for loop in self.finish for name in loop.reads if name not in self.loop.writes)
        return tuple(dict.fromkeys((*self.loop.reads, *later)))

    @property
    def writes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for loop in self.loops for name in loop.writes))

    @property
    def origins(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for loop in self.loops for name in loop.origins))


Step = Kernel | Extern


@dataclass(frozen=True)
class MemoryPlan:
    """When each temporary comes to be and ends.

    `allocate[n]` are the buffers allocated before step n, `free[n]` those whose last use is step n. `reuse` maps a
    buffer to the dead buffer (same device, same number of bytes) whose memory it takes over instead of an allocation;
    the dead one then is in no `free`. `arena` maps small buffers that only kernels touch to their byte offsets in one
    allocation of `arena_bytes`, made at the beginning of a call and kept to its end: those come to be and end without
    a call of the allocator. `peak_bytes` is the most memory that temporaries and outputs take at a time, for the hinted
    sizes, the arena counted from beginning to end; `total_bytes` is what they would take with no buffer freed, reused
    or in an arena.
    """

    allocate: tuple[tuple[str, ...], ...]
    free: tuple[tuple[str, ...], ...]
    reuse: Mapping[str, str] = field(default_factory=dict)
    peak_bytes: int = 0
    total_bytes: int = 0
    arena: Mapping[str, int] = field(default_factory=dict)
    arena_bytes: int = 0


@dataclass(frozen=True)
class Schedule:
    """The program's operations as steps in order of execution.

    `estimates` has the expected time of each step, by name. `loops_before` counts the program's loops before fusion.
    Buffers of the program that no step writes were fused away and are never allocated. `cases` are schedules of the
    same program for several sizes, where there are any; this one, for the sizes first seen, is one of them.
    """

    program: Program
    steps: tuple[Step, ...]
    memory: MemoryPlan
    estimates: Mapping[str, Estimate] = field(default_factory=dict)
    decisions: tuple[Decision, ...] = ()
    loops_before: int = 0
    cases: Cases | None = None

    @property
    def variants(self) -> tuple[Schedule, ...]:
        """The different schedules of all cases; this one alone where it is for all sizes."""
        return (self,) if self.cases is None else self.cases.distinct

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        return tuple(step for step in self.steps if isinstance(step, Kernel))

    @property
    def externs(self) -> tuple[Extern, ...]:
        return tuple(step for step in self.steps if isinstance(step, Extern))

    @property
    def launched(self) -> tuple[Kernel | KernelCall, ...]:
        """The steps that launch a kernel with a source: those to generate and those that came with theirs."""
        return tuple(step for step in self.steps if isinstance(step, (Kernel, KernelCall)))

    def __str__(self) -> str:
        lines = [f"schedule {self.program.name}: {self.loops_before} loops in {len(self.kernels)} kernels"]
        if self.memory.arena:
            lines.append(f"  allocate the arena, {self.memory.arena_bytes} bytes")
        for number, step in enumerate(self.steps):
            for name in self.memory.allocate[number]:
                old, offset = self.memory.reuse.get(name), self.memory.arena.get(name)
                where = f" in the memory of {old}" if old else "" if offset is None else f" at {offset} in the arena"
                lines.append(f"  allocate {name}{where}")
            if isinstance(step, Kernel):
                lines.append(f"  kernel {step.name} = {' + '.join(step.fused)}")
                lines += ["    " + line for line in loop_lines(step.loop, self.program.buffers)]
                for loop in step.finish:
                    lines.append("    then, by the last of the programs that have a piece of its outputs:")
                    lines += ["    " + line for line in loop_lines(loop, self.program.buffers)]
            else:
                lines.append("  " + extern_line(step, self.program.buffers))
            if self.memory.free[number]:
                lines.append(f"  free {', '.join(self.memory.free[number])}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Cases:
    """The schedule for each point of a grid of sizes. Points may share one; the names of kernels are then unique among
    those that are different."""

    grid: SizeGrid
    schedules: tuple[Schedule, ...]

    @property
    def distinct(self) -> tuple[Schedule, ...]:
        """In order of their first points."""
        return tuple({id(schedule): schedule for schedule in self.schedules}.values())

    @property
    def numbers(self) -> tuple[int, ...]:
        """For each point the position of its schedule in `distinct`."""
        order = [id(schedule) for schedule in self.distinct]
        return tuple(order.index(id(schedule)) for schedule in self.schedules)
