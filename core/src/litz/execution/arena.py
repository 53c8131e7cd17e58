"""The arena: one allocation per call of the graph, with a fixed place in it for each small temporary.

In: steps in their order and the lifetimes of their memory. Out: a byte offset for each buffer that goes there. Split
reductions and statistics make hundreds of small buffers that only litz's own kernels touch; a kernel needs an address,
not a tensor, so none of them needs an allocation, a tensor object or a deletion of its own, each of which takes
microseconds on the host. Buffers that live at different times share bytes.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from litz.ir import KernelCall, Program
from litz.schedule.lifetimes import Lifetimes
from litz.schedule.schedule import Kernel, Step
from litz_plugins import Target

ALIGNMENT = 128
"""Bytes at whose multiples buffers start: a line of a GPU's cache, so that two never share one. Kernels need 16."""

LARGEST = 1 << 20
"""Bytes of the largest buffer in the arena: what torch's caching allocator calls small. Larger ones are worth freeing
early, and so rare that their allocations do not count."""

MOST = 16 << 20
"""Bytes of the arena, which is held for the whole of a call: buffers without a place below are allocated as others."""

FEWEST = 2
"""Buffers below which an arena saves no allocation."""


@dataclass(frozen=True)
class Arena:
    """One allocation in which small buffers lie. offsets: in bytes, by the buffer's name. nbytes: of the allocation."""

    offsets: Mapping[str, int] = field(default_factory=dict)
    nbytes: int = 0


NO_ARENA = Arena()


@dataclass
class _Block:
    """Bytes held from the first step to the last: a buffer, and those that kernels write in place of it."""

    names: list[str]
    nbytes: int
    first: int
    last: int


def plan_arena(
    program: Program, steps: Sequence[Step], lifetimes: Lifetimes, targets: Mapping[torch.device, Target]
) -> Arena:
    """Returns the arena of the first device that has the ability "arena", for the small temporaries there. Returns an
    empty arena if fewer than FEWEST buffers would lie in it."""
    found = lifetimes.temporaries()
    devices = {program.buffers[name].device for name in found}
    device = min((device for device in devices if "arena" in targets[device].abilities), key=str, default=None)
    barred = barred_buffers(program, steps, lifetimes)
    blocks = _blocks(program, steps, lifetimes, [name for name in found if program.buffers[name].device == device])
    blocks = [block for block in blocks if barred.isdisjoint(block.names)]
    arena = _place(blocks, len(steps))
    return arena if len(arena.offsets) >= FEWEST else NO_ARENA


def barred_buffers(program: Program, steps: Sequence[Step], lifetimes: Lifetimes) -> set[str]:
    """Returns the buffers that may not lie in an arena: the caller's, large or of unknown size, or seen by more than
    launches of kernels on their own device, which get by with an address."""
    barred = {name for name in lifetimes.first if name in lifetimes.fixed or name in lifetimes.roots}
    for name in lifetimes.first:
        buffer = program.buffers[name]
        known = buffer.nbytes.is_Integer and 0 < int(buffer.nbytes) <= LARGEST
        if buffer.kind != "temporary" or buffer.layout.offset != 0 or not known:
            barred.add(name)
    for step in steps:
        for name in (*step.reads, *step.writes):
            if not isinstance(step, (Kernel, KernelCall)) or program.buffers[name].device != step.device:
                barred.add(name)
    return barred


def _blocks(program: Program, steps: Sequence[Step], lifetimes: Lifetimes, names: Sequence[str]) -> list[_Block]:
    """A kernel that works in place writes where its operand lies: the two are one block, and so on along a chain."""
    head: dict[str, str] = {}
    for step in steps:
        for new, old in step.inplace.items() if isinstance(step, Kernel) else ():
            head[new] = head.get(old, old)
    blocks: dict[str, _Block] = {}
    for name in names:  # by first use, so heads come first
        first, last = lifetimes.first[name], lifetimes.last[name]
        block = blocks.setdefault(head.get(name, name), _Block([], 0, first, last))
        block.names.append(name)
        block.last = max(block.last, last)
        nbytes = program.buffers[name].nbytes
        block.nbytes = max(block.nbytes, int(nbytes) if nbytes.is_Integer else 0)
    return list(blocks.values())


def _place(blocks: Sequence[_Block], steps: int) -> Arena:
    """First fit, in the order of execution: what begins at a step finds its place before what ends there lets go."""
    begins: list[list[_Block]] = [[] for _ in range(steps)]
    ends: list[list[tuple[int, int]]] = [[] for _ in range(steps)]
    for block in blocks:
        begins[block.first].append(block)
    held: list[tuple[int, int]] = []  # bytes in use, from and to, in order
    offsets: dict[str, int] = {}
    most = 0
    for beginning, ending in zip(begins, ends, strict=True):
        for block in sorted(beginning, key=lambda block: -block.nbytes):
            size = -(-block.nbytes // ALIGNMENT) * ALIGNMENT
            start = 0
            for low, high in held:
                if low - start >= size:
                    break
                start = high
            if start + size > MOST:
                continue
            insort(held, (start, start + size))
            ends[block.last].append((start, start + size))
            offsets.update(dict.fromkeys(block.names, start))
            most = max(most, start + size)
        for taken in ending:
            held.remove(taken)
    return Arena(offsets, most)
