"""Offers for attention: in, an `Attention` and its context; out, a choice with the kernel, or why there is none."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, prod

import torch

from litz.cost import bytes_of, estimate_work
from litz.cost.work import Work
from litz.ir import KernelCall, Program
from litz.ir.ops import flops_of
from litz.schedule.choices import Recipe, Replacement, needed_outside
from litz_plugins import Choice, ChoiceContext, Estimate, Target

from ..subprogram import Meaning, cut
from .forward import within_blocks, write_attention
from .operation import Attention
from .plan import AttentionPlan, Unsuitable, make_plan
from .tiles import Tiles, fitting

KINDS = ("flex_attention",)


def offer_attention(template: Attention, context: ChoiceContext) -> list[Choice]:
    """Offers one kernel for an attention; none, with the reason on record, where there cannot be one."""
    program: Program = context.program
    if not isinstance(template, Attention) or "attention" not in context.target.abilities:
        return []
    try:
        plan = make_plan(template, program, written(template, program), "matmul" in context.target.tf32)
        tiles = choose_tiles(plan, context.target)
    except Unsuitable as why:
        context.record(template.target_name, f"no kernel: {why}")
        return []
    name = f"triton attention {tiles}"

    def make() -> Replacement:
        return Replacement((kernel_call(plan, tiles),))

    return [Choice(name, "template", Recipe((), name, make), estimate(plan, tiles, context.target))]


def written(template: Attention, program: Program) -> tuple[str, ...]:
    """Returns the results that something uses, and the first in any case."""
    needed = needed_outside(program, {template.name})
    first, *others = (output for output in template.outputs if output is not None)
    return (first, *(output for output in others if output in needed))


def choose_tiles(plan: AttentionPlan, target: Target) -> Tiles:
    """Returns the best tiles that fit; smaller ones where there are too few programs for all multiprocessors.
    Unsuitable where none fit."""
    batch, heads, rows, _ = map(plan.program.hint, plan.size)
    found = list(_suitable(plan, target))
    busy = (tiles for tiles in found if batch * heads * ceil(rows / tiles.rows) >= target.units)
    return next(busy, max(found, key=lambda tiles: -tiles.rows))


def _suitable(plan: AttentionPlan, target: Target) -> Iterator[Tiles]:
    why = Unsuitable(f"heads of {max(plan.widths)} elements do not fit into shared memory")
    none = True
    for table in fitting(plan.dtype, plan.held, target, plan.read):
        try:
            tiles = within_blocks(plan.attention.blocks, table)
        except Unsuitable as error:
            why = error
            continue
        none = False
        yield tiles
    if none:
        raise why


def kernel_call(plan: AttentionPlan, tiles: Tiles, meaning: Meaning | None = None) -> KernelCall:
    """Returns a call of the kernel. meaning: what the call stands for; by default the plan's attention."""
    attention = plan.attention
    meaning = meaning or Meaning(cut(plan.program, [attention], plan.outputs))
    return KernelCall(
        attention.name,
        attention.device,
        meaning,
        meaning.arguments(),
        outputs=plan.outputs,
        origins=attention.origins,
        source=write_attention(plan, tiles, attention.name),
    )


def estimate(plan: AttentionPlan, tiles: Tiles, target: Target, with_body: bool = True) -> Estimate:
    """Estimates the time of a kernel that looks at all keys, as the number of listed blocks is known at run time only.
    with_body: count what becomes of the scores."""
    program = plan.program
    batch, heads, rows, _ = map(program.hint, plan.size)
    key, value = plan.widths
    flops = {plan.dtype: 2 * scores_of(plan) * (key + value * (1 + plan.attention.doubled))}
    flops[torch.float32] = flops.get(torch.float32, 0.0) + (body_flops(plan) if with_body else 0.0)
    reads = sum(bytes_of(ref, program) for ref in plan.attention.refs)
    writes = sum(bytes_of(program.buffers[name], program) for name in plan.outputs)
    pieces = batch * heads * ceil(rows / tiles.rows)
    return estimate_work(Work("attention", flops, reads, writes, pieces), target)


def scores_of(plan: AttentionPlan) -> float:
    """Returns the number of scores of all heads, for the likely sizes."""
    return float(prod(map(plan.program.hint, plan.size)))


def body_flops(plan: AttentionPlan) -> float:
    """Returns the FLOPs of what becomes of the scores."""
    return scores_of(plan) * sum(map(flops_of, plan.body.nodes))


__all__ = [
    "KINDS",
    "body_flops",
    "choose_tiles",
    "estimate",
    "kernel_call",
    "offer_attention",
    "written",
]
