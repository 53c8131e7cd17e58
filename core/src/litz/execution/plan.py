"""ExecutionPlan: a schedule's steps with their names, times, memory and tensors.

Made once, after the last pass over the Schedule (`plan_execution`). The wrapper prints it, reports read it, and nothing
after it decides anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch

from litz.ir import Program
from litz.ir.printer import region_lines
from litz.schedule.schedule import Cases, Step, Steps, step_lines
from litz_plugins import Estimate, Target


@dataclass(frozen=True)
class MemoryPlan:
    """The steps at which each temporary comes to be and ends.

    `allocate[n]` are the buffers allocated before step n, `free[n]` those whose last use is step n. `reuse` maps a
    buffer to the dead buffer (same device, same number of bytes) whose memory it takes over instead of an allocation;
    the dead one then is in no `free`. `arena` maps small buffers that only kernels touch to their byte offsets in one
    allocation of `arena_bytes`, made at the beginning of a call and kept to its end: those come to be and end without
    a call of the allocator. `peak_bytes` is the most memory that temporaries and outputs take at a time, for the hinted
    sizes, the arena counted from beginning to end; `total_bytes` is what they would take with no buffer freed, reused
    or in an arena. `held[n]` is what is taken during step n, with inputs that die in the graph and the arena.
    """

    allocate: tuple[tuple[str, ...], ...]
    free: tuple[tuple[str, ...], ...]
    reuse: Mapping[str, str] = field(default_factory=dict)
    peak_bytes: int = 0
    total_bytes: int = 0
    arena: Mapping[str, int] = field(default_factory=dict)
    arena_bytes: int = 0
    held: tuple[int, ...] = ()


@dataclass(frozen=True)
class InputPlan:
    """The treatment of tensor inputs before the first step.

    addressed: inputs whose address is read once, and which must have memory there. aligned: inputs that are copied
    where their address is no multiple of 16 bytes. returned: those of them that the graph returns, or views of them:
    the caller gets the tensor itself and not the copy. written: inputs that a step writes.
    """

    addressed: tuple[str, ...] = ()
    aligned: tuple[str, ...] = ()
    returned: frozenset[str] = frozenset()
    written: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Result:
    """A tensor that a library call makes and somebody uses.

    strides: which of its strides must be as planned: "trusted" ones are, and nobody looks; "inside" leaves out
    dimensions of size 1; "every" leaves out none. sizes: are its type and sizes compared with those that were planned?
    found_out: dimensions whose sizes the call itself finds out.
    """

    buffer: str
    strides: Literal["trusted", "inside", "every"] = "trusted"
    sizes: bool = False
    found_out: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Allocation:
    """A tensor that is made for a step: in the memory of the tensor `over`, or in fresh memory where that is None."""

    buffer: str
    over: str | None = None


@dataclass(frozen=True)
class Drop:
    """Tensors that the wrapper lets go of."""

    buffers: tuple[str, ...]


@dataclass(frozen=True)
class TensorPlan:
    """The tensors that come and go around one step. before, after: in order of execution."""

    before: tuple[Allocation | Drop, ...] = ()
    after: tuple[str, ...] = ()


@dataclass(frozen=True)
class ExecutionPlan(Steps):
    """The steps of a schedule under their final names (kernel0, kernel1, ...), and all that is known of each.

    `estimates` has the expected time of each step, by name, where somebody knows one. `tensors[n]` belongs to step n.
    `results` has the results of each library call by the call's name; a call that is not there writes into tensors that
    were allocated for it. `targets` are those of the devices. `cases` are plans of the same program for several sizes,
    where there are any; this one, for the sizes first seen, is one of them. `regions` are the plans of the schedule's
    regions, by name.
    """

    program: Program
    steps: tuple[Step, ...]
    estimates: Mapping[str, Estimate]
    memory: MemoryPlan
    inputs: InputPlan = InputPlan()
    tensors: tuple[TensorPlan, ...] = ()
    results: Mapping[str, tuple[Result, ...]] = field(default_factory=dict)
    targets: Mapping[torch.device, Target] = field(default_factory=dict)
    cases: Cases[ExecutionPlan] | None = None
    regions: Mapping[str, ExecutionPlan] = field(default_factory=dict)

    @property
    def variants(self) -> tuple[ExecutionPlan, ...]:
        """Returns the different plans of all cases; this plan alone where it is for all sizes."""
        return (self,) if self.cases is None else self.cases.distinct

    @property
    def inner(self) -> Mapping[str, ExecutionPlan]:
        """Returns the plans of all regions, and of regions within regions, by their names in the wrapper."""
        found: dict[str, ExecutionPlan] = {}
        for name, plan in self.regions.items():
            found |= {name: plan, **plan.inner}
        return found

    @property
    def functions(self) -> tuple[ExecutionPlan, ...]:
        """Returns all plans that are a function of the wrapper: `variants`, then those of regions."""
        return (*self.variants, *self.inner.values())

    @property
    def all_steps(self) -> Iterator[tuple[str, Step, Program]]:
        """Yields each step of each function, what the wrapper's places call the step, and the program that it is of."""
        for prefix, plan in (*(("", each) for each in self.variants), *((f"{n}.", p) for n, p in self.inner.items())):
            yield from ((f"{prefix}{step.name}", step, plan.program) for step in plan.steps)

    def __str__(self) -> str:
        lines = [f"schedule {self.program.name}: {self.loops_before} loops in {len(self.kernels)} kernels"]
        for text, names in (("address of", self.inputs.addressed), ("align", self.inputs.aligned)):
            lines += [f"  {text} {', '.join(names)}"] if names else []
        if self.memory.arena:
            lines.append(f"  allocate the arena, {self.memory.arena_bytes} bytes")
        for number, step in enumerate(self.steps):
            for name in self.memory.allocate[number]:
                old, offset = self.memory.reuse.get(name), self.memory.arena.get(name)
                where = f" in the memory of {old}" if old else "" if offset is None else f" at {offset} in the arena"
                lines.append(f"  allocate {name}{where}")
            lines += ["  " + line for line in step_lines(step, self.program.buffers)]
            for result in self.results.get(step.name, ()):
                if result.strides != "trusted":
                    lines.append(f"  look at the strides of {result.buffer}, {result.strides}")
            if self.memory.free[number]:
                lines.append(f"  free {', '.join(self.memory.free[number])}")
        return "\n".join([*lines, *region_lines({name: str(each).split("\n") for name, each in self.regions.items()})])
