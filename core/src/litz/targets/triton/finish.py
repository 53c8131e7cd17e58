"""Tilings of a kernel that combines what its programs have stored.

In: its plan. Out: the tiling of each loop. A program of the first works on one piece of a block of outputs; the last
one that is done with a block combines its pieces, as tiles of the same block with the same warps.
"""

from __future__ import annotations

from dataclasses import replace

from litz.codegen.kernel_plan import KernelPlan
from litz.ir.index import product
from litz.tiles.shape import Axis, Tiling
from litz_plugins import Target

from .columns import combining_tiling
from .settings import with_settings
from .tile_shape import power_of_two
from .tiling import choose_tiling


def choose_tilings(plan: KernelPlan, target: Target) -> tuple[Tiling, ...]:
    """Returns a tiling for each loop of the plan, by its settings. Errors: ValueError for settings that the kernel
    cannot have."""
    tiling = choose_tiling(plan.loops[0], plan, target)
    return tilings_after(with_settings(tiling, plan.settings) if plan.settings else tiling, plan, target)


def tilings_after(tiling: Tiling, plan: KernelPlan, target: Target) -> tuple[Tiling, ...]:
    """Returns the tilings of all loops of a kernel, given the tiling of the first."""
    others = plan.loops[1:]
    if not others:
        return (tiling,)
    axis = tiling.axis("x")
    assert axis is not None
    ranges = tuple(r for r in axis.ranges if r not in plan.pieces)
    columns = Axis("x", ranges, min(axis.block, power_of_two(plan.hint(product(r.size for r in ranges)))))
    axes = tuple(columns if each.name == "x" else each for each in tiling.axes)
    pieces = tuple(r for r in axis.ranges if r in plan.pieces)
    combining = (combining_tiling(other, plan, columns, tiling.num_warps, target) for other in others)
    return (replace(tiling, axes=axes, pieces=pieces), *combining)
