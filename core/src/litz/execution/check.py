"""Is an ExecutionPlan sound? What the compiler checks in debug mode, and tests always.

In: an ExecutionPlan of a sound Schedule. Out: nothing, or an IllegalPlan that has a line for each complaint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from litz.ir import Program
from litz.ir.verify import Illegal
from litz.schedule.lifetimes import Lifetimes
from litz.schedule.schedule import Kernel, Step

from .arena import ALIGNMENT, barred_buffers
from .in_place import is_owned, same_memory, same_positions, summed_into
from .plan import Drop, ExecutionPlan


class IllegalPlan(Illegal):
    """Raised for a plan that breaks a rule."""


def check_plan(plan: ExecutionPlan) -> None:
    """Raises IllegalPlan, with every complaint, unless names, memory and tensors of the plan, its cases and its regions
    are sound."""
    complaints = [
        line for variant in plan.functions for rule in (_names, _memory, _arena, _tensors) for line in rule(variant)
    ]
    if complaints:
        raise IllegalPlan(f"the plan of {plan.program.name}", complaints)


def _names(plan: ExecutionPlan) -> Iterator[str]:
    """Every step has a name of its own."""
    names = [step.name for step in plan.steps]
    for name in {name for name in names if names.count(name) > 1}:
        yield f"{name} is the name of several steps"


def _memory(plan: ExecutionPlan) -> Iterator[str]:
    """Every temporary is allocated once, before its first use, and kept until its last."""
    program, memory = plan.program, plan.memory
    lifetimes = Lifetimes(program, plan.steps)
    # memory, by the buffer that it was allocated for -> whose it is now
    holder: dict[str, str] = {name: name for name in program.owned_inputs}
    home: dict[str, str] = {}
    freed: set[str] = set()
    for number, step in enumerate(plan.steps):
        for name in memory.allocate[number]:
            if name in home:
                yield f"{name} is allocated twice"
            old = memory.reuse.get(name)
            if old is None:
                home[name] = name
            else:
                home[name] = home.get(old, old)
                if holder.get(home[name]) != old:
                    yield f"{name} takes over the memory of {old}, which is not {old}'s any more"
                fixed = old in lifetimes.fixed and not is_owned(program, old, lifetimes)
                if old in freed or fixed or old in lifetimes.roots:
                    yield f"{name} takes over the memory of {old}, which is not free to give"
                if program.buffers[old].nbytes != program.buffers[name].nbytes:
                    yield f"{name} takes over the memory of {old}, which has another size"
                inplace = _over(step, program).get(name) == old
                if lifetimes.last[old] > number or (lifetimes.last[old] == number and not inplace):
                    yield f"{name} takes over the memory of {old} while it is needed"
            holder[home[name]] = name
        for name in (*step.reads, *step.writes):
            root = lifetimes.root(name)
            if program.buffers[root].kind != "temporary":
                continue
            dying = name in _over(step, program).values()
            if root in freed or (root not in home) or (holder[home[root]] != root and not dying):
                yield f"{step.name} uses {name}, which has no memory then"
        if isinstance(step, Kernel):
            for new, old in step.inplace.items():
                if not same_memory(old, new, program) or not same_positions(step.loop, old, new, program):
                    yield f"{step.name} cannot write {new} in place of {old}"
        for name in memory.free[number]:
            root = lifetimes.root(name)
            if root in lifetimes.fixed:
                yield f"{name} is freed, but is not the plan's to free"
            if lifetimes.last[root] > number:
                yield f"{name} is freed before its last use"
            freed.add(name)
    for name in program.output_buffers & freed:
        yield f"output {name} is freed"


def _over(step: Step, program: Program) -> Mapping[str, str]:
    """Returns the buffers that a step may write, each with the buffer that it may write over."""
    if isinstance(step, Kernel):
        return step.inplace
    pair = summed_into(step, program)
    return {} if pair is None else dict([pair])


def _arena(plan: ExecutionPlan) -> Iterator[str]:
    """Every buffer in the arena may lie there, in bytes of its own for as long as it lives."""
    program, steps, memory = plan.program, plan.steps, plan.memory
    lifetimes = Lifetimes(program, steps)
    barred = barred_buffers(program, steps, lifetimes)
    if len({program.buffers[name].device for name in memory.arena if name in lifetimes.first}) > 1:
        yield "the arena has buffers of several devices"
    inplace = {pair for step in plan.kernels for pair in step.inplace.items()}
    for new, old in memory.reuse.items():
        if memory.arena.get(new) != memory.arena.get(old):
            yield f"{new} takes over the memory of {old}, which is not where the arena has it"
    allocated = [name for names in memory.allocate for name in names]
    living: dict[str, range] = {}
    for name in (*memory.arena.keys() - set(allocated), *(name for name in allocated if name in memory.arena)):
        if name in barred or name not in lifetimes.first:
            yield f"{name} is in the arena, where it may not be"
            continue
        start = memory.arena[name]
        own = range(start, start + int(program.buffers[name].nbytes))
        if start < 0 or start % ALIGNMENT or own.stop > memory.arena_bytes:
            yield f"{name} is at {start} in the arena, which is no place for it"
        living = {other: taken for other, taken in living.items() if lifetimes.last[other] >= lifetimes.first[name]}
        for other, taken in living.items():
            apart = own.stop <= taken.start or taken.stop <= own.start
            if not apart and not ((name, other) in inplace and own == taken):
                yield f"{name} is in the arena where {other} is"
        living[name] = own


def _tensors(plan: ExecutionPlan) -> Iterator[str]:
    """Every buffer outside of the arena has a tensor while somebody needs it, and tensors go once."""
    buffers = plan.program.buffers
    alive = {name for name, buffer in buffers.items() if buffer.kind != "temporary"} | plan.memory.arena.keys()
    for step, tensors in zip(plan.steps, plan.tensors, strict=True):
        for item in tensors.before:
            needed = item.buffers if isinstance(item, Drop) else () if item.over is None else (item.over,)
            yield from (f"before {step.name} there is no tensor {name}" for name in needed if name not in alive)
            if isinstance(item, Drop):
                alive.difference_update(item.buffers)
            else:
                alive.add(item.buffer)
        yield from (
            f"{step.name} reads {name}, of which there is no tensor" for name in step.reads if name not in alive
        )
        alive.update(result.buffer for result in plan.results.get(step.name, ()))
        yield from (f"after {step.name} there is no tensor {name}" for name in tensors.after if name not in alive)
        alive.difference_update(tensors.after)
    yield from (f"there is no tensor of the output {name}" for name in plan.program.output_buffers - alive)
