"""Kernels that work in place: they write over a dying buffer that they read at the same positions.

In: steps in their order and the lifetimes of their memory. Out: the steps, `Kernel.inplace` filled in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from litz.ir import Extern, Loop, Node, Program
from litz.schedule.lifetimes import Lifetimes
from litz.schedule.schedule import Kernel, Step


def work_in_place(program: Program, steps: Sequence[Step], lifetimes: Lifetimes) -> tuple[Step, ...]:
    found: list[Step] = []
    called = frozenset(name for step in steps if isinstance(step, Extern) for name in step.writes)
    for number, step in enumerate(steps):
        # Where a `finish` runs, other programs may still be in the first; what runs beside may read what dies here.
        if isinstance(step, Kernel) and not step.finish and not step.beside:
            pairs = _in_place_pairs(step, number, program, lifetimes, called)
            step = replace(step, inplace=pairs) if pairs else step
        found.append(step)
    return tuple(found)


def _in_place_pairs(
    kernel: Kernel, number: int, program: Program, lifetimes: Lifetimes, called: frozenset[str]
) -> dict[str, str]:
    """called: what library calls made. An output takes over no other memory: that of kernels may lie in an arena."""
    loop = kernel.loop
    pairs: dict[str, str] = {}
    dying = [
        name
        for name in kernel.reads
        if name not in kernel.writes and lifetimes.may_be_taken(name) and lifetimes.last[name] == number
    ]
    for new in kernel.writes:
        owned = program.buffers[new].kind == "temporary" and new not in lifetimes.roots
        if not owned or lifetimes.first.get(new) != number:
            continue
        if new in kernel.reads:  # combined into: it has a value before
            continue
        for old in dying if new not in lifetimes.fixed else [name for name in dying if name in called]:
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
    if len(stores) != 1 or not stores[0].is_plain:
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
