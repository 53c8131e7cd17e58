"""Attention with a mask that is a library call, as a choice. In: an `Attention` with a bias, where it stands. Out:
core's kernel, which works the mask out, or why there is none.

torch's fused kernels read a mask as a bias of every score, and look at all keys, also at those that a causal mask
hides; and they take queries and keys by 128 however few there are. Core's kernel computes the mask from positions and
from what makes it, leaves out tiles that it closes, and knows a mask that is open everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from math import ceil

import sympy

from litz.ir import Attention, KernelCall, Loop, Node, Program, Store
from litz.ir.attention import SCORE
from litz.ir.build import call
from litz.ir.index import known_nonnegative
from litz.ir.intervals import Intervals, conditions
from litz.ir.node import uncast
from litz.schedule.choices import Recipe, Replacement
from litz_plugins import Choice, ChoiceContext, Estimate

from .bounds import find_bounds
from .decode import DTYPES, MOST_ROWS, is_used, make_meaning
from .forward import write_attention
from .in_place import InPlace, read_in_place
from .offer import choose_tiles, estimate_scores
from .plan import AttentionPlan, K, Q, Unsuitable, make_plan
from .tiles import Tiles
from .written_offer import WIDEST

KINDS = ("attention",)
LIBRARY_TILE = 128
"""Queries and keys that the library's kernels take at a time, at least."""
SURE = 1.15
"""How much less the kernel has to take than the library by an estimate that counts both alike."""


def offer_masked(attention: Attention, context: ChoiceContext) -> Sequence[Choice]:
    """The kernel, where it has less to do than the library's call."""
    program: Program = context.program
    if "attention" not in context.target.abilities or attention.score is None:
        return ()  # without a bias the library's kernels are at their best
    found = read_in_place(attention, program)
    changed = opened(found.attention)
    rows = changed.group * changed.query.layout.size[2]
    if rows.is_Integer and int(rows) <= MOST_ROWS:
        return ()  # a kernel that splits the keys is for these
    try:
        plan = plan_of(changed, attention, program, "matmul" in context.target.tf32)
        tiles = choose_tiles(plan, context.target)
    except Unsuitable as why:
        context.record(attention.target_name, f"no kernel that works out the mask: {why}")
        return ()
    many = f" with {len(found.absorbs)} producer{'s' if len(found.absorbs) > 1 else ''}" if found.absorbs else ""
    name = f"triton attention {tiles}{many}"
    recipe = Recipe(found.absorbs, name, lambda: replacement(attention, found, plan, tiles, program))
    expected = _alike(estimate_scores(plan, worked_on(plan, tiles), tiles, context.target))
    return [Choice(name, "template", recipe, expected, replaced=_library(plan, found, context))]


def plan_of(changed: Attention, original: Attention, program: Program, tf32: bool) -> AttentionPlan:
    """The kernel's plan. Errors: Unsuitable, where there is none."""
    _refuse(changed, original, program)
    return make_plan(changed, program, (str(original.outputs[0]),), tf32)


def _refuse(changed: Attention, original: Attention, program: Program) -> None:
    """Errors: Unsuitable, for what the kernel does not do."""
    if any(is_used(name, program) for name in original.outputs[1:]):
        raise Unsuitable("someone reads more than the result (training: the logarithms of the sums)")
    refs = (changed.query, changed.key, changed.value)
    dtypes = {program.buffers[ref.buffer].dtype for ref in refs}
    if len(dtypes) != 1 or dtypes.pop() not in DTYPES:
        raise Unsuitable("there is no kernel for these types")
    if any(size == 0 for ref in refs for size in ref.layout.size):
        raise Unsuitable("there are no elements")
    widths = (changed.query.layout.size[3], changed.value.layout.size[3])
    if not all(width.is_Integer and int(width) <= WIDEST for width in widths):
        raise Unsuitable(f"heads of {' and '.join(map(str, widths))} elements, where at most {WIDEST} are")
    if sympy.sympify(changed.scale).free_symbols:
        raise Unsuitable("the scale is a symbol")


# ------------------------------------------------------------------------------------------------------------ the mask


