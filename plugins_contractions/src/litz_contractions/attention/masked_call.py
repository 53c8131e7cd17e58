"""Attention with a mask that is a library call, as a choice. In: an `Attention` with a bias, where it stands. Out:
core's kernel, which works the mask out, or why there is none.

torch's fused kernels read a mask as a bias of every score, and look at all keys, also at those that a causal mask
hides; and they take queries and keys by 128 however few there are. Core's kernel computes the mask from positions and
from what makes it, leaves out tiles that it closes, and knows a mask that is open everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import sympy

from litz.ir import Program
from litz.schedule.choices import Recipe, Replacement
from litz.target import Room, figures_of, rate_kind
from litz.target.times import Programs, alike, matrix, time_of
from litz_plugins import Choice, ChoiceContext, Estimate, Target

from ..epilogue import others
from ..module import Unsuitable, offer
from .decode import make_meaning
from .in_place import InPlace, read_in_place
from .masks import find_bounds, opened
from .offer import choose_tiles, kernel_call, written
from .operation import Attention
from .plan import AttentionPlan, K, Q, make_plan, refuse
from .tiles import Tiles, padded

LEAST_ROWS = 32
"""Queries of all heads that share keys: for fewer a tile would be mostly empty."""
LIBRARY_TILE = 128
"""Queries and keys that the library's kernels take at a time, at least."""


Shares = tuple[tuple[int, float], ...]
"""The speeds that a kernel reaches, by the width of a head, up to so many elements."""


@dataclass(frozen=True)
class MaskedFigures(Room):
    """Figures of attention with a mask, which `figures/gpu/masked_attention.toml` explains."""

    table = "masked_attention"
    reading_times: float
    sure_times: float
    library_shares: Shares | None = None
    library_start_us: float = 0.0
    kernel_shares: Shares = ()
    kernel_start_us: float = 0.0


@offer("attention", says="no kernel that works out the mask")
def offer_masked(attention: Attention, context: ChoiceContext) -> Sequence[Choice]:
    """Returns the kernel as a choice for 16-bit attention with a bias and not few queries."""
    program: Program = context.program
    if attention.score is None:
        return ()  # without a bias the library's kernels are at their best
    limits = figures_of(context.target, MaskedFigures)
    if limits.library_shares is None:
        raise Unsuitable("not measured on this device")
    found = read_in_place(attention, program)
    changed = opened(found.attention)
    rows = changed.group * changed.query.layout.size[2]
    if rows.is_Integer and int(rows) < LEAST_ROWS:
        return ()  # a kernel that splits the keys is for these
    plan = plan_of(changed, program, "matmul" in context.target.tf32)
    if plan.dtype.itemsize != 2:
        raise Unsuitable(f"the kernel was not measured for {plan.dtype}")
    tiles = choose_tiles(plan, context.target)
    many = f" with {others(program, attention, found.absorbs)}" if found.absorbs else ""
    name = f"triton attention {tiles}{many}"
    recipe = Recipe(found.absorbs, name, lambda: replacement(found, plan, tiles, program))
    kernel, replaced = _kernel(plan, tiles, context.target), _library(plan, found, context)
    return [Choice(name, "template", recipe, kernel, replaced=replaced)]


def plan_of(changed: Attention, program: Program, tf32: bool) -> AttentionPlan:
    """Returns the plan of core's kernel for a call of the library's. Errors: Unsuitable where there is none."""
    outputs = written(changed, program)
    if outputs[1:]:
        raise Unsuitable("the graph reads more than the result (training: the logarithms of the sums)")
    refuse(changed, program)
    return make_plan(changed, program, outputs, tf32)


# ---------------------------------------------------------------------------------------------------------- estimates


def worked_on(plan: AttentionPlan, tiles: Tiles) -> float:
    """Returns how many scores the kernel computes at the likely sizes: those of tiles that the bounds leave."""
    hint = plan.program.hint
    batch, heads, queries, keys = map(hint, plan.attention.size)
    bounds = find_bounds(plan.bodies.mask, Q, K)

    def line(limit: sympy.Expr) -> tuple[int, int]:
        limit = sympy.sympify(limit).subs(
            {variable: 0 for variable in limit.free_symbols & set(plan.bodies.loop.extents) - {Q}}
        )
        slope = hint(limit.coeff(Q))
        return slope, hint(limit.subs(Q, 0))

    lower, upper = ([line(limit) for limit in limits] for limits in (bounds.lower, bounds.upper))
    looked_at = 0
    for first in range(0, queries, tiles.rows):
        edges = (first, first + tiles.rows - 1)
        begin = max([0, *(min(slope * edge + rest for edge in edges) for slope, rest in lower)])
        end = min([keys - 1, *(max(slope * edge + rest for edge in edges) for slope, rest in upper)])
        looked_at += max(0, end // tiles.keys - begin // tiles.keys + 1) if end >= begin else 0
    return float(batch * heads * looked_at * tiles.rows * tiles.keys)


def _kernel(plan: AttentionPlan, tiles: Tiles, target: Target) -> Estimate:
    batch, heads, queries, _ = map(plan.program.hint, plan.attention.size)
    scores, programs = worked_on(plan, tiles), float(batch * heads * ceil(queries / tiles.rows))
    limits, why = figures_of(target, MaskedFigures), f"{scores:.3g} scores in tiles that the mask leaves"
    scores *= limits.reading_times if plan.read[0] else 1.0
    return _time(scores, programs, limits.kernel_shares, limits.kernel_start_us, plan, target, why)


def _library(plan: AttentionPlan, found: InPlace, context: ChoiceContext) -> Estimate:
    """Returns the time of the call, and of what the kernel absorbs."""
    program: Program = context.program
    limits = figures_of(context.target, MaskedFigures)
    batch, heads, queries, keys = map(program.hint, plan.attention.size)
    rows, columns = (ceil(size / LIBRARY_TILE) for size in (queries, keys))
    programs = float(batch * heads * rows)
    why, scores = f"scores by {LIBRARY_TILE} x {LIBRARY_TILE}, with a bias", programs * columns * LIBRARY_TILE**2
    call = _time(scores, programs, limits.library_shares or (), limits.library_start_us, plan, context.target, why)
    absorbed = [context.estimate(program.operations[program.positions[name]]) for name in found.absorbs]
    us = call.us / limits.sure_times + sum(each.low_us for each in absorbed if each is not None)
    return Estimate(us, us, us, why)


def _time(
    scores: float, count: float, shares: Shares, start_us: float, plan: AttentionPlan, target: Target, why: str
) -> Estimate:
    """The time of so many scores by so many programs. shares: of the matrix units' rate, that a kernel reaches. start:
    that a multiprocessor loses for each program."""
    share = next((share for most, share in shares if max(plan.widths) <= most), min(share for _, share in shares))
    flops, programs = 2 * scores * sum(map(padded, plan.widths)), Programs(count, target.units)
    bound = matrix(flops, rate_kind(plan.dtype), target, alike(share), programs.busy)
    return time_of((bound,), target, added_us=max(1.0, count / target.units) * start_us, why=why)


def replacement(found: InPlace, plan: AttentionPlan, tiles: Tiles, program: Program) -> Replacement:
    """Returns the kernel in place of the library call, and of the operations that made the mask."""
    meaning = make_meaning(plan.attention, 1, plan.outputs, program)
    return Replacement((kernel_call(plan, tiles, meaning),), (), found.absorbs)
