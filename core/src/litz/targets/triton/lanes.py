"""How many neighbouring elements a thread has, where loads skip elements or begin anywhere: taps of a window.

Such a load takes one element at a time, and its neighbour in the warp is another thread's: with 8 elements a thread,
threads are 8 elements apart, a load touches 8 times the lines of the cache, and there are as many loads. A unit's
cache gives one line a cycle. Max pools of 64 x 64 x 112 x 112 in bf16, by windows of 3 and steps of 2, took 143 µs with
8 elements a thread on an H100 (2026-11-27); by this count 134.
"""

from __future__ import annotations

from collections.abc import Sequence

from litz.codegen.kernel_plan import KernelPlan
from litz.ir import Loop, Range
from litz.ir.accesses import Access, mean_stride
from litz.target import CacheFigures, figures_of, warp_lines
from litz.tiles.shape import VECTOR, is_multiple
from litz_plugins import Target

from .traffic import Traffic


def fewer_lanes(
    loop: Loop, ranges: Sequence[Range], plan: KernelPlan, traffic: Traffic, target: Target, most: int
) -> int:
    """Returns the most elements of a thread, at most `most` and a power of two, for which the units' caches take no
    longer than the memory; if there is none, those for which the caches take the least time. ranges: of a pointwise
    loop, as its tile walks through them."""
    walks = [_Walk(loop, ranges, plan, access) for access in traffic if not access.is_indirect]
    parts: dict[tuple[str, bool], int] = {}
    for access, moved in traffic.items():
        key = access.buffer, access.is_store
        parts[key] = max(parts.get(key, 0), moved)
    memory = sum(parts.values()) / max(plan.hint(loop.numel), 1)
    tried = [most >> n for n in range(most.bit_length())]
    times = figures_of(target, CacheFigures).first_level_times
    cache = {lanes: sum(walk.lines(lanes, target) for walk in walks) * target.line_bytes / times for lanes in tried}
    return next((lanes for lanes in tried if cache[lanes] <= memory), min(tried, key=lambda lanes: cache[lanes]))


class _Walk:
    """An access's walk through memory. steps: of each range, the innermost first, its elements and the bytes between
    neighbours. vector: how many elements a thread loads at once."""

    def __init__(self, loop: Loop, ranges: Sequence[Range], plan: KernelPlan, access: Access) -> None:
        self.steps: list[tuple[int, float]] = []
        for r in reversed(ranges):
            size = plan.hint(r.size)
            step = mean_stride(access.offset, r.var, loop, size, plan.hint)
            self.steps.append((size, abs(step) * access.itemsize))
        self.vector = _vector(ranges, plan, access)

    def lines(self, lanes: int, target: Target) -> float:
        """Returns the lines for each element, with so many elements a thread."""
        return warp_lines(self.steps, target, lanes) / (target.warp * min(self.vector, lanes))


def _vector(ranges: Sequence[Range], plan: KernelPlan, access: Access) -> int:
    """Returns how many neighbours along the tile an access takes at once: 16 bytes where they are contiguous and begin
    at multiples of 16 bytes."""
    rest, length = access.offset, 1
    outer = list(ranges)
    while outer and access.stride(outer[-1].var) == length and outer[-1].size.is_Integer:
        r = outer.pop()
        rest, length = rest - length * r.var, length * int(r.size)
    width = 1 if access.buffer in plan.unaligned else VECTOR // access.itemsize
    while width > 1 and not (is_multiple(rest, width) and (length % width == 0 or not outer)):
        width //= 2
    return max(width, 1)


__all__ = ["fewer_lanes"]
