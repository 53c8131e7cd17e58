"""The memory plan: when each temporary comes to be, when it ends, and which takes over the memory of which.

In: steps in their order. Out: a MemoryPlan, and kernels that work in place. Memory here is that of a buffer and of all
its aliases: it lives as long as any of them. Inputs and constants are the caller's; outputs live to the end, as the
caller keeps them: one may take over memory, and nothing takes over its. On CUDA, small buffers that only kernels touch
lie in an arena.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from litz.ir import Collective, Loop, Node, Program, Wait
from litz.ir.index import Expr
from litz.ir.operation import storage_roots
from litz_plugins import PassContext

from .arena import NO_ARENA, Arena, plan_arena
from .schedule import Kernel, MemoryPlan, Schedule, Step


class Lifetimes:
    """For each piece of memory (named by its root buffer): the steps at which it begins and ends."""

    def __init__(self, program: Program, steps: Sequence[Step]) -> None:
        self.program, self.steps = program, steps
        self.roots = storage_roots(steps)
        self.first: dict[str, int] = {}
        self.last: dict[str, int] = {}
        self.fixed: set[str] = set()
        """Memory that is not freed: it belongs to the caller, or is returned."""
        in_flight: dict[str, Collective] = {}
        for number, step in enumerate(steps):
            for name in (*step.reads, *step.writes):
                self._touch(name, number)
            if isinstance(step, Collective):
                in_flight.update({self.root(name): step for name in step.writes})
            elif isinstance(step, Wait):
                for name in step.reads:
                    started = in_flight.pop(self.root(name), None)
                    for held in () if started is None else (*started.reads, *started.writes):
                        self._touch(held, number)
        for started in in_flight.values():  # nobody waits: who knows when it is done
            self.fixed.update(self.root(name) for name in (*started.reads, *started.writes))
        self.fixed.update(self.root(name) for name in program.output_buffers)

    def root(self, name: str) -> str:
        return self.roots.get(name, name)

    def _touch(self, name: str, number: int) -> None:
        root = self.root(name)
        if self.program.buffers[name].kind != "temporary":
            self.fixed.add(root)
        self.first.setdefault(root, number)
        self.last[root] = number

    def temporaries(self) -> list[str]:
        """Every piece of memory that the schedule brings about, by its first use."""
        return [name for name in self.first if self.program.buffers[name].kind == "temporary"]


def simple_plan(program: Program, steps: Sequence[Step]) -> MemoryPlan:
    """Each temporary allocated before its first use and freed after its last, nothing reused."""
    return _plan(program, steps, Lifetimes(program, steps), {})


def peak_bytes(program: Program, steps: Sequence[Step]) -> int:
    """The most memory that temporaries and outputs take at a time in this order."""
    lifetimes = Lifetimes(program, steps)
    change = [0] * (len(steps) + 1)
    for name in lifetimes.temporaries():
        size = program.hint(program.buffers[name].nbytes)
        change[lifetimes.first[name]] += size
        if name not in lifetimes.fixed:
            change[lifetimes.last[name] + 1] -= size
    return _highest(change)


def _highest(changes: Iterable[int]) -> int:
    now = most = 0
    for change in changes:
        now += change
        most = max(most, now)
    return most


def _plan(
    program: Program, steps: Sequence[Step], lifetimes: Lifetimes, reuse: dict[str, str], arena: Arena = NO_ARENA
) -> MemoryPlan:
    allocate: list[list[str]] = [[] for _ in steps]
    free: list[list[str]] = [[] for _ in steps]
    change = [0] * (len(steps) + 1)
    change[0] = arena.nbytes
    total = 0
    taken = set(reuse.values())
    for name in lifetimes.temporaries():
        size = program.hint(program.buffers[name].nbytes)
        total += size
        size = 0 if name in arena.offsets else size
        begin, end = lifetimes.first[name], lifetimes.last[name]
        allocate[begin].append(name)
        if name not in reuse:
            change[begin] += size
        if name not in lifetimes.fixed and name not in taken:
            free[end].append(name)
            change[end + 1] -= size
    # An alias is a tensor of its own that the wrapper must let go of too.
    for name, root in lifetimes.roots.items():
        if name != root and root in lifetimes.last and root not in lifetimes.fixed:
            free[lifetimes.last[root]].append(name)
    planned = tuple(map(tuple, allocate)), tuple(map(tuple, free))
    return MemoryPlan(*planned, reuse, _highest(change), total, arena.offsets, arena.nbytes)


# --------------------------------------------------------------------------------------------------------- passes

IN_PLACE = "the kernel that writes the new buffer is the last to read the old one, at the same places"


def work_in_place(schedule: Schedule, context: PassContext) -> Schedule:
    """The pass: kernels write over a dying buffer that they read at the same positions."""
    if not getattr(context.options, "memory_planning", True):
        return schedule
    program = schedule.program
    lifetimes = Lifetimes(program, schedule.steps)
    steps = []
    for number, step in enumerate(schedule.steps):
        # Where a `finish` runs, other programs may still be in the first.
        if isinstance(step, Kernel) and not step.finish:
            pairs = _in_place_pairs(step, number, program, lifetimes)
            for new, old in pairs.items():
                context.record(f"{new} over {old} in {step.name}", "in place", IN_PLACE)
            step = replace(step, inplace=pairs) if pairs else step
        steps.append(step)
    return replace(schedule, steps=tuple(steps))


def plan_memory(schedule: Schedule, context: PassContext, arena_on: str = "cuda") -> Schedule:
    """The pass: buffers take over the memory of dead ones of the same size on the same device.

    arena_on: the type of device whose small buffers get an arena. On a CPU the C library has small memory at hand.
    """
    program, steps = schedule.program, schedule.steps
    lifetimes = Lifetimes(program, steps)
    reuse: dict[str, str] = {}
    arena = NO_ARENA
    if getattr(context.options, "memory_planning", True):
        arena = plan_arena(program, steps, lifetimes, arena_on)
        reuse = _reuse(program, steps, lifetimes, arena)
    plan = _plan(program, steps, lifetimes, reuse, arena)
    in_place = {new for step in steps if isinstance(step, Kernel) for new in step.inplace}  # on record already
    for new, old in reuse.items():
        if new not in in_place:
            context.record(f"{new} in {old}", "took over memory", "the old buffer is dead and of the same size")
    if arena.offsets:
        placed = f"{len(arena.offsets)} buffers in one allocation of {arena.nbytes} bytes"
        context.record("arena", placed, "they are small, and only kernels touch them: an address is all they need")
    return replace(schedule, memory=plan)


def _reuse(program: Program, steps: Sequence[Step], lifetimes: Lifetimes, arena: Arena) -> dict[str, str]:
    """For each buffer the dead one whose memory it takes over. The latest dead first: it is likeliest in the cache.
    In the arena, which shares bytes by itself, only what works in place."""
    begins: list[list[str]] = [[] for _ in steps]
    ends: list[list[str]] = [[] for _ in steps]
    for name in lifetimes.temporaries():
        begins[lifetimes.first[name]].append(name)
        if name not in arena.offsets and _may_be_taken(name, program, lifetimes):
            ends[lifetimes.last[name]].append(name)
    dead: dict[tuple[object, Expr], list[str]] = {}
    reuse: dict[str, str] = {}
    for number, step in enumerate(steps):
        if isinstance(step, Kernel):
            reuse.update(step.inplace)
        for name in begins[number]:
            if name in reuse or name in arena.offsets or name in lifetimes.roots:
                continue
            stack = dead.get(_memory_key(name, program))
            if stack:
                reuse[name] = stack.pop()
        taken = set(step.inplace.values()) if isinstance(step, Kernel) else set()
        for name in ends[number]:
            if name not in taken:
                dead.setdefault(_memory_key(name, program), []).append(name)
    return reuse


def _memory_key(name: str, program: Program) -> tuple[object, Expr]:
    buffer = program.buffers[name]
    return buffer.device, buffer.nbytes


def _may_be_taken(name: str, program: Program, lifetimes: Lifetimes) -> bool:
    buffer = program.buffers[name]
    # A layout with an offset starts inside of its storage; an alias shares it.
    return name not in lifetimes.fixed and name not in lifetimes.roots and buffer.layout.offset == 0


def _in_place_pairs(kernel: Kernel, number: int, program: Program, lifetimes: Lifetimes) -> dict[str, str]:
    loop = kernel.loop
    pairs: dict[str, str] = {}
    dying = [
        name
        for name in kernel.reads
        if name not in kernel.writes
        and program.buffers[name].kind == "temporary"
        and lifetimes.last[lifetimes.root(name)] == number
        and _may_be_taken(name, program, lifetimes)
    ]
    for new in kernel.writes:
        if new in lifetimes.fixed or new in lifetimes.roots or lifetimes.first.get(new) != number:
            continue
        if new in kernel.reads:  # combined into: it has a value before
            continue
        for old in dying:
            if old not in pairs.values() and same_memory(old, new, program) and same_positions(loop, old, new):
                pairs[new] = old
                break
    return pairs


def same_memory(old: str, new: str, program: Program) -> bool:
    a, b = program.buffers[old], program.buffers[new]
    return a.device == b.device and a.dtype.itemsize == b.dtype.itemsize and a.layout == b.layout


def same_positions(loop: Loop, old: str, new: str) -> bool:
    """Is each element of `old` read only where the same iteration, in the same pass or later, writes it in `new`?"""
    stores = [store for store in loop.stores if store.buffer == new]
    loads = [node for node in loop.loads if node.buffer == old]
    if len(stores) != 1 or stores[0].mode != "set" or stores[0].indirect or stores[0].mask is not None:
        return False
    store = stores[0]
    if any(node.indirect or node.index != store.index for node in loads):
        return False
    if not any(node.op in ("reduce", "scan") for node in loop.nodes):
        return True
    if any(node.op == "scan" for node in loop.nodes):
        return False
    depth = loop.depths
    at = max(depth[root] for root in store.roots)
    return all(_last_pass(loop, node, depth) <= at for node in loads)


def _last_pass(loop: Loop, load: Node, depth: Mapping[Node, int]) -> int:
    """The last pass over the reduction ranges in which the value of a load is needed."""
    last = 0
    varying = {load}
    for node in loop.nodes:
        if any(arg in varying for arg in node.args):
            last = max(last, max(depth[arg] for arg in node.args))
            if node.op != "reduce":
                varying.add(node)
                last = max(last, depth[node])
    for store in loop.stores:
        if any(root in varying for root in store.roots):
            last = max(last, max(depth[root] for root in store.roots))
    return last
