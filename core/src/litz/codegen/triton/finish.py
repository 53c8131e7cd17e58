"""Tiles of a kernel that has a `finish`: a loop of partial results, and the loops that combine them.

In: the loops. Out: each of them, flat, and its tiling. A program of the first works on one piece of a block of outputs;
the last one that is done with a block combines its pieces, as tiles of the same block with the same warps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from litz.ir import Loop, Program, Range
from litz.ir.index import Symbol, product
from litz.ir.transform import collapse, flatten

from .tiling import Axis, Tiling, choose_tiling, combining_tiling, power_of_two

PIECES = 0
"""The group of the ranges that are combined over, in `collapse`."""


def tile_finished(loop: Loop, finish: Sequence[Loop], program: Program, units: int) -> tuple[tuple[Loop, Tiling], ...]:
    """(loop, tiling) of each, for so many multiprocessors."""
    first, *others = _flat(loop, finish, program)
    outputs = {r.var for r in others[0].ranges}
    tiling = choose_tiling(first, program, units)
    axis = tiling.axis("x")
    assert axis is not None
    ranges = tuple(r for r in axis.ranges if r.var in outputs)
    columns = Axis("x", ranges, min(axis.block, power_of_two(program.hint(product(r.size for r in ranges)))))
    axes = tuple(columns if a.name == "x" else a for a in tiling.axes)
    pieces = tuple(r for r in axis.ranges if r.var not in outputs)
    combining = ((other, combining_tiling(other, program, columns, tiling.num_warps)) for other in others)
    return ((first, replace(tiling, axes=axes, pieces=pieces)), *combining)


def _flat(loop: Loop, finish: Sequence[Loop], program: Program) -> list[Loop]:
    """All of them flat and collapsed, so that they have the same output ranges, the pieces of the first aside."""
    first, *others = (flatten(each, program.buffers) for each in (loop, *finish))
    outputs = others[0].ranges
    pieces = {r.var: PIECES for r in first.ranges if r not in outputs}
    found = [collapse(first, pieces), *(collapse(other) for other in others)]
    if len({_outputs(each, pieces) for each in found}) == 1:
        return found
    # Ranges that are one in some of them and two in others stay two in all.
    alone = {r.var: number for number, r in enumerate(outputs, PIECES + 1)}
    return [collapse(first, pieces | alone), *(collapse(other, alone) for other in others)]


def _outputs(loop: Loop, pieces: Mapping[Symbol, int]) -> frozenset[Range]:
    return frozenset(r for r in loop.ranges if r.var not in pieces)
