"""Products with few rows, which a model's decoding steps are full of. In: a contraction and where it stands. Out: at
most one choice, with an estimate.

Such a product takes as long as its weights take to arrive. Where weights are stored in fewer bits than they are
multiplied in, the library needs them written out first; the kernel converts them on their way to the registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from litz.cost.contractions import argument_names
from litz.ir import Program, Template, TensorRef
from litz.ir.index import ZERO
from litz.schedule.choices import replacement_of
from litz.schedule.fusion_size import most_operations
from litz_plugins import Choice, ChoiceContext, Estimate, Target

from ..epilogue import fused, stands
from .choice import make_choice
from .configs import Config
from .gemm import OPERANDS, Gemm, Unsuitable, make_gemm
from .lanes import unpacked
from .prologue import with_prologues
from .together import together

MOST_ROWS = 16
"""Rows of the smallest tile that tensor cores multiply."""
COLUMNS, STEP_BYTES, STAGES, WARPS = 64, 128, 4, 4
"""The tile, bytes of the depth in storage: within 5 % of the fastest of eight for weights of 8 and of 4 bits, of 4096 x
4096 and 28672 x 4096, with one row (H200, 2026-11-22)."""
MOST_TOGETHER = 4
"""Products in one launch."""
PER_UNIT = 3
"""Programs that a multiprocessor should have: each has its loads on the way."""
LEAST_STEPS = 4
"""Steps along the depth that a program takes at least."""

REACHED = (0.85, 0.75, 0.6)
"""Of the memory's bandwidth: at best, usually, at worst."""
INSTRUCTIONS = 1
"""Per node of the body that makes a weight."""


def offer_rows(template: Template, context: ChoiceContext, measured: bool = False) -> Sequence[Choice]:
    """A kernel for a product of few rows whose weights are converted for it, and for those products of the same
    activation that may run beside it. measured: is what is offered measured? Then weights need not be converted for
    products to run side by side, and alone they have other kernels."""
    program: Program = context.program
    if context.target.type != "cuda" or template.kind not in OPERANDS or not _has_few_rows(template):
        return ()
    joint = _with_mates(template, context, measured)
    if joint is not None:
        return (joint,)
    own = None if measured else _gemm(template, context, frozenset())
    if own is None:
        return ()
    choice = make_choice(own, _config(own, program, context.target), _estimate([own], context), template, program)
    return () if choice is None else (choice,)


def _has_few_rows(template: Template) -> bool:
    left = _left(template)
    rows = left.layout.size[-2] if isinstance(left, TensorRef) else ZERO
    return bool(rows.is_Integer) and 0 < int(rows) <= MOST_ROWS


def _gemm(template: Template, context: ChoiceContext, unread: frozenset[str], measured: bool = False) -> Gemm | None:
    """A product of few rows with what makes its weights, and its users, where none of those reads one of the buffers
    `unread`; None where there is nothing to convert and nothing is measured."""
    program: Program = context.program
    try:
        gemm = make_gemm(template, program, "matmul" in context.target.tf32)
    except Unsuitable:
        return None
    if not gemm.n.is_Integer or gemm.n == 0:
        return None
    epilogues = [gemm.epilogue, *fused(program, template, gemm.epilogue, most_operations(context.options))]
    free = [each for each in epilogues if unread.isdisjoint(each.loop.reads)]
    for epilogue in dict.fromkeys((free[-1].absorbed, ())):
        chosen = next(each for each in free if each.absorbed == epilogue)
        # Every tile of columns would make the activation anew; the few rows of it are made once by a kernel before.
        made = with_prologues(replace(gemm, epilogue=chosen), template, program, sides=("right",))
        if made is not None:
            return unpacked(made)
    return replace(gemm, epilogue=free[-1]) if measured else None


