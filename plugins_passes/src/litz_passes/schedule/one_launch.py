"""Split reductions in one launch: the kernel of partial results also combines them.

In and out: a Schedule. Where one kernel reduces pieces and another reduces what that one stored (`split_reductions`
makes such pairs), the two become one `Kernel` with a `finish`: its programs count, per block of outputs, how many of
them have stored their part, and the last one combines. The merger saves a launch, which on the host costs more than a
small kernel does on the device. NVIDIA's CUDA samples call the scheme "threadFenceReduction".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeGuard

from litz.ir import Loop, Program
from litz.ir.index import Symbol
from litz.ir.operation import storage_roots
from litz.ir.transform import rename_loop
from litz.schedule.contracted import ContractedGraph
from litz.schedule.dependences import dependences
from litz.schedule.estimate import CostModel
from litz.schedule.finish import why_not_finish
from litz.schedule.fusion_size import exceeds, most_operations
from litz.schedule.schedule import Kernel, Schedule, Step
from litz.target import Room, figures_of
from litz_plugins import PassContext, TargetOf


@dataclass(frozen=True)
class FinishFigures(Room):
    """Figures of a finish, which `figures/any/finish.toml` explains."""

    table = "finish"
    least_kernels: int
    most_bytes: int
    most_pieces: int
    few_pieces: int
    pieces_a_value_times: int
    block_columns: int
    long_us: float


REASON = "the last programs of the first kernel combine the partial results of all: one launch less"


def finish_in_one_launch(schedule: Schedule, context: PassContext) -> Schedule:
    """Puts a split reduction and the loops that combine its parts into one kernel (a pass), for devices whose kernels
    may have a `finish`."""
    steps, program = schedule.steps, schedule.program
    if not getattr(context.options, "fusion", True) or not any(_may_finish(step, context.target_of) for step in steps):
        return schedule
    costs = CostModel(program, context.target_of, context.ask)
    joined = _Joined(steps, program, context, costs, most_operations(context.options))
    count = sum(len(seconds) for seconds in joined.seconds.values())
    for first, seconds in joined.seconds.items():
        subject = f"{steps[first].name} and {', '.join(steps[n].name for n in seconds)}"
        limits = figures_of(context.target_of(steps[first].device), FinishFigures)
        if count < limits.least_kernels:
            context.record(
                subject, "two launches", f"fewer than {limits.least_kernels} such kernels: the counters cost as much"
            )
            return schedule
        kernel = joined.steps[first]
        apart = sum(costs.cost(loop).us for loop in (kernel.loops if isinstance(kernel, Kernel) else ()))
        context.weigh(steps[first].name, True, apart, apart - context.target_of(steps[first].device).launch_us)
        context.record(subject, "one launch", REASON, about=steps[first].name)
    return replace(schedule, steps=tuple(joined.steps[n] for n in joined.order())) if count else schedule


def _may_finish(step: Step, target_of: TargetOf) -> TypeGuard[Kernel]:
    return isinstance(step, Kernel) and step.loop.is_reduction and "finish" in target_of(step.device).abilities


class _Joined:
    """The kernels that combine what others store, and the `steps` once those are joined, by their old positions.

    `seconds`: for a kernel of partial results, by position, the positions of those that become its `finish`.
    """

    def __init__(
        self,
        steps: tuple[Step, ...],
        program: Program,
        context: PassContext,
        costs: CostModel,
        most: int | None = None,
    ) -> None:
        self.steps, self.program, self.context, self.most, self.costs = list(steps), program, context, most, costs
        self.roots = storage_roots(steps)
        self.graph = ContractedGraph(dependences(steps, program.buffers))
        self.seconds: dict[int, list[int]] = {}
        writers: dict[str, int] = {}
        gone: set[int] = set()
        for position, step in enumerate(steps):
            if _may_finish(step, context.target_of):
                for first in sorted({writers[name] for name in step.reads if name in writers} - gone):
                    if self._join(first, position, step):
                        gone.add(position)
                        break
            writers.update(dict.fromkeys(step.writes, position))

    def _join(self, first: int, second: int, step: Kernel) -> bool:
        """Join the step at `second` to another if that is legal and worth it."""
        a = self.steps[first]
        finish = as_finish(a.loop, step.loop) if isinstance(a, Kernel) else None
        if finish is None or not isinstance(a, Kernel) or not _is_small(finish, a.loop, self.program, self._limits(a)):
            return False
        if _parts_neighbours(a.loop, finish, self.program) or self._is_long(a):
            return False
        if exceeds(self.most, *a.loops, finish) or why_not_finish(a.loop, a.finish, finish, self.roots) is not None:
            return False
        if not self.graph.is_contractible(first, second) or self.context.gate.refuses(self.context.pass_name, a.name):
            return False
        self.graph.contract(first, second)
        self.steps[first] = replace(a, fused=(*a.fused, *step.fused), finish=(*a.finish, finish))
        self.seconds.setdefault(first, []).append(second)
        return True

    def _limits(self, kernel: Kernel) -> FinishFigures:
        return figures_of(self.context.target_of(kernel.device), FinishFigures)

    def _is_long(self, first: Kernel) -> bool:
        return self.costs.cost(first.loop).us > self._limits(first).long_us

    def order(self) -> list[int]:
        """Positions of the steps that are left. A joined one goes where its last was: what all of its loops need is
        there by then, and what they make is needed no sooner."""
        return self.graph.order({first: seconds[-1] for first, seconds in self.seconds.items()})


def as_finish(first: Loop, second: Loop) -> Loop | None:
    """Returns the second loop with the variables of the first where both walk along the same dimension of what the
    first stores and the second loads; None where they do not fit."""
    stored = {store.buffer: store.index for store in first.stores}
    sizes = {r.var: r.size for r in first.ranges}
    mine: dict[Symbol, Symbol] = {}
    for node in second.loads:
        for own, theirs in zip(node.index, stored.get(node.buffer, ()), strict=False):
            if own not in second.extents or theirs not in sizes or second.extents[own] != sizes[theirs]:
                return None
            if mine.setdefault(own, theirs) != theirs:
                return None
    wanted = {r.var for r in second.all_ranges}
    if set(mine) != wanted or len(set(mine.values())) < len(mine):
        return None
    outer = tuple(replace(r, var=mine[r.var]) for r in second.ranges)
    mapping = {r.var: mine[r.var] for r in second.ranges}
    # Its reduction variables are r0, ...; those of the first are too, but each loop has its own.
    return rename_loop(second, mapping, outer, second.reduction_ranges)


def _parts_neighbours(first: Loop, finish: Loop, program: Program) -> bool:
    """Returns whether neighbours in memory that the first loop loads are pieces, which have their own programs."""
    pieces = {r.var for r in first.ranges} - {r.var for r in finish.ranges}
    loads = [(each, program.buffers[each.buffer].layout) for each in first.accesses if not each.is_store]
    return any(access.unit_variable(layout, first.extents) in pieces for access, layout in loads)


def _is_small(finish: Loop, first: Loop, program: Program, limits: FinishFigures) -> bool:
    """Returns whether one program combines its share without keeping others waiting, and each piece has one."""
    pieces = program.hint(finish.reduction_numel)
    width = sum(node.dtype.itemsize for node in finish.loads if finish.levels[node])
    if pieces > max(limits.few_pieces, limits.pieces_a_value_times * program.hint(first.reduction_numel)):
        return False
    return (
        pieces <= limits.most_pieces
        and pieces * min(limits.block_columns, program.hint(finish.numel)) * width <= limits.most_bytes
    )
