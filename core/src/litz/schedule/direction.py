"""In which direction a kernel walks: where its input's end is in the cache, from the end.

In and out: a Schedule. A kernel that goes through much memory leaves the last of it in the cache. The next kernel that
reads this memory finds that in the cache if it begins there; if it begins where the other began, each of its reads
drives out what it would read later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from litz.ir import Program
from litz.ir.index import Expr, Symbol, stride_of
from litz_plugins import PassContext

from .schedule import Kernel, Schedule

SHARE = 4
"""A buffer of less than this part of the cache is found there in either direction."""


def walk_back(schedule: Schedule, context: PassContext) -> Schedule:
    """Turns kernels that read much of what the steps shortly before them have gone through forward (a pass)."""
    program = schedule.program
    last: dict[str, tuple[int, bool]] = {}
    passed, steps = 0, list(schedule.steps)
    for number, step in enumerate(steps):
        target = context.target_of(step.device) if isinstance(step, Kernel) else None
        sizes = {name: program.hint(program.buffers[name].nbytes) for name in (*step.reads, *step.writes)}
        back = False
        if isinstance(step, Kernel) and target is not None and "blocks" in target.abilities:
            cache = target.cache_bytes
            large = [name for name in step.reads if sizes[name] * SHARE > cache]
            near = [name for name in large if name in last and passed - last[name][0] < cache // 2]
            found = max(near, key=lambda name: sizes[name], default=None)
            if found is not None and last[found][1] and goes_forward(step, program, found):
                back = True
                steps[number] = replace(step, back=True)
                context.record(f"kernel {step.name}", "from the end", f"the end of {found} is in the cache")
        passed += sum(sizes.values())
        for name in sizes:
            ordered = isinstance(step, Kernel) and goes_forward(step, program, name)
            last[name] = passed, ordered and not back
    return replace(schedule, steps=tuple(steps))


def goes_forward(kernel: Kernel, program: Program, name: str) -> bool:
    """Returns whether a kernel goes through a buffer in the order of its memory: rows and points by the numbers of its
    programs, columns by the blocks of each program, as all programs are at work at once."""
    loop, layout = kernel.loop, program.buffers[name].layout
    inner = {r.var for r in loop.reduction_ranges}
    for access in loop.accesses:
        if access.buffer != name or access.is_indirect or kernel.beside:
            continue
        steps = {var: _step(program, access.index, layout.stride, var) for var in loop.extents}
        slowest = max(steps, key=lambda var: steps[var], default=None)
        columns = inner and access.unit_variable(layout) not in inner
        return slowest in inner if columns else bool(loop.ranges) and slowest == loop.ranges[0].var
    return False


def _step(program: Program, index: Sequence[Expr], strides: Sequence[Expr], var: Symbol) -> int:
    """How many elements lie between neighbours along a variable; 0 if that is no constant."""
    slopes = [stride_of(expr, var) for expr in index]
    moved = [program.hint(slope * step) for slope, step in zip(slopes, strides, strict=True) if slope is not None]
    return abs(sum(moved))
