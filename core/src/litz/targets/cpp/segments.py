"""Loops that choose by position, as concatenations, pads and rolls do, split so that nothing is left to choose.

In: the tiling of a loop. Out: tilings that together compute the same, one per segment of its output ranges. In each,
the choices that the segment decides are gone, and so is what they select against. A vector loop that reads one of eight
parts under masks takes ten times as long as one that reads the part that lies there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from litz.codegen.kernel_plan import KernelPlan
from litz.ir import Range
from litz.ir.index import ONE, FloorDiv, Mod, PythonMod, stride_of
from litz.ir.segments import segment, turns
from litz.ir.stages import find_stages
from litz.ir.transform import collapse

from .figures import CppFigures
from .jam import cost_of
from .tiling import EXPENSIVE, Tiling, canonical, tile_loop

MAX_SEGMENTS = 16
"""The most segments of a loop: each is code to be compiled."""
DIVISION = 2
"""A quotient or a remainder in a position, in loads."""


def segments(tiling: Tiling, kernel: KernelPlan, limits: CppFigures) -> tuple[tuple[Tiling, ...], ...]:
    """Returns the tilings of a loop's segments, in order; the tiling alone where a split gains too little. Those of one
    group lie side by side in the rows of the same outer loops.

    tiling: of the kernel's loop, by `tile_kernel`. Segments write different elements: they may run in any order or at
    once.
    """
    points = tiling.loop.numel * tiling.loop.reduction_numel
    if tiling.group == 1 and (not points.is_Integer or int(points) >= limits.segments_values):
        found = _Splitter(kernel, limits).split(tiling, MAX_SEGMENTS)
        groups = [tuple(replace(part, work=tiling.work) for part in group) for group in found.groups if group]
        if groups and _work_of(tiling) - found.work >= limits.segments_loads:
            return tuple(groups)
    return ((tiling,),)


@dataclass(frozen=True)
class _Split:
    """Groups of tilings, and what a point of them costs in the mean, in loads."""

    groups: tuple[tuple[Tiling, ...], ...]
    work: float


def _work_of(tiling: Tiling) -> float:
    """Returns the cost of a point in loads: those, their masks and computed positions, and each lane's divisions."""
    divided = {part for expr in tiling.loop.expressions for part in expr.atoms(FloorDiv, Mod, PythonMod)}
    lanes = [part for part in divided if tiling.vector is not None and tiling.vector.var in part.free_symbols]
    return sum(1 + len(load.args) for load in tiling.loop.loads) + DIVISION * len(lanes)


class _Splitter:
    """Splits tilings of one kernel."""

    def __init__(self, kernel: KernelPlan, limits: CppFigures) -> None:
        self.kernel, self.limits = kernel, limits

    def split(self, tiling: Tiling, most: int) -> _Split:
        """Returns at most so many segments of a tiling, split along the outer ranges first; the tiling alone where
        others cost as much."""
        whole = _Split(((tiling,),), _work_of(tiling))
        found = turns(tiling.loop)
        for r in sorted(found, key=lambda r: self._is_inner(tiling, r)):
            count, row = len(found[r]) - 1, self._is_row(tiling, r)
            short = self._is_inner(tiling, r) and int(r.size) < self.limits.segments_elements * count
            if count > most or (short and (not row or cost_of(tiling.loop.nodes) >= EXPENSIVE * count)):
                continue  # short segments have few lanes, if any
            split = (self._beside if row else self._apart)(tiling, r, found[r], most)
            if split.work < whole.work:
                return split
        return whole

    def _is_inner(self, tiling: Tiling, r: Range) -> bool:
        return r == tiling.vector or any(stride_of(store.index[0], r.var) == ONE for store in tiling.loop.stores)

    def _is_row(self, tiling: Tiling, r: Range) -> bool:
        """Returns whether the segments are vector loops within the same outer loops: a row is written at a time."""
        short = len(tiling.loop.ranges) > 1 and int(r.size) < 2 * self.limits.chunk_elements
        return short and tiling.mode == "pointwise" and tiling.swap is None and r == tiling.vector

    def _apart(self, tiling: Tiling, r: Range, places: Sequence[int], most: int) -> _Split:
        """Loops of their own, each with the ranges that suit it."""
        groups, work, left = list[tuple[Tiling, ...]](), 0.0, most - len(places) + 2
        for start, stop in pairwise(places):
            if (loop := segment(tiling.loop, r, start, stop)).stores:
                split = self.split(tile_loop(canonical(collapse(loop)), self.kernel, self.limits), left)
                left -= sum(map(len, split.groups)) - 1
                groups += split.groups
                work += split.work * (stop - start) / int(r.size)
        return _Split(tuple(groups), work)

    def _beside(self, tiling: Tiling, r: Range, places: Sequence[int], most: int) -> _Split:
        """Segments of a row, with the ranges of the tiling."""
        parts, work = list[Tiling](), 0.0
        for start, stop in pairwise(places):
            if not (loop := segment(tiling.loop, r, start, stop)).stores:
                continue
            vector = loop.ranges[-1]
            part = replace(tiling, loop=loop, vector=vector, stages=find_stages(loop), beside=True)
            again = turns(loop).get(vector, ())
            split = _Split(((part,),), _work_of(part))
            if again and len(parts) + len(again) <= most:
                split = self._beside(part, vector, again, most - len(parts))
            (group,) = split.groups
            parts += group
            work += split.work * (stop - start) / int(r.size)
        return _Split((tuple(parts),), work)
