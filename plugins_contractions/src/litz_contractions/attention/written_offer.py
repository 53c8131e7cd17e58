"""The kernel of attention for attention that a model writes out. In: the Template of the first product, where it
stands. Out: a choice that absorbs the softmax and the second product, or why there is none.

The operations as they are stay the other choice. Their estimate is the best that they could do: the loops of the
softmax as one kernel that reads the scores once and writes the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from litz.cost import estimate_work
from litz.cost.work import Work
from litz.ir import Loop, Operation, Program, Template
from litz.schedule.choices import Recipe, Replacement
from litz_plugins import Choice, ChoiceContext, Estimate, Target

from ..subprogram import Meaning, cut
from .offer import body_flops, choose_tiles, estimate, kernel_call
from .plan import AttentionPlan, Unsuitable, make_plan, refuse_sizes
from .tiles import Tiles
from .written_out import PRODUCTS, NotAttention, WrittenOut, find_written_out

KINDS = PRODUCTS
LEAST_QUERIES = 32
"""The fewest queries of a head: with fewer a tile would be mostly empty, and one program would read all keys of its
head."""
WIDEST = 256
"""Elements of a head, up to which a tile of queries and its result stay in registers."""


def offer_written_out(first: Template, context: ChoiceContext) -> Sequence[Choice]:
    """Offers one kernel for all operations of a written-out attention, where the kernel takes less time."""
    program: Program = context.program
    if "attention" not in context.target.abilities:
        return ()
    try:
        found = find_written_out(first, program)
        _refuse(found, program)
        plan = plan_of(found, program, "matmul" in context.target.tf32)
        tiles = choose_tiles(plan, context.target)
    except (NotAttention, Unsuitable) as why:
        if str(why):
            context.record(first.target_name, f"no kernel for attention that is written out: {why}")
        return ()
    expected = _estimate(plan, tiles, context.target)
    others = _others(first, found, context)
    if others is None or expected.high_us >= others:
        if others is not None:
            reason = f"written out it takes {others:.4g} µs at best, a kernel {expected.high_us:.4g} µs at worst"
            context.record(first.target_name, reason)
        return ()
    name = f"triton attention {tiles} for {1 + len(found.absorbs)} operations"
    recipe = Recipe(found.absorbs, name, lambda: replacement(first, found, plan, tiles, program))
    return [Choice(name, "template", recipe, expected)]


def _refuse(found: WrittenOut, program: Program) -> None:
    """Errors: Unsuitable, for what the kernel does not do."""
    attention = found.attention
    refs = (attention.query, attention.key, attention.value)
    dtypes = {program.buffers[ref.buffer].dtype for ref in refs}
    if len(dtypes) != 1 or not (dtype := dtypes.pop()).is_floating_point or dtype.itemsize > 4:
        raise Unsuitable("there is no kernel for these types")
    refuse_sizes(attention, WIDEST)
    if program.hint(attention.query.layout.size[2]) < LEAST_QUERIES:
        raise Unsuitable(f"fewer than {LEAST_QUERIES} queries")


def plan_of(found: WrittenOut, program: Program, tf32: bool) -> AttentionPlan:
    """Returns the kernel's plan, with the result's layout given as (batch, head, query, element)."""
    (out,) = (name for name in found.attention.outputs if name is not None)
    lying = {**program.buffers, out: replace(program.buffers[out], layout=found.out)}
    return make_plan(found.attention, replace(program, buffers=lying), (out,), tf32)


def _estimate(plan: AttentionPlan, tiles: Tiles, target: Target) -> Estimate:
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


def replacement(first: Template, found: WrittenOut, plan: AttentionPlan, tiles: Tiles, program: Program) -> Replacement:
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
        copies = (name for name in meaning.inputs if isinstance(name, str) and name not in plan.names.buffers)
        made = [writer for name in copies for writer in program.writers[name] if isinstance(writer, Loop)]
        if not made:
            return meaning
        own += dict.fromkeys(made)


__all__ = ["KINDS", "offer_written_out", "plan_of", "replacement"]
