"""Products of a few terms for each row as loops: a linear map over 4 heads, 9 taps at each position, an outer product.

In and out: a Program. `mm(x, w)` of k terms and n columns, both few, becomes a pointwise loop that multiplies and adds:

    result[row, column] = x[row, 0] * w[0, column] + x[row, 1] * w[1, column] + ...

A library's tile has 16 columns and terms or more, and would be mostly empty. The loop takes the time of reading `x`,
and fuses with the operations that make `x` and that use the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from litz.cost import count_work
from litz.cost.contractions import argument_names
from litz.cost.roofline import estimate_work
from litz.ir import Loop, Node, Operation, Program, Range, Template, TensorRef
from litz.ir.accesses import Access
from litz.ir.build import cast
from litz.ir.complexity import excess
from litz.ir.index import ONE, Expr, loop_var, product, to_expr
from litz.schedule import CostModel
from litz.target import Room, figures_of, warp_lines
from litz.target.times import second_level
from litz_plugins import PassContext, Target

from ..epilogue import plain
from ..module import Unsuitable
from .gemm import OPERANDS, load_at, with_bias, written_out

KINDS = ("mm", "addmm", "bmm", "baddbmm")
TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
MOST_TERMS = 16
"""The most terms of a sum that is written out."""
MOST_PRODUCTS = 64
"""The most multiplications for a row and all columns, or for a column and all rows. Each loads two values."""


@dataclass(frozen=True)
class FewTermFigures(Room):
    """Figures of products of few terms, which `figures/gpu/few_terms.toml` explains."""

    table = "few_terms"
    least_products: int
    empty_times: float


MOSTLY_EMPTY = "a library's tile would be mostly empty, and the loop fuses with the operations around it"


def write_out_few_terms(program: Program, context: PassContext) -> Program:
    """Turns products of few terms for each row into pointwise loops on GPUs (a pass)."""
    costs = CostModel(program, context.target_of, context.ask)
    operations = [
        (_considered(operation, program, costs, context) if isinstance(operation, Template) else None) or operation
        for operation in program.operations
    ]
    if all(new is old for new, old in zip(operations, program.operations, strict=True)):
        return program
    return replace(program, operations=tuple(operations))


def _considered(template: Template, program: Program, costs: CostModel, context: PassContext) -> Operation | None:
    """Returns the loop that takes the place of a product; None for a product that stays."""
    target = context.target_of(template.device)
    if template.kind not in KINDS or "blocks" not in target.abilities:
        return None
    try:
        loop = few_terms(template, program, figures_of(target, FewTermFigures).least_products)
    except Unsuitable as reason:
        if message := str(reason):
            context.record(f"product {template.name}", "a product of matrices", message, about=template.name)
        return None
    limits = figures_of(target, FewTermFigures)
    library = estimate_work(count_work(template, program, target), target).us
    as_loop = max(costs.cost(loop).us, _cache_us(loop, costs, target))
    ways = (("a loop", as_loop), ("a product of matrices", library))
    pays, why = context.weigh(template.name, as_loop < limits.empty_times * library, *(us for _, us in ways))
    because = why or (MOSTLY_EMPTY if pays else "the terms of neighbouring results lie in different lines of the cache")
    context.record(f"product {template.name}", ways[not pays][0], because, ways, about=template.name)
    return loop if pays else None


def _cache_us(loop: Loop, costs: CostModel, target: Target) -> float:
    """Returns the time in µs that the loads take from the cache of each unit. On an H200 (2026-11-27) 2.4 million sums
    of 16 terms, where the terms of neighbouring columns lie 32 bytes apart, took 117 us: 88 by this count."""

    def walk(access: Access) -> Iterator[tuple[int, float]]:
        for r in reversed(loop.ranges):
            count = costs.hint(r.size)
            yield count, costs.stride(loop, access, r.var, count) * access.itemsize

    lines = sum(warp_lines(walk(access), target) for access in loop.accesses if not access.is_store)
    return second_level(costs.hint(loop.numel) / target.warp * lines * target.line_bytes, target).us


def few_terms(template: Template, program: Program, least: int) -> Loop:
    """Returns the product as a loop. least: the fewest multiplications of one that is written out. Errors: Unsuitable,
    without a message for a product of many terms."""
    arguments = argument_names(template)
    left, right = (arguments[name] for name in OPERANDS[template.kind])
    ranges = _ranges(left, right, program.hint, least)
    out = program.buffers[str(template.outputs[0])]
    dtypes = {program.buffers[ref.buffer].dtype for ref in (left, right)} | {out.dtype}
    if len(dtypes) > 1 or out.dtype not in TYPES:
        raise Unsuitable(f"no loop multiplies {', '.join(sorted(map(str, dtypes)))}")
    value = _sum(left, right, ranges, program)
    place = tuple(r.var for r in ranges)
    value = with_bias(value, arguments, lambda bias: load_at(bias, place, ranges, program))
    made = plain(program, template, cast(value, out.dtype), ranges).loop
    if excess(made) is not None:
        raise Unsuitable("a loop of all its terms would be too long")
    return made


def _ranges(left: TensorRef, right: TensorRef, hint: Callable[[Expr], int], least: int) -> tuple[Range, ...]:
    """The ranges of a product of few terms, of which the last two are rows and columns. Errors: Unsuitable."""
    depth, size = left.layout.size[-1], (*left.layout.size[:-1], right.layout.size[-1])
    if not depth.is_Integer or not 1 <= int(depth) <= MOST_TERMS:
        raise Unsuitable
    few = [int(extent) for extent in size[-2:] if extent.is_Integer]
    if depth != ONE and (not few or min(few) * int(depth) > MOST_PRODUCTS):
        raise Unsuitable
    if any(extent == 0 for extent in size) or hint(product(size) * depth) < least:
        raise Unsuitable
    return tuple(Range(loop_var(n), extent) for n, extent in enumerate(size))


def _sum(left: TensorRef, right: TensorRef, ranges: Sequence[Range], program: Program) -> Node:
    """The sum of all terms, in the type that the operands' sums have."""
    *batch, row, column = (r.var for r in ranges)

    def factors(term: Expr) -> tuple[Node, Node]:
        one, other = (*batch, row, term), (*batch, term, column)
        return load_at(left, one, ranges, program), load_at(right, other, ranges, program)

    return written_out(factors(to_expr(term)) for term in range(int(left.layout.size[-1])))