def opened(attention: Attention) -> Attention:
    """The attention with a bias of 0 or -inf as a mask, and without conditions that hold everywhere."""
    score, mask = attention.score, attention.mask
    if score is None:
        return attention
    extents = score.extents
    value, wanted = score.stores[0].value, [] if mask is None else [mask.stores[0].value]
    while (parts := _parted(value)) is not None:
        value, condition = parts
        wanted += [] if condition is None else [condition]
    intervals = Intervals(extents)
    left = [each for node in wanted for each in conditions(node) if not _holds(each, intervals)]
    node = None
    for each in left:
        node = each if node is None else call("bitwise_and", node, each)
    untouched = uncast(value).op == "load" and uncast(value).buffer == SCORE
    return replace(
        attention,
        score=None if untouched else _with(score, value),
        mask=None if node is None else _with(score, node),
    )


def _with(loop: Loop, value: Node) -> Loop:
    (store,) = loop.stores
    return replace(loop, stores=(Store(SCORE, store.index, value),))


def _parted(value: Node) -> tuple[Node, Node | None] | None:
    """A score and the condition that what is added to it stands for: 0 where the condition holds and -inf elsewhere.
    No condition where 0 is added. None where it is another score."""
    value = uncast(value)
    if value.op != "add":
        return None
    for bias, rest in (value.args, value.args[::-1]):
        bias = uncast(bias)
        if _is(bias, 0.0):
            return rest, None
        if bias.op != "where":
            continue
        condition, yes, no = bias.args[0], uncast(bias.args[1]), uncast(bias.args[2])
        if _is(yes, 0.0) and _is(no, -math.inf):
            return rest, condition
        if _is(no, 0.0) and _is(yes, -math.inf):
            return rest, condition.args[0] if condition.op == "bitwise_not" else call("bitwise_not", condition)
    return None


def _is(node: Node, number: float) -> bool:
    return node.op == "const" and node.attrs[0] == number


def _holds(condition: Node, intervals: Intervals) -> bool:
    """Does a condition hold at every position, as far as it follows from the ranges of the positions?"""
    if condition.op == "const":
        return bool(condition.attrs[0])
    if condition.op not in ("le", "lt", "ge", "gt") or condition.args[0].dtype.is_floating_point:
        return False
    less, greater = (intervals.of(arg) for arg in condition.args)
    if condition.op in ("ge", "gt"):
        less, greater = greater, less
    if less.high is None or greater.low is None:
        return False
    return known_nonnegative(greater.low - less.high - (condition.op in ("lt", "gt")))


# ---------------------------------------------------------------------------------------------------------- estimates


def worked_on(plan: AttentionPlan, tiles: Tiles) -> float:
    """How many scores the kernel computes for the likely sizes: of whole tiles, but for those that the mask closes."""
    hint = plan.program.hint
    batch, heads, queries, keys = map(hint, plan.size)
    bounds = find_bounds(plan.mask, Q, K)

    def line(limit: sympy.Expr) -> tuple[int, int]:
        limit = sympy.sympify(limit).subs(
            {variable: 0 for variable in limit.free_symbols & set(plan.body.extents) - {Q}}
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


def _alike(found: Estimate) -> Estimate:
    return Estimate(found.us, found.us, found.us, found.why)


def _library(plan: AttentionPlan, found: InPlace, context: ChoiceContext) -> Estimate:
    """What the call takes, counted as the kernel is, and what the kernel absorbs."""
    program: Program = context.program
    batch, heads, queries, keys = map(program.hint, plan.size)
    rows, columns = (ceil(size / LIBRARY_TILE) * LIBRARY_TILE for size in (queries, keys))
    scores = float(batch * heads * rows * columns)
    call_us = estimate_scores(plan, scores, Tiles(LIBRARY_TILE, LIBRARY_TILE, 8, 2), context.target, biased=True).us
    absorbed = [context.estimate(program.operations[program.positions[name]]) for name in found.absorbs]
    us = call_us / SURE + sum(each.low_us for each in absorbed if each is not None)
    return Estimate(us, us, us, f"scores by {LIBRARY_TILE} x {LIBRARY_TILE}, with a bias")


def replacement(
    attention: Attention, found: InPlace, plan: AttentionPlan, tiles: Tiles, program: Program
) -> Replacement:
    meaning, args = make_meaning(plan.attention, 1, False, program)
    kernel = KernelCall(
        attention.name,
        attention.device,
        meaning,
        args,
        outputs=plan.outputs,
        origins=attention.origins,
        source=write_attention(plan, tiles, attention.name),
    )
    return Replacement((kernel,), (), found.absorbs)


__all__ = ["KINDS", "offer_masked", "opened", "plan_of", "replacement", "worked_on"]
