"""Offers for attention on a GPU. In: an `Attention`, an `AttentionBackward`, or the Template of the first product of
attention that a model writes out, and its context. Out: choices, or none, with the reason on record.

Of what is written out a choice absorbs the softmax and the second product. The operations as they are stay the other
choice. Their estimate is the best that they could do: the loops of the softmax as one kernel that reads the scores once
and writes the weights. Of the backward there is a choice for each pair of tiles that fits, the one thought best first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import ceil, prod

import torch

from litz.cost import bytes_of, estimate_work
from litz.cost.work import Work
from litz.ir import Buffer, Extern, KernelCall, Layout, Loop, Operation, Program, Template, TensorRef
from litz.ir.ops import flops_of
from litz.schedule.choices import Recipe, Replacement, needed_outside
from litz.target import figures_of
from litz.targets.triton.dialect import POINTER_TYPES
from litz_plugins import Choice, ChoiceContext, Estimate, Target

from ..module import Unsuitable, offer
from ..subprogram import Meaning, call_of, cut
from .backward import BackwardPlan, KeyGradients, QueryGradient
from .bodies import make_bodies
from .forward import within_blocks, write_attention
from .operation import Attention, AttentionBackward
from .plan import AttentionPlan, make_plan, refuse
from .tiles import BackwardFigures, BackwardTiles, Tiles, effort, fitting, fitting_pairs
from .written_out import WrittenOut, find_written_out


@offer("attention", of=Attention)
def offer_attention(template: Attention, context: ChoiceContext) -> list[Choice]:
    """Offers one kernel for an attention."""
    program: Program = context.program
    plan = make_plan(template, program, written(template, program), "matmul" in context.target.tf32)
    tiles = choose_tiles(plan, context.target)
    name = f"triton attention {tiles}"
    recipe = Recipe((), name, lambda: Replacement((kernel_call(plan, tiles),)))
    return [Choice(name, "template", recipe, estimate(plan, tiles, context.target))]


def written(template: Attention, program: Program) -> tuple[str, ...]:
    """Returns the results that something uses, and the first in any case."""
    needed = needed_outside(program, {template.name})
    first, *others = (output for output in template.outputs if output is not None)
    return (first, *(output for output in others if output in needed))


def choose_tiles(plan: AttentionPlan, target: Target) -> Tiles:
    """Returns the best tiles that fit; smaller ones where there are too few programs for all multiprocessors.
    Unsuitable where none fit."""
    batch, heads, rows, _ = map(plan.program.hint, plan.attention.size)
    blocks = plan.attention.blocks
    found = [within_blocks(blocks, tiles) for tiles in fitting(plan.dtype, plan.held, target, plan.read)]
    if not found:
        raise Unsuitable(f"heads of {max(plan.widths)} elements do not fit into shared memory")
    busy = (tiles for tiles in found if batch * heads * ceil(rows / tiles.rows) >= target.units)
    return next(busy, max(found, key=lambda tiles: -tiles.rows))


def kernel_call(plan: AttentionPlan, tiles: Tiles, meaning: Meaning | None = None) -> KernelCall:
    """Returns a call of the kernel. meaning: what the call stands for; by default the plan's attention."""
    attention = plan.attention
    meaning = meaning or Meaning(cut(plan.program, [attention], plan.outputs))
    return call_of(attention, meaning, write_attention(plan, tiles, attention.name))


def estimate(plan: AttentionPlan, tiles: Tiles, target: Target, with_body: bool = True) -> Estimate:
    """Estimates the time of a kernel that looks at all keys, as the number of listed blocks is known at run time only.
    with_body: count what becomes of the scores."""
    program = plan.program
    batch, heads, rows, keys = map(program.hint, plan.attention.size)
    key, value = plan.widths
    flops = {plan.dtype: 2 * float(batch * heads * rows * keys) * (key + value * (1 + plan.attention.doubled))}
    flops[torch.float32] = flops.get(torch.float32, 0.0) + (body_flops(plan) if with_body else 0.0)
    reads = sum(bytes_of(ref, program) for ref in plan.attention.refs)
    writes = sum(bytes_of(program.buffers[name], program) for name in plan.outputs)
    pieces = batch * heads * ceil(rows / tiles.rows)
    return estimate_work(Work("attention", flops, reads, writes, pieces), target)


def body_flops(plan: AttentionPlan) -> float:
    """Returns the FLOPs of what becomes of the scores, for the likely sizes."""
    return float(prod(map(plan.program.hint, plan.attention.size))) * sum(map(flops_of, plan.bodies.loop.nodes))


