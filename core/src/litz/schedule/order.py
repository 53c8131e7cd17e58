"""The order of steps: one that the dependences allow and that needs little memory at a time.

In: a Schedule. Out: the same steps, reordered only where the peak gets smaller. Effects keep their order, and so do
collectives and waits among themselves; those move in plugins only, which know what a transfer costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from litz.ir import Program
from litz.ir.operation import storage_roots
from litz_plugins import PassContext

from .dependences import dependences, topological
from .lifetimes import peak_bytes
from .schedule import Schedule, Step


def order_steps(schedule: Schedule, context: PassContext) -> Schedule:
    """The pass: the memory-saving order if it has the lower peak, else the order as it was."""
    program = schedule.program
    before = dependences(schedule.steps, program.buffers)
    steps = tuple(schedule.steps[n] for n in frugal_order(schedule.steps, before, program))
    old, new = peak_bytes(program, schedule.steps), peak_bytes(program, steps)
    if new >= old:
        return schedule
    context.record("order of steps", "reordered", f"the peak of temporaries falls from {old} B to {new} B")
    return replace(schedule, steps=steps)


def frugal_order(steps: Sequence[Step], before: Sequence[set[int]], program: Program) -> list[int]:
    """Positions in an order that takes, of the steps that may come next, the one that frees most memory net of what
    it allocates; among equals the first in the old order."""
    roots = storage_roots(steps)
    kept = {roots.get(name, name) for name in program.output_buffers}
    temporaries = {name for name, buffer in program.buffers.items() if buffer.kind == "temporary"}
    touched = [sorted({roots.get(n, n) for n in (*step.reads, *step.writes)} & temporaries) for step in steps]
    users: dict[str, set[int]] = {}
    for position, names in enumerate(touched):
        for name in names:
            users.setdefault(name, set()).add(position)
    size = {name: program.hint(program.buffers[name].nbytes) for name in users}
    born: set[str] = set()

    def growth(position: int) -> int:
        total = 0
        for name in touched[position]:
            if name not in born:
                total += size[name]
            if users[name] == {position} and name not in kept:
                total -= size[name]
        return total

    def changed(position: int) -> set[int]:
        affected: set[int] = set()
        for name in touched[position]:
            fresh = name not in born
            born.add(name)
            users[name].discard(position)
            if fresh or len(users[name]) == 1:
                affected |= users[name]
        return affected

    return topological(before, growth, changed)