def _with_mates(template: Template, context: ChoiceContext, measured: bool) -> Choice | None:
    """One launch for all products of the same activation; None where there are no others, or where more launches are
    lost, of users that no longer go along, than won."""
    program: Program = context.program
    left = _left(template)
    later = program.operations[program.positions[template.name] + 1 :]
    mates = [op for op in later if isinstance(op, Template) and op.kind in OPERANDS and _left(op) == left]
    group = [template, *mates[: MOST_TOGETHER - 1]]
    if len(group) == 1:
        return None
    outputs = frozenset(str(each.outputs[0]) for each in group)
    gemms: list[Gemm] = []
    for each in group:
        gemm = _gemm(each, context, outputs - set(each.outputs), measured)
        if gemm is None:
            return None
        gemms.append(gemm)
    absorbed = [name for gemm in gemms for name in gemm.epilogue.absorbed]
    names = [each.name for each in group]
    alone = [gemm for gemm in (_gemm(each, context, frozenset(), measured) for each in group) if gemm is not None]
    lost = {name for gemm in alone for name in gemm.epilogue.absorbed} - set(absorbed)
    if len(lost) > len(group) - 1 or len(set(absorbed)) < len(absorbed):
        return None
    if not stands(program, template, [*names[1:], *absorbed]):
        return None
    configs = [_config(gemm, program, context.target, len(group)) for gemm in gemms]
    choices = [make_choice(*each[:2], None, each[2], program) for each in zip(gemms, configs, group, strict=True)]
    made = [choice for choice in choices if choice is not None]
    whole = together([replacement_of(choice) for choice in made], names) if len(made) == len(group) else None
    if whole is None:
        return None
    name = f"triton {len(group)} {template.kind} {configs[0]}"
    return Choice(name, "template", whole, _estimate(gemms, context))


def _left(template: Template) -> object:
    """The activation that a product multiplies."""
    return argument_names(template).get(OPERANDS[template.kind][0])


def _config(gemm: Gemm, program: Program, target: Target, beside: int = 1) -> Config:
    """The tile, and parts of the depth enough to keep every multiprocessor busy. beside: products in the launch."""
    product = gemm.products[0]
    stored = max(program.buffers[name].dtype.itemsize for name in product.right.reads[:1])
    depth, inner = program.hint(product.k), program.hint(product.depth[-1].size)
    step = STEP_BYTES // stored
    if len(product.depth) > 1:  # a step within one block of scales
        step = next((size for size in (128, 64, 32, 16) if size <= step and inner % size == 0), step)
    tiles = program.hint(gemm.count) * -(-program.hint(gemm.n) // COLUMNS)
    split = 1
    while tiles * split * beside < PER_UNIT * target.units and depth // (2 * split * step) >= LEAST_STEPS:
        split *= 2
    return Config(MOST_ROWS, COLUMNS, step, STAGES, WARPS, split=split)


def _estimate(gemms: Sequence[Gemm], context: ChoiceContext) -> Estimate:
    """What is read and written, once, and what it takes to convert each weight."""
    program, target = context.program, context.target
    moved = convert = 0.0
    for gemm in gemms:
        touched = {name for product in gemm.products for o in (product.left, product.right) for name in o.reads}
        touched |= {name for name in (*gemm.epilogue.loop.reads, *gemm.epilogue.writes) if name in program.buffers}
        gathered = _gathered(gemm)
        moved += sum(program.hint(program.buffers[name].nbytes) for name in touched - gathered)
        weights = program.hint(gemm.count * gemm.n) * sum(program.hint(product.k) for product in gemm.products)
        prologue = gemm.products[0].right.prologue
        nodes = 0 if prologue is None else len(prologue.nodes)
        for buffer in (program.buffers[name] for name in gathered):
            moved += min(weights * buffer.dtype.itemsize, program.hint(buffer.nbytes))
        convert += weights * nodes * INSTRUCTIONS / (target.vector["fp32"] / 2)
    best, usual, worst = (max(moved / (target.bandwidth * share), convert) for share in REACHED)
    why = f"{moved / 1e6:.3g} MB at {target.bandwidth / 1e3:.4g} GB/s"
    return Estimate(usual + target.launch_us, best + target.launch_us, worst + target.launch_us, why)


def _gathered(gemm: Gemm) -> set[str]:
    """Buffers of which the weights are some rows."""
    loops = [product.right.prologue for product in gemm.products if product.right.prologue is not None]
    return {node.buffer for loop in loops for node in loop.loads if node.indirect}


__all__ = ["offer_rows"]
