"""The offer for attention's backward. In: an `AttentionBackward` and its context. Out: choices, one for each pair of
tiles that fits, the one thought best first; none, with the reason on record, where there are no kernels for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from typing import Any

import torch

from litz.cost import bytes_of, estimate_work
from litz.cost.work import Work
from litz.ir import Buffer, Extern, KernelCall, Layout, Program, TensorRef
from litz.ir.ops import flops_of
from litz.schedule.choices import Recipe, Replacement, needed_outside
from litz.target import figures_of
from litz.targets.triton.dialect import POINTER_TYPES
from litz_plugins import Choice, ChoiceContext, Estimate, KernelSource, Target

from ..subprogram import Meaning, cut
from .backward import BackwardPlan, make_plan, write_key_gradients, write_query_gradient
from .backward_operation import AttentionBackward
from .backward_tiles import BackwardFigures, BackwardTiles, fitting
from .plan import Unsuitable

KINDS = ("flex_attention_backward",)


def offer_attention_backward(template: AttentionBackward, context: ChoiceContext) -> list[Choice]:
    """Returns two kernels, as one choice, for each pair of tiles that fits; none, and records why, for others."""
    program: Program = context.program
    if not isinstance(template, AttentionBackward) or "attention" not in context.target.abilities:
        return []
    tf32 = "matmul" in context.target.tf32
    try:
        _check(template, program)
        plan = plan_for(template, program, tf32)
        found = list(fitting(plan.dtype, tf32, plan.widths, context.target))
        if not found:
            raise Unsuitable(f"heads of {max(plan.widths)} elements do not fit into shared memory")
    except Unsuitable as why:
        context.record(template.target_name, f"no kernel: {why}")
        return []

    def choice(tiles: BackwardTiles) -> Choice:
        name = f"triton attention backward {tiles}"
        recipe = Recipe((), f"{name} {tf32}", partial(replacement, plan, tiles))
        return Choice(name, "template", recipe, estimate(plan, tiles, context.target))

    return [choice(tiles) for tiles in found]


def _check(template: AttentionBackward, program: Program) -> None:
    """Errors: Unsuitable."""
    widths = [ref.layout.size[3] for ref in (template.query, template.value)]
    if not all(width.is_Integer for width in widths):
        raise Unsuitable("the width of a head is not a number")
    if any(program.buffers[ref.buffer].dtype not in POINTER_TYPES for ref in template.refs):
        raise Unsuitable("a tensor of a type that kernels do not have")


def plan_for(template: AttentionBackward, program: Program, tf32: bool) -> BackwardPlan:
    """Returns the plan of both kernels, which write the gradients that someone uses, and what is between the two: a
    number for each query."""
    layout = Layout.contiguous(template.query.layout.size[:3])
    delta = Buffer(f"{template.name}_delta", torch.float32, template.device, layout)
    extended = replace(program, buffers={**program.buffers, delta.name: delta})
    needed = needed_outside(program, {template.name}) or set(template.writes)
    outputs = tuple(name if name in needed else None for name in template.outputs[:3])
    return make_plan(template, extended, TensorRef(delta.name, layout), outputs, tf32)


def replacement(plan: BackwardPlan, tiles: BackwardTiles) -> Replacement:
    """Returns the kernels in place of the library call."""
    template, delta = plan.attention, plan.delta
    query, *others = plan.outputs
    summed = (template.out, template.logsumexp, template.grad_out, template.grad_logsumexp)
    between = Extern(f"{template.name}_delta", template.device, sum_delta, summed, outputs=(delta.buffer,))
    first = Meaning(cut(plan.program, [template, between], [name for name in (query, delta.buffer) if name]))
    calls = [_call(plan, "query", first, first.arguments(), write_query_gradient(plan, tiles.first, "query"))]
    wanted = [name for name in others if name]
    if wanted:
        second = Meaning(cut(plan.program, [template], wanted))
        source = write_key_gradients(plan, tiles.second, "key")
        calls.append(_call(plan, "key", Shortened(second), (*second.arguments(), delta), source))
    return Replacement(tuple(calls), (plan.program.buffers[delta.buffer],))


def _call(plan: BackwardPlan, what: str, meaning: Any, args: tuple[Any, ...], source: KernelSource) -> KernelCall:
    """meaning: a `Meaning`, perhaps `Shortened`."""
    template, name = plan.attention, f"{plan.attention.name}_{what}"
    outputs = tuple(ref.buffer for ref in meaning.program.outputs)
    return KernelCall(
        name,
        template.device,
        meaning,
        args,
        outputs=outputs,
        origins=template.origins,
        source=replace(source, name=name),
    )


@dataclass(frozen=True)
class Shortened:
    """A kernel's meaning, with a last argument that an earlier kernel computes from the others, to save work."""

    meaning: Meaning

    @property
    def program(self) -> Program:
        """Returns the program of the whole meaning."""
        return self.meaning.program

    @property
    def __name__(self) -> str:
        return self.meaning.__name__

    def __call__(self, *args: Any) -> tuple[torch.Tensor, ...]:
        """Computes the results from all arguments but the last, which saves the kernel work and means nothing new."""
        return self.meaning(*args[:-1])


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


def estimate(plan: BackwardPlan, tiles: BackwardTiles, target: Target) -> Estimate:
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
    first, second = (tile.effort(*block, max(plan.widths), limits) for tile in (tiles.first, tiles.second))
    flops = {plan.dtype: 2 * scores * (first * (2 * depth + width) + second * (2 * depth + 2 * width))}
    each = sum(map(flops_of, plan.bodies.loop.nodes))
    flops[torch.float32] = flops.get(torch.float32, 0.0) + 2 * scores * each
    reads = 2 * sum(bytes_of(ref, program) for ref in template.refs)
    shared = program.hint(template.key.layout.size[0] * template.key.layout.size[1])
    programs = min(batch * heads * ceil(queries / tiles.first.queries), shared * ceil(keys / tiles.second.keys))
    writes = sum(bytes_of(program.buffers[name], program) for name in plan.outputs if name)
    return estimate_work(Work("attention", flops, reads, writes, programs, launches=2), target)


__all__ = ["KINDS", "Shortened", "offer_attention_backward", "plan_for", "replacement", "sum_delta"]
