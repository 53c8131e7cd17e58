"""Reductions of a few values each, written out: `sum(x[j, 0..3])` as `(x[j, 0] + x[j, 1]) + (x[j, 2] + x[j, 3])`.

A loop (x | r) over r values that do not lie side by side becomes a pointwise loop over x with r loads: the heads of a
group summed, a token's experts combined, a batch of 8 added up. A GPU's threads then read 16 bytes of each and need
nothing of each other, where a tile of both axes would combine them through shared memory; and what reads the result
fuses as with any pointwise loop.

Two passes do so. `write_out_few_values`: in and out, a Program; a loop stays a reduction where it will be one kernel
with another loop over the same values. `write_out_few_in_kernels`: in and out, a Schedule; such kernels, which store
something for each value (the gradient of a maximum: which values are it), with a store for each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product as points

from litz.ir import Loop, Node, Operation, Program, Store, build
from litz.ir.complexity import excess, is_worse
from litz.ir.dtypes import compute_dtype
from litz.ir.index import Expr, Ranges, Symbol, substitute, to_expr
from litz.ir.node import with_args
from litz.ir.reductions import REDUCTIONS, Reduction, State
from litz.ir.transform import map_stores, rename, rename_nodes
from litz.schedule.estimate import CostModel
from litz.schedule.schedule import Kernel, Schedule
from litz.target import Room, figures_of
from litz_plugins import VETOED, PassContext


@dataclass(frozen=True)
class FewValueFigures(Room):
    """Figures of reductions of few values, which `figures/any/few_values.toml` explains."""

    table = "few_values"
    few_values: int
    most_loads: int
    most_held_loads: int


def write_out_few_values(program: Program, context: PassContext) -> Program:
    """Writes reductions of a few distant values out as pointwise loops on GPUs (a pass)."""
    costs = CostModel(program, context.target_of, context.ask)
    operations: list[Operation] = []
    for operation in program.operations:
        few = _few(operation, costs) if isinstance(operation, Loop) else 0
        if isinstance(operation, Loop) and few:
            subject = f"reduction {operation.name}"
            if reason := _obstacle(operation, few, program, costs):
                context.record(subject, "whole", reason, about=operation.name)
            elif not context.allows(operation.name):
                context.record(subject, "whole", VETOED, about=operation.name)
            elif (written := _written_out(operation)) is not operation:
                reason = f"{few} values that lie apart in memory: one thread adds them up"
                context.record(subject, "written out", reason, about=operation.name)
                operation = written
        operations.append(operation)
    if all(new is old for new, old in zip(operations, program.operations, strict=True)):
        return program
    return replace(program, operations=tuple(operations))


def write_out_few_in_kernels(schedule: Schedule, context: PassContext) -> Schedule:
    """Writes kernels that reduce a few distant values for each output out as pointwise ones on GPUs (a pass)."""
    costs = CostModel(schedule.program, context.target_of, context.ask)
    steps = list(schedule.steps)
    for number, step in enumerate(steps):
        if not isinstance(step, Kernel) or step.finish or not (few := _few(step.loop, costs)):
            continue
        reason = _hindrance(step.loop, few, costs)
        if reason or not context.allows(step.name):
            if _stores_each_value(step.loop):  # of the others the program's pass has said why
                context.record(step.name, "whole", reason or VETOED, about=step.name)
            continue
        if (written := _written_out(step.loop)) is not step.loop:
            reason = f"{few} values that lie apart in memory: one thread reads and writes them all"
            context.record(step.name, "written out", reason, about=step.name)
            steps[number] = replace(step, loop=written)
    return replace(schedule, steps=tuple(steps)) if steps != list(schedule.steps) else schedule


def _few(loop: Loop, costs: CostModel) -> int:
    """Returns how many values each output has, where the loop reduces and they are few; else 0."""
    length = loop.reduction_numel
    limits = figures_of(costs.target(loop.device), FewValueFigures)
    if not loop.reduction_ranges or not length.is_Integer or not 2 <= int(length) <= limits.few_values:
        return 0
    return int(length) if any(node.op == "reduce" for node in loop.nodes) else 0


def _stores_each_value(loop: Loop) -> bool:
    """Returns whether something is stored for each of the values that are reduced."""
    return any(loop.at_reduction_level(store) for store in loop.stores)


def _hindrance(loop: Loop, few: int, costs: CostModel) -> str | None:
    """Returns why the loop is better off as a reduction, wherever it is, or None."""
    if "blocks" not in costs.target(loop.device).abilities:
        return "on a CPU a vector holds the accumulators of several outputs already"
    if loop.has_scan:
        return "the loop has a scan"
    if any(len(REDUCTIONS[node.attrs[0]].parts) > 1 for node in loop.nodes if node.op == "reduce"):
        return "its state has several parts, which take longer to combine than to read"
    if not costs.reduces_columns(loop):
        return "the values of an output lie side by side in memory"
    limits = figures_of(costs.target(loop.device), FewValueFigures)
    most = limits.most_held_loads if _stores_each_value(loop) else limits.most_loads
    if sum(1 for node in loop.loads if loop.levels[node]) * few > most:
        return f"more than {most} loads"
    return None


def _obstacle(loop: Loop, few: int, program: Program, costs: CostModel) -> str | None:
    """Returns why the loop of a Program stays a reduction, or None."""
    if reason := _hindrance(loop, few, costs):
        return reason
    if _stores_each_value(loop):
        return "the loop stores values before they are reduced"
    # What walks over the same points is one kernel with the reduction, and reads them once; what is gathered from
    # anywhere is never one kernel with what wrote it.
    whole = costs.hint(loop.numel) * few
    read, written = {node.buffer for node in loop.loads if loop.levels[node] and not node.indirect}, set(loop.writes)
    for other in program.operations:
        if not isinstance(other, Loop) or other is loop or _few(other, costs):
            continue
        if other.reduction_ranges and not read.isdisjoint(other.writes):
            return f"the last program of {other.name} may combine its partial results"
        if costs.hint(other.numel) * costs.hint(other.reduction_numel) == whole and (
            not read.isdisjoint((*other.writes, *other.reads)) or not written.isdisjoint(other.reads)
        ):
            return f"{other.name} walks over the same values"
    return None


def _written_out(loop: Loop) -> Loop:
    """The loop without reduction ranges; the loop itself where its body would be too complex."""
    ranges = {r.var: r.size for r in loop.ranges}
    places = [
        {r.var: to_expr(at) for r, at in zip(loop.reduction_ranges, point, strict=True)}
        for point in points(*(range(int(r.size)) for r in loop.reduction_ranges))
    ]

    def change(node: Node, args: tuple[Node, ...]) -> Node:
        if node.op != "reduce":
            return with_args(node, args)
        row = REDUCTIONS[node.attrs[0]]
        states = [_state(row, args, place, number, ranges) for number, place in enumerate(places)]
        return build.cast(row.results[node.attrs[0]].finish(_merged(row, states)), node.dtype)

    stores: list[Store] = []
    for store, old in zip(map_stores(loop.stores, change), loop.stores, strict=True):
        several = loop.at_reduction_level(old)
        stores += [_at(store, place, ranges) for place in places] if several else [store]
    result = replace(loop, reduction_ranges=(), stores=tuple(stores))
    return loop if excess(result) and is_worse(result, loop) else result


def _at(store: Store, place: Mapping[Symbol, Expr], ranges: Ranges) -> Store:
    """Returns a store of one value in place of one for each point of the reduction ranges."""
    return map_stores(
        (store,),
        lambda node, args: rename(node, args, place, ranges),
        lambda store: tuple(substitute(expr, place, ranges) for expr in store.index),
    )[0]


def _state(row: Reduction, values: State, place: Mapping[Symbol, Expr], position: int, ranges: Ranges) -> State:
    """Returns the state of the value at one place."""
    here = rename_nodes(values, place, ranges)
    cast = here if row.takes_states else tuple(build.cast(value, compute_dtype(value.dtype)) for value in here)
    return cast if row.lift is None else row.lift(cast, build.index(position))


def _merged(row: Reduction, states: Sequence[State]) -> State:
    """Neighbours first: the sums are short, and the order is kept."""
    while len(states) > 1:
        pairs = [row.merge(a, b) for a, b in zip(states[::2], states[1::2], strict=False)]
        states = [*pairs, *states[len(pairs) * 2 :]]
    return states[0]
