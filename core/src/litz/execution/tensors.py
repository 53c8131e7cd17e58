"""Tensors around each step: made before it, let go of after it.

In: steps, their memory plan, the results of the calls. Out: a `TensorPlan` for each step. Memory that a plan frees is
held by tensors of the wrapper: a temporary by one, an alias by another, and an input by the caller's too, whose memory
may be free once the wrapper has let go of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from litz.ir import Extern, Program
from litz.schedule.schedule import Step

from .plan import Allocation, Drop, MemoryPlan, Result, TensorPlan


def plan_tensors(
    program: Program, steps: Sequence[Step], memory: MemoryPlan, results: Mapping[str, tuple[Result, ...]]
) -> tuple[TensorPlan, ...]:
    """Returns the tensors that are made before and let go of after each step, in order of execution."""
    ending = last_uses_of_inputs(program, steps)
    alive = set(program.input_buffers)
    found = []

    def drop(names: Iterable[str]) -> tuple[str, ...]:
        gone = tuple(name for name in names if name in alive)
        alive.difference_update(gone)
        return gone

    for number, step in enumerate(steps):
        before: list[Allocation | Drop] = []
        taken_over = []
        own = step.outputs if isinstance(step, Extern) and step.name in results else ()
        for name in memory.allocate[number]:
            old = memory.reuse.get(name)
            if name in memory.arena:
                continue
            if name not in own:
                # A call's result that nobody reads was never given a name: there is nothing to take over.
                before.append(Allocation(name, old if old in alive else None))
                alive.add(name)
                taken_over += [] if old is None else [old]
            elif old is not None:
                # The call allocates by itself: the memory that the plan meant for it goes back.
                before.append(Drop(drop([old])))
        # A kernel that works in place still reads what it takes over.
        before.append(Drop(drop(name for name in taken_over if name not in step.reads)))
        alive.update(result.buffer for result in results.get(step.name, ()))
        after = drop(dict.fromkeys([*taken_over, *memory.free[number], *ending.get(number, ())]))
        found.append(TensorPlan(tuple(item for item in before if item != Drop(())), after))
    return tuple(found)


def last_uses_of_inputs(program: Program, steps: Sequence[Step]) -> Mapping[int, list[str]]:
    """Returns, by the position of a step, the inputs that nothing uses after it: their memory may be the caller's to
    free. Inputs that are outputs or have aliases are left out."""
    last = {name: number for number, step in enumerate(steps) for name in (*step.reads, *step.writes)}
    kept = {base for step in steps if isinstance(step, Extern) for base in step.aliases.values()}
    found: dict[int, list[str]] = {}
    for name in program.input_buffers:
        if name in last and name not in program.output_buffers and name not in kept:
            found.setdefault(last[name], []).append(name)
    return found
