"""Attention of few queries as a choice (decoding). In: an `Attention` where it stands. Out: kernels that split the keys
over the device, or why there are none.

The library's kernels have a program for each block of queries of each head, which keep few multiprocessors busy with
one query; and they take keys and values that were repeated for the heads that share them, and a bias in full.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

import sympy
import torch

from litz.cost import bytes_of
from litz.ir import Buffer, Extern, KernelCall, Layout, Loop, Operation, Program, Range, Store, TensorRef
from litz.ir.build import call, cast, const, load, reduce
from litz.ir.index import ONE, loop_var, reduction_var
from litz.schedule.choices import Recipe, Replacement
from litz.target import Room, figures_of
from litz.target.times import Limit, Programs, launches, memory, time_of
from litz.targets.triton.tile_shape import power_of_two
from litz_plugins import Choice, ChoiceContext, Estimate, Share, Target

from ..epilogue import others, place
from ..module import Unsuitable, offer
from ..subprogram import Meaning, call_of, cut
from .forward import Stored, write_attention
from .in_place import InPlace, read_in_place
from .lines import LOG2E
from .offer import written
from .operation import DTYPES, SCORE, Attention
from .plan import make_plan, refuse_sizes
from .tiles import Tiles

MOST_ROWS = 64
"""Queries of all heads that share a head of the key, at most: beyond that a tile is a product that is worth blocks of
its own."""
MOST_WIDTH = 512
"""Elements of a query, or of a value: what a program holds in registers."""
LABEL = "attention in"
"""The beginning of the names of the kernel's meanings."""


@dataclass(frozen=True)
class SplitAttentionFigures(Room):
    """Figures of attention of few queries, which `figures/gpu/split_attention.toml` explains."""

    table = "split_attention"
    tile_bytes: int
    least_keys: int
    resident_programs: int
    step_us: float
    start_us: float
    finish_us: float
    spread_times: tuple[float, float]
    is_measured: bool = False


@offer("", says="keys are not split")
def offer_split(attention: Attention, context: ChoiceContext) -> Sequence[Choice]:
    """Returns the kernel for few queries as a choice."""
    program: Program = context.program
    if "blocks" not in context.target.abilities:
        raise Unsuitable("the kernel is for devices that run blocks of programs")
    if attention.kind == "attention" and not figures_of(context.target, SplitAttentionFigures).is_measured:
        raise Unsuitable("the kernel was not measured on this device beside the library's")
    found = read_in_place(attention, program)
    refuse(found.attention, attention, program)
    split = choose_split(found.attention, program, context.target)
    what = f"triton attention in {split}"
    if found.absorbs:
        what += f" with {others(program, attention, found.absorbs)}"
    recipe = Recipe(found.absorbs, repr(split), lambda: replacement(attention, found, split, program))
    expected = estimate(found.attention, split, program, context.target, 1 + len(found.absorbs))
    return [Choice(what, "template", recipe, expected)]


def refuse(attention: Attention, original: Attention, program: Program) -> None:
    """Raises Unsuitable, with the reason, for an attention that the kernel does not do."""
    query, key, value = attention.query.layout, attention.key.layout, attention.value.layout
    buffers = [program.buffers[ref.buffer] for ref in (attention.query, attention.key, attention.value)]
    out = program.buffers[str(original.outputs[0])] if original.outputs[0] is not None else None
    if out is None or written(original, program)[1:]:
        raise Unsuitable("the graph reads more than the result (training: the logarithms of the sums)")
    if attention.blocks is not None:
        raise Unsuitable("it looks at some blocks of keys only")
    if buffers[0].dtype not in DTYPES or any(not b.dtype.is_floating_point or b.dtype.itemsize > 4 for b in buffers):
        raise Unsuitable(f"no kernel for {buffers[0].dtype}")
    refuse_sizes(attention, MOST_WIDTH)
    rows = attention.group * query.size[2]
    if not rows.is_Integer:
        raise Unsuitable(f"the number of queries is not known while compiling: {rows}")
    if int(rows) > MOST_ROWS:
        raise Unsuitable(f"{rows} queries for a head of the key; the kernel takes {MOST_ROWS} at most")
    if key.size[:3] != value.size[:3] or key.size[0] != query.size[0]:
        raise Unsuitable("keys and values differ in batches or heads, or are not known to agree")


# How it is split.