LEAST_QUERIES = 32
"""The fewest queries of a head: with fewer a tile would be mostly empty, and one program would read all keys of its
head."""


@offer("attention", says="no kernel for attention that is written out")
def offer_written_out(first: Template, context: ChoiceContext) -> Sequence[Choice]:
    """Offers one kernel for all operations of a written-out attention, where the kernel takes less time."""
    program: Program = context.program
    found = find_written_out(first, program)
    refuse(found.attention, program)
    if program.hint(found.attention.query.layout.size[2]) < LEAST_QUERIES:
        raise Unsuitable(f"fewer than {LEAST_QUERIES} queries")
    plan = plan_of(found, program, "matmul" in context.target.tf32)
    tiles = choose_tiles(plan, context.target)
    expected = _estimate_written(plan, tiles, context.target)
    others = _others(first, found, context)
    if others is None or expected.high_us >= others:
        if others is not None:
            reason = f"written out it takes {others:.4g} µs at best, a kernel {expected.high_us:.4g} µs at worst"
            context.record(first.target_name, reason)
        return ()
    name = f"triton attention {tiles} for {1 + len(found.absorbs)} operations"
    recipe = Recipe(found.absorbs, name, lambda: written_replacement(first, found, plan, tiles, program))
    return [Choice(name, "template", recipe, expected)]


def plan_of(found: WrittenOut, program: Program, tf32: bool) -> AttentionPlan:
    """Returns the kernel's plan, with the result's layout given as (batch, head, query, element)."""
    (out,) = (name for name in found.attention.outputs if name is not None)
    lying = {**program.buffers, out: replace(program.buffers[out], layout=found.out)}
    return make_plan(found.attention, replace(program, buffers=lying), (out,), tf32)


def _estimate_written(plan: AttentionPlan, tiles: Tiles, target: Target) -> Estimate:
    """Estimates the time of the kernel. The work on the scores is the same as in the loops, so it is counted alike:
    where the kernel is at its worst as where the loops are at their best."""
    products = estimate(plan, tiles, target, with_body=False)
    body = estimate_work(Work("loop", {torch.float32: body_flops(plan)}, launches=0), target)
    return Estimate(products.us + body.us, products.low_us + body.low_us, products.high_us + body.low_us, products.why)


def _others(first: Template, found: WrittenOut, context: ChoiceContext) -> float | None:
    """Microseconds of all that the kernel would do, at best: of the loops between the products the longest alone."""
    program: Program = context.program
    known: dict[str, Estimate | None] = {
        name: context.estimate(program.operations[program.positions[name]]) for name in (first.name, *found.absorbs)
    }
    if any(each is None for each in known.values()):
        return None
    best = {name: each.low_us for name, each in known.items() if each is not None}
    between = max(best[name] for name in found.loops)
    return between + sum(us for name, us in best.items() if name not in found.loops)


def written_replacement(
    first: Template, found: WrittenOut, plan: AttentionPlan, tiles: Tiles, program: Program
) -> Replacement:
    """Returns the kernel in place of the first product, the softmax and the second product."""
    gone = sorted((first.name, *found.absorbs), key=program.positions.__getitem__)
    operations = [program.operations[program.positions[name]] for name in gone]
    meaning = Meaning(_whole_meaning(operations, plan, program))
    call = kernel_call(plan, tiles, meaning)
    origins = tuple(dict.fromkeys(name for op in operations if not isinstance(op, Loop) for name in op.origins))
    return Replacement((replace(call, origins=origins),), (), found.absorbs)


def _whole_meaning(operations: Sequence[Operation], plan: AttentionPlan, program: Program) -> Program:
    """The operations that the kernel replaces, and the loops that made copies of what it reads in place, which others
    may need: so it has no input but what the kernel reads."""
    own = list(operations)
    while True:
        meaning = cut(program, sorted(own, key=lambda op: program.positions[op.name]), plan.outputs)
        copies = (name for name in meaning.inputs if isinstance(name, str) and name not in plan.naming.names.buffers)
        made = [writer for name in copies for writer in program.writers[name] if isinstance(writer, Loop)]
        if not made:
            return meaning
        own += dict.fromkeys(made)


