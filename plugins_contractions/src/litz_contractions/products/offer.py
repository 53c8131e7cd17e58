"""Offers: in, a contraction and its context; out, the choices that are worth measuring.

`KINDS` has a row for each kind of contraction: the function that makes a `Gemm` of it.

Each choice does the contraction with as many of its users as one kernel can; where core's fusion could have joined such
a user with something else, the contraction alone is offered too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from litz.ir import Program, Template
from litz_plugins import Choice, ChoiceContext, Estimate

from ..epilogue import fused
from ..module import Unsuitable
from .blocks import can_use_descriptors, rows_apart
from .choice import Kernels
from .configs import Config, Shape, rank, spread
from .convolution import make_convolution
from .gemm import OPERANDS, Gemm, make_gemm
from .joined import second_product, with_whole_rows
from .lanes import unpacked
from .prologue import with_prologues
from .unpadded import unpadded_product


@dataclass(frozen=True)
class Offer:
    """The ways to do a contraction: choices, and (candidate, why not) of the rest."""

    choices: tuple[Choice, ...]
    rejected: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Kind:
    """make: a contraction of the kind as a product. tf32: the use for which the target says whether float32 may
    lose bits. splits: may the depth be split?"""

    make: Callable[[Template, Program, bool], Gemm]
    tf32: str = "matmul"
    splits: bool = True


KINDS: Mapping[str, Kind] = {
    **dict.fromkeys(OPERANDS, Kind(make_gemm)),
    "convolution": Kind(make_convolution, "convolution", splits=False),
}


def offer_gemm(template: Template, context: ChoiceContext, count: int, most: int | None = None) -> Offer:
    """Kernels for a contraction of one of `KINDS`. count: configurations of a kernel. most: nodes of the graph that one
    kernel may do; None for no limit."""
    program: Program = context.program
    kind, target = KINDS[template.kind], context.target
    try:
        gemm = kind.make(template, program, kind.tf32 in target.tf32)
    except Unsuitable as why:
        return Offer((), ((f"triton {template.kind}", str(why)),))
    shape = shape_of(gemm, program)
    ranked = rank(shape, target, kind.splits)
    epilogues = [*fused(program, template, gemm.epilogue, most)]
    choices: list[Choice] = []
    divided = any(product.scale is not None for product in gemm.products)
    ranked = replace(ranked, best=tuple(_within_blocks(gemm, ranked.best))) if divided else ranked
    both = None if not epilogues or divided else second_product(gemm, epilogues, template, program)
    if both is not None:
        double = replace(shape, k=2 * shape.k, tma=False)
        choices += _choices(both, spread(rank(double, target, False).best, count), template, program)
    rows = None if divided else with_whole_rows(gemm, template, program)
    if rows is not None:
        whole = [item for item in ranked.best if item[0].n >= shape.n and item[0].split == 1]
        choices += _choices(rows, spread(whole, count), template, program)
    last = [gemm.epilogue, *epilogues][-1]
    made = with_prologues(replace(gemm, epilogue=last), template, program)
    if made is not None:
        made = unpacked(made)
        best = rank(shape_of(made, program), target, kind.splits).best
        choices += _choices(made, spread(_within_blocks(made, best), count), template, program)
    before = unpadded_product(template, program)
    if before is not None:
        choices += _unpadded(*before, context, count, kind)
    choices += _choices(replace(gemm, epilogue=last), spread(ranked.best, count), template, program)
    if last.shared:
        choices += _choices(gemm, spread(ranked.best, max(1, count // 2)), template, program)
    return Offer(tuple(choices), ranked.rejected)


def _unpadded(
    template: Template, absorbs: tuple[str, ...], context: ChoiceContext, count: int, kind: Kind
) -> list[Choice]:
    """A product that was padded for the library, as it was: it absorbs the padding, and the cut."""
    program: Program = context.program
    gemm = kind.make(template, program, kind.tf32 in context.target.tf32)
    gemm = replace(gemm, epilogue=replace(gemm.epilogue, absorbed=absorbs))
    best, apart = rank(shape_of(gemm, program), context.target, splits=False).best, rows_apart(gemm, program)
    if apart > 1:
        every = int(gemm.m) // apart
        best = tuple((replace(c, apart=apart) if c.programs and c.m <= every else c, each) for c, each in best)
    return _choices(gemm, spread(best, count), template, program)


def _within_blocks(gemm: Gemm, configs: Sequence[tuple[Config, Estimate]]) -> Sequence[tuple[Config, Estimate]]:
    """Returns the configurations whose steps along the depth stay within one block of scales, where an operand has such
    blocks."""
    depth = gemm.products[0].depth
    divided = gemm.products[0].right.prologue or gemm.products[0].scale
    if not divided or len(depth) == 1 or not depth[-1].size.is_Integer:
        return configs
    inner = int(depth[-1].size)
    shorter = [(replace(config, k=min(config.k, inner & -inner)), estimate) for config, estimate in configs]
    return [item for item in dict(shorter).items() if item[0].k >= 16]


def _choices(
    gemm: Gemm, configs: Sequence[tuple[Config, Estimate]], template: Template, program: Program
) -> list[Choice]:
    kernels = Kernels(gemm, template, program)
    found = (kernels.choice(*each) for each in configs)
    return [choice for choice in found if choice is not None]


def shape_of(gemm: Gemm, program: Program) -> Shape:
    """Returns the likely sizes of a product."""
    hint = program.hint
    result = [program.buffers[name] for name in gemm.epilogue.loop.writes]
    read = {node.buffer for node in gemm.epilogue.loop.loads} - set(gemm.epilogue.buffers)
    operands = {name for product in gemm.products for name in product.reads}
    extra = sum(hint(program.buffers[name].nbytes) for name in read)
    extra += sum(hint(buffer.nbytes) for buffer in result[1:])
    return Shape(
        hint(gemm.count),
        hint(gemm.m),
        hint(gemm.n),
        sum(hint(product.k) for product in gemm.products),
        gemm.dtype,
        max(gemm.dtype.itemsize, *(program.buffers[name].dtype.itemsize for name in operands)),
        result[0].dtype.itemsize,
        extra,
        gemm.tf32,
        can_use_descriptors(gemm, program),
    )
