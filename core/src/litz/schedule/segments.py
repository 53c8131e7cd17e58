"""The forms of a loop over a concatenation that make no choice between sources for each element.

    cat(dy * gelu(g), dy * h * gelu'(g))   over i < 2n, one source or the other   becomes
    two stores, at i and at i + n          over i < n                             (joined), or
    one store at i, and another at i + n   over i < n, each in a loop of its own  (parted)

In: a Loop. Out: its forms. A joined form reads and computes once the values that several segments share. The loops of
a parted form have as many iterations as the loop together, and each computes what its own segment needs.
`CostModel` compares the forms with the loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from litz.ir import Loop, Program, Range
from litz.ir.complexity import excess
from litz.ir.index import symbols_in
from litz.ir.segments import at_once, cuts, segment
from litz_plugins import Target

MOST = 8
"""The most segments that one iteration writes: registers hold the values of all of them at the same time."""

LEAST_SECTORS = 2
"""The shortest segment of a row in memory."""


def joined_segments(loop: Loop, program: Program, target: Target) -> Iterator[tuple[Range, Loop]]:
    """Yields each range that the loop divides into equal segments, with the loop over the first of them that stores
    all of them. Both loops write the same elements. A form with masks is left out: its points would compute all values
    under masks that hold at few points (as for one step's gradient in the tensor of all steps)."""
    for r, parts in _apart(loop):
        size = parts[0][1]
        if any(stop - start != size for start, stop in parts) or not _long(loop, r, size, program, target):
            continue
        found = at_once(loop, r, len(parts))
        if excess(found) is None and all(load.mask is None for load in found.loads):
            yield r, found


def parted_segments(loop: Loop, program: Program, target: Target) -> Iterator[tuple[Range, tuple[Loop, ...]]]:
    """Yields each range that the loop divides into segments, with a loop for each of them. The loops together write the
    same elements, none that another of them writes."""
    for r, parts in _apart(loop):
        if not all(_long(loop, r, stop - start, program, target) for start, stop in parts):
            continue
        loops = tuple(segment(loop, r, start, stop) for start, stop in parts)
        if all(each.stores for each in loops):
            yield r, loops


def _apart(loop: Loop) -> Iterator[tuple[Range, list[tuple[int, int]]]]:
    """Yields each range that the loop divides into up to MOST segments which every store goes along, with the first
    position of each segment and the one behind its last. A loop that reads what it writes has none."""
    for r, places in cuts(loop).items() if set(loop.reads).isdisjoint(loop.writes) else ():
        if len(places) <= MOST + 1 and all(r.var in symbols_in(store.index) for store in loop.stores):
            yield r, list(pairwise(places))


def _long(loop: Loop, r: Range, size: int, program: Program, target: Target) -> bool:
    """Returns whether segments are long enough in each buffer where neighbouring positions are neighbours in memory."""
    layouts = {name: buffer.layout for name, buffer in program.buffers.items()}
    units = (a.itemsize for a in loop.accesses if a.unit_variable(layouts[a.buffer], loop.extents) == r.var)
    return all(size * itemsize >= LEAST_SECTORS * target.sector_bytes for itemsize in units)
