"""Loops that choose between sources by position, as concatenations do, split so that there is nothing left to choose.

In: the tiling of a loop. Out: tilings that together compute the same, one per segment of one of its output ranges; in
each, the comparisons that the segment decides are gone, and so is what they select against. A vector loop that reads
one of eight parts under masks takes ten times as long as one that reads the part that lies there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from litz.codegen.kernel_plan import KernelPlan
from litz.ir import Loop
from litz.ir.index import ONE, stride_of
from litz.ir.segments import cuts, segment
from litz.ir.transform import collapse

from .tiling import Tiling, canonical, tile_loop

MAX_SEGMENTS = 16
"""The most segments of a loop: each is code to be compiled."""
MIN_WORK = 4096
"""Points of a loop, output times reduction ranges, below which choosing costs less than compiling more code does."""
MIN_GAIN = 0.5
"""Loads per point that a split has to save."""
MIN_LENGTH = 4
"""The least average length of segments of a range along which memory is written in order: shorter ones (a stack of two
along the last dimension) would go through the same cache lines too often."""


def segments(tiling: Tiling, kernel: KernelPlan) -> tuple[Tiling, ...]:
    """Returns the tilings of a loop's segments, in order; the tiling alone where a split gains too little.

    tiling: of the kernel's loop, by `tile_kernel`. Segments write different elements: they may run in any order or at
    once.
    """
    loop = tiling.loop
    points = loop.numel * loop.reduction_numel
    if points.is_Integer and int(points) < MIN_WORK:
        return (tiling,)
    best: tuple[float, Sequence[Loop]] = (MIN_GAIN, ())
    for r, places in cuts(loop).items():
        inner = r == tiling.vector or any(stride_of(store.index[0], r.var) == ONE for store in loop.stores)
        if len(places) - 1 > MAX_SEGMENTS or (inner and int(r.size) < MIN_LENGTH * (len(places) - 1)):
            continue
        loops = [segment(loop, r, start, stop) for start, stop in pairwise(places)]
        lengths = (stop - start for start, stop in pairwise(places))
        read = sum(len(each.loads) * length for each, length in zip(loops, lengths, strict=True))
        gain = len(loop.loads) - read / int(r.size)
        if gain >= best[0]:
            best = gain, loops
    tilings = (tile_loop(canonical(collapse(each)), kernel) for each in best[1] if each.stores)
    return tuple(replace(each, work=tiling.work) for each in tilings) or (tiling,)
