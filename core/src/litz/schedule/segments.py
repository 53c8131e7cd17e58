"""Loops over a concatenation of parts of one size: the same position of every part in one iteration.

    cat(dy * gelu(g), dy * h * gelu'(g))   over i < 2n, one part or the other     becomes
    two stores, at i and at i + n          over i < n

What several parts are made of is read and computed once for all of them, and nothing is left to choose or to mask.
In: a Loop. Out: the forms of it that have several parts in one iteration; `CostModel` knows whether one is cheaper.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from litz.ir import Loop, Program, Range
from litz.ir.complexity import excess
from litz.ir.index import symbols_in
from litz.ir.segments import cuts, segment

MOST = 8
"""The most parts that one iteration writes: their values are in registers at the same time."""

LEAST_BYTES = 64
"""The shortest part of a line of memory: a cache line of a processor, two sectors of a GPU."""


def joined_segments(loop: Loop, program: Program) -> Iterator[tuple[Range, Loop]]:
    """Yields the loop over the first part of each range that its choices cut into equal parts, with the stores of all
    parts, and that range. The two loops write the same elements. Only where nothing is left to mask: else each point
    would compute several values under masks that hold at few points (a step's gradient in the tensor of all steps)."""
    if not set(loop.reads).isdisjoint(loop.writes):
        return
    for r, places in cuts(loop).items():
        size, count = places[1], len(places) - 1
        if count > MOST or any(stop - start != size for start, stop in pairwise(places)):
            continue
        if not all(r.var in symbols_in(store.index) for store in loop.stores) or not _long(loop, r, size, program):
            continue
        found = at_once(loop, r, count)
        if excess(found) is None and all(load.mask is None for load in found.loads):
            yield r, found


def at_once(loop: Loop, r: Range, count: int) -> Loop:
    """Returns the loop over the first of `count` equal parts of a range, with the stores of all of them."""
    size = int(r.size) // count
    parts = [segment(loop, r, start, start + size) for start in range(0, int(r.size), size)]
    return replace(parts[0], stores=tuple(store for part in parts for store in part.stores))


def _long(loop: Loop, r: Range, size: int, program: Program) -> bool:
    """Are the parts long enough where memory is read or written in order along the range?"""
    units = (a.itemsize for a in loop.accesses if a.unit_variable(program.buffers[a.buffer].layout) == r.var)
    return all(size * itemsize >= LEAST_BYTES for itemsize in units)
