"""Kernels that need nothing of each other, in one launch.

In and out: a Schedule. A launch takes one to two microseconds of the device in a CUDA graph, and more of the host
without one, however little the kernel does: a rotation of queries, one of keys, an update of each small parameter.
Where such kernels could run at the same time they become one `Kernel`, with the others `beside` the first: its first
programs run the first loop, the next ones the second, and so on.

Kernels that do the same to tensors of their own (an optimizer's step, the norm of each gradient) are *alike*, and
have one launch whatever their size: while the last programs of one kernel run alone, much of the device has nothing to
do, and the next kernel's first programs have nothing on its way yet. Their text is one function
(`litz.targets.triton.join`), so a launch takes many.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

from litz.ir import Collective, Loop, Program, Wait
from litz.ir.node import attr_key
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
    alike_buffers: int


MOST = 8
"""Kernels in a launch; of kernels that are alike, how many texts."""

WHOLE = 1024
"""Elements of a block: loops over multiples of it have one text."""

NEAR = (24, 12, 6, 3)
"""Steps between the first kernel and the last, at most: what the first makes is in memory for as long. The first number
with which the peak of memory stays. Of kernels that are alike, any number is tried first."""

SLACK, LEAST = 1 / 64, 1 << 16
"""Share of the peak of memory by which it may rise for launches that are spared, and bytes that count for nothing."""

REASON = "the kernels are small and independent of each other: one launch runs all"
ALIKE = "the kernels do the same to tensors of their own: one launch runs all"


def run_beside(schedule: Schedule, context: PassContext) -> Schedule:
    """Puts kernels that need nothing of each other into one launch (a pass) where they are small or alike, for devices
    whose code generator can `join` sources."""
    if not getattr(context.options, "fusion", True):
        return schedule
    program, before = schedule.program, schedule.steps
    held: int | None = None
    for near, alike in zip((*NEAR[:1], *NEAR), (len(before), *NEAR), strict=False):
        found = _Found(before, program, context, most_operations(context.options), near, alike)
        if not found.others:
            return schedule
        after = tuple(found.steps[n] for n in found.order())
        held = held_bytes(program, before) if held is None else held
        if held_bytes(program, after) > held + max(LEAST, held * SLACK):
            continue
        for first, others in found.others.items():
            steps = (before[first], *(before[n] for n in others))
            reason = ALIKE if first in found.large else REASON
            context.record(" and ".join(step.name for step in steps), "one launch", reason, about=steps[1].name)
        return replace(schedule, steps=after)
    return schedule


class _Found:
    """The kernels that run beside each other, and the `steps` once those are joined, by their old positions.

    `others`: for the first kernel of a launch, by position, the positions of those beside it. `large`: launches of
    kernels that are alike. `held`: for each step a bit for each wait for communication that comes before it: what could
    run at once does not wait for what cannot. `near`, `alike`: steps between the first kernel of a launch and the last,
    at most, of small kernels and of those that are alike.
    """

    def __init__(
        self, steps: tuple[Step, ...], program: Program, context: PassContext, most: int | None, near: int, alike: int
    ) -> None:
        self.steps, self.program, self.context, self.most = list(steps), program, context, most
        self.others: dict[int, list[int]] = {}
        self.large: set[int] = set()
        of = context.target_of
        able = [isinstance(step, Kernel) and _may_join(step, program, of(step.device)) for step in steps]
        if sum(able) < 2:
            return
        self.graph = ContractedGraph(dependences(steps, program.buffers))
        waits = sum(1 << n for n, step in enumerate(steps) if isinstance(step, Wait))
        self.held = [above & waits for above in self.graph.ancestors]
        self.likeness: dict[int, Hashable] = {}
        self.texts: dict[int, set[Hashable]] = {}
        firsts: list[int] = []
        for position, step in enumerate(steps):
            if isinstance(step, (Collective, Wait)):
                firsts = []  # when a transfer begins and ends is decided elsewhere
            if not able[position]:
                continue
            assert isinstance(step, Kernel)
            self.likeness[position] = _likeness(step)
            self.texts[position] = {_text_of(step, program)}
            firsts = [first for first in firsts if position - first <= max(near, alike)]
            target = of(step.device)
            like = (n for n in reversed(firsts) if position - n <= alike and self._are_alike(n, position))
            mate = next((first for first in like if self._join(first, position, target, True)), None)
            if mate is None and is_small(step, program, target):
                small = (n for n in reversed(firsts) if position - n <= near and self._are_small(n, target))
                mate = next((first for first in small if self._join(first, position, target, False)), None)
            if mate is None:
                firsts.append(position)

    def _are_alike(self, first: int, second: int) -> bool:
        """Returns whether all kernels of a launch do the same as another kernel, by texts of which there are few."""
        return (
            self.likeness[first] is not None
            and self.likeness[first] == self.likeness[second]
            and len(self.texts[first] | self.texts[second]) <= MOST
        )

    def _are_small(self, first: int, target: Target) -> bool:
        """Returns whether any small kernel may join a launch."""
        kernel = self.steps[first]
        assert isinstance(kernel, Kernel)
        return (
            first not in self.large
            and len(kernel.parts) < MOST
            and all(is_small(part, self.program, target) for part in kernel.parts)
        )

    def _join(self, first: int, second: int, target: Target, alike: bool) -> bool:
        a, b = self.steps[first], self.steps[second]
        assert isinstance(a, Kernel) and isinstance(b, Kernel)
        if a.device != b.device:
            return False
        if self.held[first] != self.held[second] or exceeds(self.most, *a.loops, *b.loops):
            return False
        most = target.most_buffers
        if alike and most >= Target.most_buffers:  # a target that takes fewer than usual has a limit of its own
            most = max(most, figures_of(target, BesideFigures).alike_buffers)
        if len({*a.reads, *a.writes, *b.reads, *b.writes}) > most:
            return False
        if self.graph.precedes(first, second) or not self.graph.is_contractible(first, second):
            return False
        apart = sum(_us(kernel, self.program, target) for kernel in (a, b))
        if not self.context.weigh(b.name, True, apart, apart - target.launch_us)[0]:
            return False
        self.graph.contract(first, second)
        self.steps[first] = replace(a, fused=(*a.fused, *b.fused), beside=(*a.beside, b))
        self.others.setdefault(first, []).append(second)
        self.texts[first] |= self.texts[second]
        if not alike:
            self.likeness[first] = None  # a launch of different kernels
        elif not (self._are_small(first, target) or first in self.large):
            self.large.add(first)
        return True

    def order(self) -> list[int]:
        """Positions of steps that are left. A launch stands where its last kernel stood, or before its first reader:
        steps that need nothing and stood after that reader stay there, as their results would wait in memory."""
        places = {first: others[-1] for first, others in self.others.items()}
        readers = {first: [places.get(n, n) for n in self.graph.after[first]] for first in places}
        return self.graph.order({first: min(place, *readers[first], place) for first, place in places.items()})


def is_small(kernel: Kernel, program: Program, target: Target) -> bool:
    """Returns whether a launch is most of what a kernel takes."""
    limit = figures_of(target, BesideFigures).part_share * target.launch_us
    return not kernel.finish and _moved(kernel.loop, program) / target.usual_bandwidth <= limit


def _may_join(kernel: Kernel, program: Program, target: Target) -> bool:
    """Returns whether a kernel's sizes are known, and it is small, or reads and makes little that lives in this graph
    alone. Such tensors would be held for longer, and the second cache would not have them for their readers."""
    if ABILITY not in target.abilities or kernel.beside:
        return False
    if any(loop.free_symbols or any(not r.size.is_Integer for r in loop.all_ranges) for loop in kernel.loops):
        return False  # `free_symbols`: positions may be computed from sizes that no range and no buffer has
    buffers = [program.buffers[name] for name in (*kernel.reads, *kernel.writes)]
    if any(buffer.device != kernel.device or buffer.layout.free_symbols for buffer in buffers):
        return False
    limit = figures_of(target, BesideFigures).part_share * target.launch_us * target.usual_bandwidth
    kept = {*program.output_buffers}
    passing = sum(program.hint(b.nbytes) for b in buffers if b.kind == "temporary" and b.name not in kept)
    return is_small(kernel, program, target) or passing <= limit


def _likeness(kernel: Kernel) -> Hashable:
    """Returns what kernels that do the same to tensors of their own share: all but sizes, strides and names."""
    return kernel.device, tuple(_computed(loop) for loop in kernel.loops)


def _computed(loop: Loop) -> Hashable:
    places = {node: number for number, node in enumerate(loop.nodes)}
    body = tuple(
        (
            node.op,
            node.dtype,
            () if node.op in ("load", "index") else tuple(map(attr_key, node.attrs)),
            tuple(places[arg] for arg in node.args),
        )
        for node in loop.nodes
    )
    stores = tuple((store.mode, tuple(places[root] for root in store.roots)) for store in loop.stores)
    return len(loop.reduction_ranges) > 0, body, stores


def _text_of(kernel: Kernel, program: Program) -> Hashable:
    """Returns what tells the texts of alike kernels apart: nothing, where a loop goes through all of its tensors from
    the first element to the last in whole blocks; else its sizes."""
    loop = kernel.loop
    sizes = tuple(r.size for r in loop.all_ranges)
    layouts = [program.buffers[name].layout for name in (*loop.reads, *loop.writes)]
    walked = {layout.stride for layout in layouts if layout.numel != 1}
    flat = not loop.reduction_ranges and len(walked) == 1 and all(each.numel in (1, loop.numel) for each in layouts)
    return () if flat and int(loop.numel) % WHOLE == 0 else sizes


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