def choose_split(attention: Attention, program: Program, target: Target) -> Tiles:
    """Returns a split that keeps the device busy at the likely sizes, in parts of `least_keys` keys or more."""
    limits = figures_of(target, SplitAttentionFigures)
    hint, query, key = program.hint, attention.query.layout, attention.key.layout
    rows = int(attention.group * query.size[2])
    width = max(int(query.size[3]), int(attention.value.layout.size[3]))
    row_bytes = power_of_two(width) * max(
        program.buffers[ref.buffer].dtype.itemsize for ref in (attention.key, attention.query)
    )
    keys = max(16, min(128, limits.tile_bytes // row_bytes))
    pairs = max(1, hint(key.size[0]) * hint(key.size[1]))
    wanted = limits.resident_programs * target.units // pairs
    parts = max(1, min(wanted, ceil(hint(key.size[2]) / limits.least_keys)))
    return Tiles(max(16, power_of_two(rows)), keys, 4, 3 if width <= 256 else 2, parts)


def estimate(attention: Attention, split: Tiles, program: Program, target: Target, replaced: int = 1) -> Estimate:
    """Returns the expected time in µs: keys and values once at the memory's bandwidth, or one tile after the other.

    A launch counts as the cost model of libraries has it. One sets the counters to zero for all attentions of a call;
    where a loop puts the parts together, that is one too. At worst, so many launches as are `replaced` count as those
    do at best, which this is compared with: a host that is slow is slow for both.
    """
    limits = figures_of(target, SplitAttentionFigures)
    hint = program.hint
    refs = (attention.query, attention.key, attention.value)
    moved = sum(bytes_of(ref, program) for ref in refs)
    for body in (attention.score, attention.mask):
        names = () if body is None else [name for name in body.reads if name in program.buffers]
        moved += sum(hint(program.buffers[name].nbytes) for name in names)
    batch, heads, queries, _ = map(hint, attention.query.layout.size)
    result = batch * heads * queries * hint(attention.value.layout.size[3])
    moved += result * program.buffers[attention.query.buffer].dtype.itemsize
    # Attentions that are done, or still to be chosen.
    many = sum(isinstance(each, Attention) or _is_done(each) for each in program.operations)
    launched = 1 + (split.parts > 1) / (max(1, many) if finishes(attention) else 1)
    if split.parts > 1:
        moved += 2 * 4 * split.parts * result
    count = split.parts * batch * hint(attention.key.layout.size[1])
    programs = Programs(count, target.units, limits.resident_programs)
    steps = programs.waves * ceil(ceil(hint(attention.key.layout.size[2]) / split.parts) / split.keys)
    alone = limits.start_us + steps * limits.step_us + limits.finish_us * (split.parts > 1)
    best, worst = limits.spread_times
    bounds = (
        memory(moved, target, target.shares["memory"], programs.busy),
        Limit(alone, Share(1 / best, 1.0, 1 / worst)),
    )
    why = f"keys and values once: {moved / 1e6:.3g} MB by {count} programs, {launched:.3g} launches"
    return time_of(bounds, target, launches(launched, target, replaced), why=why)


# What takes the call's place.


def replacement(attention: Attention, found: InPlace, split: Tiles, program: Program) -> Replacement:
    """Returns the kernel in place of the call. Several parts are put together by the kernel's last programs where
    `finishes` says that those can count; otherwise a loop puts them together."""
    changed, out, parts = found.attention, program.buffers[str(attention.outputs[0])], split.parts
    made = in_parts(out, parts)
    stored = Stored(out) if parts == 1 else Stored(*made, out=out if finishes(changed) else None)
    own = tuple(buffer for buffer in stored.buffers if buffer is not out)
    loops = () if out in stored.buffers else (combine(attention, *made, out),)
    program = replace(program, buffers={**program.buffers, **{buffer.name: buffer for buffer in own}})
    names = [buffer.name for buffer in stored.buffers]
    meaning, plan = make_meaning(changed, parts, names, program), make_plan(changed, program, names, False, scaled=True)
    source = write_attention(plan, split, attention.name, stored)
    return Replacement((call_of(attention, meaning, source), *loops), own, found.absorbs)


def _is_done(operation: Operation) -> bool:
    return isinstance(operation, KernelCall) and operation.target_name.startswith(LABEL)


def finishes(attention: Attention) -> bool:
    """Returns whether the last program of a key's head can combine its parts: batches and heads are constant."""
    return all(size.is_Integer for size in attention.key.layout.size[:2])


def in_parts(out: Buffer, parts: int) -> tuple[Buffer, Buffer]:
    """Returns the buffers of the results of parts, and of the base-2 logarithms of their sums."""
    size = (sympy.Integer(parts), *out.layout.size)
    results = Buffer(f"{out.name}_parts", torch.float32, out.device, Layout.contiguous(size))
    return results, replace(results, name=f"{out.name}_sums", layout=Layout.contiguous(size[:-1]))


def combine(attention: Attention, result: Buffer, sums: Buffer, out: Buffer) -> Loop:
    """Returns the loop that adds the parts together, each weighed by its sum of exponentials; 0 where no key counts."""
    size = out.layout.size
    every = [Range(loop_var(dim), extent) for dim, extent in enumerate(size)]
    index, ranges = place(every), tuple(r for r in every if r.size != ONE)
    part = reduction_var(0)
    own = load(sums.name, (part, *index[:-1]), sums.dtype)
    none = call("eq", own, const(float("-inf"), own.dtype))
    shifted = call("sub", own, reduce("max", own))
    weight = call("where", none, const(0.0, own.dtype), call("exp2", shifted))
    total = reduce("sum", weight)
    value = reduce("sum", call("mul", weight, load(result.name, (part, *index), result.dtype)))
    divisor = call("where", call("eq", total, const(0.0, own.dtype)), const(1.0, own.dtype), total)
    stored = Store(out.name, index, cast(call("div", value, divisor), out.dtype))
    name = f"{attention.name}_sum"
    return Loop(name, attention.device, ranges, (Range(part, sums.layout.size[0]),), (stored,), attention.origins)


# What the kernel means.


def make_meaning(attention: Attention, parts: int, outputs: Sequence[str], program: Program) -> Meaning:
    """Returns what the kernel computes, with torch: scores, what its bodies make of them, the results of its parts, and
    what these give together. Where the cuts lie does not matter."""
    device, out = attention.device, program.buffers[str(attention.outputs[0])]
    scores = Buffer(SCORE, torch.float32, device, Layout.contiguous(attention.size))
    whole, made = TensorRef(SCORE, scores.layout), in_parts(out, parts)
    given: list[TensorRef | None] = [whole, None]
    own, operations = [scores, *made], list[Operation]()
    products = (attention.query, attention.key, float(attention.scale))
    operations.append(Extern(attention.name, device, scaled_products, products, outputs=(SCORE,)))
    for number, (body, dtype) in enumerate(((attention.score, torch.float32), (attention.mask, torch.bool))):
        if body is not None:
            name = f"{SCORE}_{number}"
            own.append(replace(scores, name=name, dtype=dtype))
            operations.append(replace(body, name=name, stores=(replace(body.stores[0], buffer=name),)))
            given[number] = TensorRef(name, scores.layout)
    results = (*given, attention.value, parts)
    operations.append(
        Extern(attention.name, device, weighed_values, results, outputs=tuple(each.name for each in made))
    )
    operations += [combine(attention, *made, out)] * (out.name in outputs)
    program = replace(program, buffers={**program.buffers, **{buffer.name: buffer for buffer in own}})
    return Meaning(cut(program, operations, outputs), label=f"{LABEL} {parts} parts")


def scaled_products(query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
    """Returns the scores (B, H, Q, K) of queries (B, H, Q, D) and keys (B', H', K, D), in float32."""
    keys = key.float().repeat_interleave(query.shape[1] // key.shape[1], 1)
    return (query.float() @ keys.transpose(-1, -2)) * scale


def weighed_values(
    scores: torch.Tensor, counts: torch.Tensor | None, value: torch.Tensor, parts: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the results of parts of the keys, and the base-2 logarithms of the sums of their weights. counts: whether
    a key is looked at."""
    shown = scores if counts is None else scores.masked_fill(~counts, float("-inf"))
    values = value.float().repeat_interleave(scores.shape[1] // value.shape[1], 1)
    found = [_part(*each) for each in zip(shown.tensor_split(parts, -1), values.tensor_split(parts, 2), strict=True)]
    results, sums = map(torch.stack, zip(*found, strict=True))
    return results, sums


def _part(scores: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    if scores.shape[-1] == 0:
        return scores.sum(-1, keepdim=True) @ values.sum(2, keepdim=True), scores.sum(-1).fill_(float("-inf"))
    sums = torch.logsumexp(scores, -1)
    weights = (scores - torch.where(sums.isneginf(), 0.0, sums)[..., None]).exp()
    return weights @ values, sums * LOG2E
