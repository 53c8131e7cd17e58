"""The memory plan: when each temporary comes to be, when it ends, and which takes over the memory of which.

In: steps in their order. Out: the steps, with kernels that work in place, and a `MemoryPlan`. Memory here is that of a
buffer and of all its aliases: it lives as long as any of them (`litz.schedule.lifetimes`). Inputs and constants are the
caller's; outputs live to the end, as the caller keeps them: one may take over memory, and nothing takes over its. Where
the target has the ability, small buffers that only kernels touch lie in an arena.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from litz.ir import Program
from litz.ir.index import Expr
from litz.schedule.lifetimes import Lifetimes
from litz.schedule.schedule import Kernel, Step
from litz_plugins import Target

from .arena import LARGEST, NO_ARENA, Arena, plan_arena
from .in_place import summed_into, work_in_place
from .plan import MemoryPlan

LONGEST = 64
"""Steps for which memory waits at most: some layers of a model. Finding out whether there is room takes as long."""

SLACK = 1 / 64
"""Share of the peak by which it may rise for allocations that are spared: a scalar more is no reason for one."""

LARGEST_SHARE = 0.15
"""Of what is held at a time: a buffer beyond that gets a segment of its own, since the gap that it leaves in a segment
fills with small ones. In simulations of the allocator, training steps of twelve models never took more than without a
segment that is shared, from 0.05 to 0.15; with larger buffers in it Gemma took 9 % more, GPT-2 4 %."""


def plan_memory(
    program: Program, steps: Sequence[Step], targets: Mapping[torch.device, Target], enabled: bool = True
) -> tuple[tuple[Step, ...], MemoryPlan]:
    """Returns the steps, with kernels that work in place, and their memory: buffers take over that of dead ones of the
    same size on the same device, and small ones lie in an arena where the target has such. Nothing is reused unless
    `enabled`."""
    lifetimes = Lifetimes(program, steps)
    if not enabled:
        return tuple(steps), _plan(program, lifetimes, {}, NO_ARENA)
    steps = work_in_place(program, steps, lifetimes)
    arena = plan_arena(program, steps, lifetimes, targets)
    return steps, _plan(program, lifetimes, _reuse(program, steps, lifetimes, arena), arena)


def _plan(program: Program, lifetimes: Lifetimes, reuse: dict[str, str], arena: Arena) -> MemoryPlan:
    kept = lifetimes.fixed | set(reuse.values())
    allocate = lifetimes.by_step(lifetimes.first)
    free = [[name for name in names if name not in kept] for names in lifetimes.by_step(lifetimes.last)]
    # An alias is a tensor of its own that the wrapper must let go of too.
    for name, root in lifetimes.roots.items():
        if name != root and root in lifetimes.last and root not in lifetimes.fixed:
            free[lifetimes.last[root]].append(name)
    planned = tuple(map(tuple, allocate)), tuple(map(tuple, free))
    peak = arena.nbytes + lifetimes.peak(reuse, arena.offsets)
    total = sum(program.hint(program.buffers[name].nbytes) for name in lifetimes.temporaries())
    held = tuple(arena.nbytes + nbytes for nbytes in lifetimes.held(reuse, arena.offsets))
    return MemoryPlan(*planned, reuse, peak, total, arena.offsets, arena.nbytes, held)


def shared_bytes(program: Program, steps: Sequence[Step], memory: MemoryPlan) -> tuple[int, int]:
    """Returns (the most bytes that temporaries and outputs take at a time, how many of them the memory of inputs that
    die does not have), for the hinted sizes. Buffers count that share a segment of torch's caching allocator with
    others: those that the allocator does not call small, up to LARGEST_SHARE of what is held at a time."""
    lifetimes = Lifetimes(program, steps)
    sizes = {name: program.hint(program.buffers[name].nbytes) for name in lifetimes.first}
    most = LARGEST_SHARE * max(memory.held, default=0)
    elsewhere = {name for name, nbytes in sizes.items() if not LARGEST < nbytes <= most} | memory.arena.keys()
    arena = memory.arena_bytes if LARGEST < memory.arena_bytes <= most else 0
    dying = sum(sizes[name] for name in lifetimes.dying() if name not in elsewhere)
    held = max(lifetimes.held(memory.reuse, elsewhere), default=0)
    return arena + lifetimes.peak(memory.reuse, elsewhere), max(0, arena + held - dying)


def _reuse(program: Program, steps: Sequence[Step], lifetimes: Lifetimes, arena: Arena) -> dict[str, str]:
    """Returns, for each buffer, the dead buffer whose memory it takes over. The latest dead buffer comes first, as it
    is likeliest in the cache. In the arena, which shares bytes by itself, only kernels that work in place reuse memory.
    Memory that waits for its next buffer is memory that no other buffer gets: it waits only where the peak is not near.
    Memory that would have to wait longer is freed, which costs the host less than a kernel's launch."""
    begins, ends = lifetimes.by_step(lifetimes.first), lifetimes.by_step(lifetimes.last)
    dead: dict[tuple[object, Expr], list[str]] = {}
    reuse = {new: old for step in steps if isinstance(step, Kernel) for new, old in step.inplace.items()}
    reuse |= _sums(program, steps, lifetimes, arena)
    taken = set(reuse.values())
    room = _Room(lifetimes.held(reuse, arena.offsets))
    for number in range(len(steps)):
        for name in begins[number]:
            if name in reuse or name in arena.offsets or name in lifetimes.roots:
                continue
            key = _memory_key(name, program)
            stack = dead.get(key)
            if not stack:
                continue
            if room.hold(program.hint(key[1]), lifetimes.last[stack[-1]] + 1, number):
                reuse[name] = stack.pop()
            else:
                stack.clear()  # those below have been dead for longer still
        for name in ends[number]:
            if name not in taken and name not in arena.offsets and lifetimes.may_be_taken(name):
                dead.setdefault(_memory_key(name, program), []).append(name)
    return reuse


def _sums(program: Program, steps: Sequence[Step], lifetimes: Lifetimes, arena: Arena) -> dict[str, str]:
    """Results of products that are written over the matrix that they are added to."""
    found = {}
    for number, step in enumerate(steps):
        pair = summed_into(step, program)
        if pair is None:
            continue
        new, old = pair
        own = program.buffers[new].kind == "temporary" and new not in lifetimes.roots and lifetimes.first[new] == number
        # May it be taken, then it is no view, whose memory ends with that of its root.
        if own and lifetimes.may_be_taken(old) and lifetimes.last[old] == number and old not in arena.offsets:
            found[new] = old
    return found


class _Room:
    """The room that is left below the peak at each step. In: the bytes that are taken at each."""

    def __init__(self, used: list[int]) -> None:
        self.used = used
        self.most = int(max(used, default=0) * (1 + SLACK))

    def hold(self, nbytes: int, begin: int, end: int) -> bool:
        """Take so many bytes in the steps begin .. end - 1, if there is room in all of them."""
        if end - begin > LONGEST or any(self.used[at] + nbytes > self.most for at in range(begin, end)):
            return False
        for at in range(begin, end):
            self.used[at] += nbytes
        return True


def _memory_key(name: str, program: Program) -> tuple[object, Expr]:
    buffer = program.buffers[name]
    return buffer.device, buffer.nbytes