@offer("attention", of=AttentionBackward)
def offer_attention_backward(template: AttentionBackward, context: ChoiceContext) -> list[Choice]:
    """Offers two kernels, as one choice, for each pair of tiles that fits."""
    program: Program = context.program
    if not all(ref.layout.size[3].is_Integer for ref in (template.query, template.value)):
        raise Unsuitable("the width of a head is not a number")
    if any(program.buffers[ref.buffer].dtype not in POINTER_TYPES for ref in template.refs):
        raise Unsuitable("a tensor of a type that kernels do not have")
    tf32 = "matmul" in context.target.tf32
    plan = backward_plan(template, program, tf32)
    found = list(fitting_pairs(plan.dtype, tf32, plan.widths, context.target))
    if not found:
        raise Unsuitable(f"heads of {max(plan.widths)} elements do not fit into shared memory")

    def choice(tiles: BackwardTiles) -> Choice:
        name = f"triton attention backward {tiles}"
        recipe = Recipe((), f"{name} {tf32}", partial(backward_replacement, plan, tiles))
        return Choice(name, "template", recipe, estimate_backward(plan, tiles, context.target))

    return [choice(tiles) for tiles in found]


def backward_plan(template: AttentionBackward, program: Program, tf32: bool) -> BackwardPlan:
    """Returns the plan of both kernels, which write the gradients that someone uses, and what is between the two: a
    number for each query."""
    layout = Layout.contiguous(template.query.layout.size[:3])
    delta = Buffer(f"{template.name}_delta", torch.float32, template.device, layout)
    extended = replace(program, buffers={**program.buffers, delta.name: delta})
    needed = needed_outside(program, {template.name}) or set(template.writes)
    outputs = tuple(name if name in needed else None for name in template.outputs[:3])
    bodies = make_bodies(template, extended)
    return BackwardPlan(template, extended, bodies, outputs, tf32, TensorRef(delta.name, layout))


def backward_replacement(plan: BackwardPlan, tiles: BackwardTiles) -> Replacement:
    """Returns the kernels in place of the library call."""
    template, delta = plan.attention, plan.delta
    query, *others = plan.outputs
    summed = (template.out, template.logsumexp, template.grad_out, template.grad_logsumexp)
    between = Extern(f"{template.name}_delta", template.device, sum_delta, summed, outputs=(delta.buffer,))
    first = Meaning(cut(plan.program, [template, between], [name for name in (query, delta.buffer) if name]))
    named = [replace(template, name=f"{template.name}_{what}") for what in ("query", "key")]
    calls = [call_of(named[0], first, QueryGradient(plan, tiles.first).source(named[0].name))]
    wanted = [name for name in others if name]
    if wanted:
        second = Meaning(cut(plan.program, [template], wanted), (delta,))
        calls.append(call_of(named[1], second, KeyGradients(plan, tiles.second).source(named[1].name)))
    return Replacement(tuple(calls), (plan.program.buffers[delta.buffer],))


def sum_delta(
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    grad_out: torch.Tensor | None,
    grad_logsumexp: torch.Tensor | None,
) -> torch.Tensor:
    """Returns `delta`, which the first kernel hands to the second, as float32. See `backward_operation`."""
    total = torch.zeros(logsumexp.shape, dtype=torch.float32, device=logsumexp.device)
    if grad_out is not None:
        total = (out.float() * grad_out.float()).sum(-1)
    return total if grad_logsumexp is None else total - grad_logsumexp / math.log(2)


def estimate_backward(plan: BackwardPlan, tiles: BackwardTiles, target: Target) -> Estimate:
    """Estimates the time of kernels that look at all keys, as the number of listed blocks is known at run time only. Of
    the five products of a backward the second kernel makes four; the first makes its own, and two of those again. Small
    tiles, and tiles that do not fill the mask's blocks, take longer."""
    template, program = plan.attention, plan.program
    batch, heads, queries, _ = map(program.hint, template.query.layout.size)
    keys = program.hint(template.key.layout.size[2])
    scores = float(batch * heads * queries * keys)
    depth, width = plan.widths
    block = queries, keys
    if template.blocks is not None:
        block = tuple(map(min, block, map(program.hint, (template.blocks.queries, template.blocks.keys))))  # type: ignore[assignment]
    limits = figures_of(target, BackwardFigures)
    first, second = (effort(tile, block, max(plan.widths), limits) for tile in (tiles.first, tiles.second))
    flops = {plan.dtype: 2 * scores * (first * (2 * depth + width) + second * (2 * depth + 2 * width))}
    each = sum(map(flops_of, plan.bodies.loop.nodes))
    flops[torch.float32] = flops.get(torch.float32, 0.0) + 2 * scores * each
    reads = 2 * sum(bytes_of(ref, program) for ref in template.refs)
    shared = program.hint(template.key.layout.size[0] * template.key.layout.size[1])
    programs = min(batch * heads * ceil(queries / tiles.first.rows), shared * ceil(keys / tiles.second.keys))
    writes = sum(bytes_of(program.buffers[name], program) for name in plan.outputs if name)
    return estimate_work(Work("attention", flops, reads, writes, programs, launches=2), target)
