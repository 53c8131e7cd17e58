"""Products with few rows, which a model's decoding steps are full of. In: a contraction and where it stands. Out: at
most one choice, with an estimate.

Such a product takes as long as its weights take to arrive. Where weights are stored in fewer bits than they are
multiplied in, the library needs them written out first; the kernel converts them on their way to the registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from litz.ir import Program, Template
from litz.schedule.fusion_size import most_operations
from litz_plugins import Choice, ChoiceContext, Estimate, Target

from ..epilogue import fused
from .choice import make_choice
from .configs import Config
from .gemm import OPERANDS, Gemm, Unsuitable, make_gemm
from .lanes import unpacked
from .prologue import with_prologues

MOST_ROWS = 16
"""Rows of the smallest tile that tensor cores multiply."""
COLUMNS, STEP_BYTES, STAGES, WARPS = 64, 128, 4, 4
"""The tile, bytes of the depth in storage: the fastest or within 3 % of it for weights of 8 bits, of 4096 x 4096 to
28672 x 4096, with 1 and 8 rows, among nine (H200, 2026-11-22)."""
PER_UNIT = 3
"""Programs that a multiprocessor should have: each has its loads on the way."""
LEAST_STEPS = 4
"""Steps along the depth that a program takes at least."""

REACHED = (0.85, 0.75, 0.6)
"""Of the memory's bandwidth: at best, usually, at worst."""
INSTRUCTIONS = 1
"""Per node of the body that makes a weight."""


def offer_rows(template: Template, context: ChoiceContext) -> Sequence[Choice]:
    """A kernel for a product of few rows whose weights are converted for it."""
    program: Program = context.program
    if context.target.type != "cuda" or template.kind not in OPERANDS:
        return ()
    try:
        gemm = make_gemm(template, program, "matmul" in context.target.tf32)
    except Unsuitable:
        return ()
    if not (gemm.m.is_Integer and gemm.n.is_Integer and 0 < int(gemm.m) <= MOST_ROWS) or gemm.n == 0:
        return ()
    epilogues = fused(program, template, gemm.epilogue, most_operations(context.options))
    whole = replace(gemm, epilogue=[gemm.epilogue, *epilogues][-1])
    made = next(filter(None, (with_prologues(each, template, program) for each in (whole, gemm))), None)
    if made is None or made.products[0].right.prologue is None:
        return ()
    made = unpacked(made)
    config = _config(made, program, context.target)
    choice = make_choice(made, config, _estimate(made, program, context.target), template, program)
    return () if choice is None else (choice,)


def _config(gemm: Gemm, program: Program, target: Target) -> Config:
    """The tile, and parts of the depth enough to keep every multiprocessor busy."""
    product = gemm.products[0]
    stored = max(program.buffers[name].dtype.itemsize for name in product.right.reads[:1])
    depth, inner = program.hint(product.k), program.hint(product.depth[-1].size)
    step = STEP_BYTES // stored
    if len(product.depth) > 1:  # a step within one block of scales
        step = next((size for size in (128, 64, 32, 16) if size <= step and inner % size == 0), step)
    tiles = program.hint(gemm.count) * -(-program.hint(gemm.n) // COLUMNS)
    split = 1
    while tiles * split < PER_UNIT * target.units and depth // (2 * split * step) >= LEAST_STEPS:
        split *= 2
    return Config(MOST_ROWS, COLUMNS, step, STAGES, WARPS, split=split)


def _estimate(gemm: Gemm, program: Program, target: Target) -> Estimate:
    """What is read and written, once, and what it takes to convert each weight."""
    operands = [operand for product in gemm.products for operand in (product.left, product.right)]
    touched = {name for operand in operands for name in operand.reads}
    touched |= {name for name in (*gemm.epilogue.loop.reads, *gemm.epilogue.writes) if name in program.buffers}
    moved = sum(program.hint(program.buffers[name].nbytes) for name in touched)
    weights = program.hint(gemm.count * gemm.n) * sum(program.hint(product.k) for product in gemm.products)
    prologue = gemm.products[0].right.prologue
    nodes = 0 if prologue is None else len(prologue.nodes)
    convert = weights * nodes * INSTRUCTIONS / (target.vector["fp32"] / 2)
    best, usual, worst = (max(moved / (target.bandwidth * share), convert) for share in REACHED)
    why = f"{moved / 1e6:.3g} MB at {target.bandwidth / 1e3:.4g} GB/s"
    return Estimate(usual + target.launch_us, best + target.launch_us, worst + target.launch_us, why)


__all__ = ["offer_rows"]
