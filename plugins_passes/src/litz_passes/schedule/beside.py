"""Small kernels that need nothing of each other, in one launch.

In and out: a Schedule. A launch takes one to two microseconds of the device in a CUDA graph, and more of the host
without one, however little the kernel does: a rotation of queries, one of keys, an update of each small parameter.
Where such kernels could run at the same time they become one `Kernel`, with the others `beside` the first: its first
programs run the first loop, the next ones the second, and so on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from litz.ir import Collective, Loop, Program, Wait
from litz.schedule.contracted import ContractedGraph
from litz.schedule.dependences import dependences
from litz.schedule.fusion_size import exceeds, most_operations
from litz.schedule.lifetimes import held_bytes
from litz.schedule.schedule import Kernel, Schedule, Step
from litz.target import Room, figures_of
from litz_plugins import PassContext, Target

ABILITY = "beside"


@dataclass(frozen=True)
class BesideFigures(Room):
    """Figures of a launch of several kernels, which `figures/any/beside.toml` explains."""

    table = "beside"
    part_share: float


MOST = 8
"""Kernels in a launch."""

NEAR = (24, 12, 6, 3)
"""Steps between the first kernel and the last, at most: what the first makes is in memory for as long. The first number
with which the peak of memory stays."""

SLACK, LEAST = 1 / 64, 1 << 16
"""Share of the peak of memory by which it may rise for launches that are spared, and bytes that count for nothing."""

REASON = "the kernels are small and independent of each other: one launch runs all"


def run_beside(schedule: Schedule, context: PassContext) -> Schedule:
    """Puts small kernels that need nothing of each other into one launch (a pass), for devices whose code generator can
    `join` sources."""
    if not getattr(context.options, "fusion", True):
        return schedule
    program, before = schedule.program, schedule.steps
    held: int | None = None
    for near in NEAR:
        found = _Found(before, program, context, most_operations(context.options), near)
        if not found.others:
            return schedule
        after = tuple(found.steps[n] for n in found.order())
        held = held_bytes(program, before) if held is None else held
        if held_bytes(program, after) > held + max(LEAST, held * SLACK):
            continue
        for first, others in found.others.items():
            steps = (before[first], *(before[n] for n in others))
            context.record(" and ".join(step.name for step in steps), "one launch", REASON, about=steps[1].name)
        return replace(schedule, steps=after)
    return schedule


class _Found:
    """Which kernels run beside which, and the `steps` once those are joined, by their old positions.

    `others`: for the first kernel of a launch, by position, the positions of those beside it. `held`: for each step a
    bit for each wait for communication that comes before it: what could run at once does not wait for what cannot.
    `near`: steps between the first kernel of a launch and the last, at most.
    """

    def __init__(
        self, steps: tuple[Step, ...], program: Program, context: PassContext, most: int | None, near: int
    ) -> None:
        self.steps, self.program, self.context, self.most = list(steps), program, context, most
        self.others: dict[int, list[int]] = {}
        of = context.target_of
        small = [isinstance(step, Kernel) and is_small(step, program, of(step.device)) for step in steps]
        if sum(small) < 2:
            return
        self.graph = ContractedGraph(dependences(steps, program.buffers))
        waits = sum(1 << n for n, step in enumerate(steps) if isinstance(step, Wait))
        self.held = [above & waits for above in self.graph.ancestors]
        firsts: list[int] = []
        for position, step in enumerate(steps):
            if isinstance(step, (Collective, Wait)):
                firsts = []  # when a transfer begins and ends is decided elsewhere
            if not small[position]:
                continue
            firsts = [first for first in firsts if position - first <= near]
            target = of(step.device)
            mate = next((first for first in reversed(firsts) if self._join(first, position, target)), None)
            if mate is None:
                firsts.append(position)

    def _join(self, first: int, second: int, target: Target) -> bool:
        a, b = self.steps[first], self.steps[second]
        assert isinstance(a, Kernel) and isinstance(b, Kernel)
        if a.device != b.device or len(a.beside) + 1 >= MOST:
            return False
        if self.held[first] != self.held[second] or exceeds(self.most, *a.loops, *b.loops):
            return False
        if len({*a.reads, *a.writes, *b.reads, *b.writes}) > target.most_buffers:
            return False
        if self.graph.precedes(first, second) or not self.graph.is_contractible(first, second):
            return False
        apart = sum(_us(kernel, self.program, target) for kernel in (a, b))
        if not self.context.weigh(b.name, True, apart, apart - target.launch_us)[0]:
            return False
        self.graph.contract(first, second)
        self.steps[first] = replace(a, fused=(*a.fused, *b.fused), beside=(*a.beside, b))
        self.others.setdefault(first, []).append(second)
        return True

    def order(self) -> list[int]:
        """Positions of steps that are left. A launch stands where its last kernel stood, or before its first reader:
        steps that need nothing and stood after that reader stay there, as their results would wait in memory."""
        places = {first: others[-1] for first, others in self.others.items()}
        readers = {first: [places.get(n, n) for n in self.graph.after[first]] for first in places}
        return self.graph.order({first: min(place, *readers[first], place) for first, place in places.items()})


def is_small(kernel: Kernel, program: Program, target: Target) -> bool:
    """Returns whether a launch is most of what the kernel takes, and its sizes are known."""
    if ABILITY not in target.abilities or kernel.finish or kernel.beside:
        return False
    loop = kernel.loop
    if loop.free_symbols or any(not r.size.is_Integer for r in loop.all_ranges):
        return False  # `free_symbols`: positions may be computed from sizes that no range and no buffer has
    buffers = [program.buffers[name] for name in (*kernel.reads, *kernel.writes)]
    if any(buffer.device != kernel.device or buffer.layout.free_symbols for buffer in buffers):
        return False
    return (
        _moved(loop, program) / target.usual_bandwidth
        <= figures_of(target, BesideFigures).part_share * target.launch_us
    )


def _us(kernel: Kernel, program: Program, target: Target) -> float:
    """Returns the µs of a kernel's launch with all kernels beside it."""
    return target.launch_us + sum(_moved(loop, program) for loop in kernel.loops) / target.usual_bandwidth


def _moved(loop: Loop, program: Program) -> int:
    """Bytes to and from memory."""
    outer, inner = (program.hint(size) for size in (loop.numel, loop.numel * loop.reduction_numel))
    moved = 0
    for access in loop.accesses:
        touched = (inner if access.inner else outer) * access.itemsize
        moved += min(touched, program.hint(program.buffers[access.buffer].nbytes))
    return moved


__all__ = ["is_small", "run_beside"]
