"""Products of many rows whose users go along without a measurement. In: a contraction and where it stands. Out: choices
with an estimate, or the reason why there is none.

A library's product is hard to beat, and what a kernel saves is the users' way through memory. So an estimate is made of
what can be lost (the library's time, times what its kernels were measured to be quicker) and of what the users cost as
a kernel of their own; the choice stands where the first is below the second at its best.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

import torch

from litz.cost import count_work
from litz.ir import Program, Template
from litz.schedule.fusion_size import most_operations
from litz_plugins import Choice, ChoiceContext, Estimate, Target

from ..epilogue import Epilogue, fused
from .choice import Shared, make_choice
from .configs import Config, Shape, misfit
from .gemm import Gemm, Unsuitable, make_gemm
from .offer import shape_of
from .rows import MOST_ROWS
from .unpadded import unpadded_product


@dataclass(frozen=True)
class Tile:
    """A persistent kernel's tile. share: of the library's time that it takes at worst, where it fills the device."""

    m: int
    n: int
    stages: int
    warps: int
    share: float


CANDIDATES = (
    Tile(128, 256, 3, 8, 1.2),
    Tile(128, 128, 4, 8, 1.2),
    Tile(128, 128, 4, 4, 1.2),
    Tile(64, 256, 4, 4, 1.2),
)
"""What `benchmarks.epilogues` times on Hopper; the shares are guesses."""
TILES: Mapping[int, Sequence[Tile]] = {}
"""The tiles by compute capability times ten, for devices that were measured; elsewhere the library stays, unless
max-autotune measures."""
NAME = "a kernel for the users too"
STEP_BYTES = 128
"""The bytes of the depth in one step."""
PLAIN = (torch.bfloat16, torch.float16)
"""Types of operands; float32 stays with the library."""
READS = 0.6
"""The share of the memory's bandwidth at which an epilogue's operands arrive at worst, as nothing hides them."""
COMPUTES = 0.4
"""The share of the vector units' rate at which the epilogue computes at worst."""


def offer_many_rows(template: Template, context: ChoiceContext) -> Sequence[Choice]:
    """Returns the kernels, as choices, for a product of more than `MOST_ROWS` rows that do its users too."""
    if context.target.type != "cuda":
        return ()
    try:
        gemm = _gemm(template, context)
    except Unsuitable as why:
        context.verdict(NAME, str(why))
        return ()
    program: Program = context.program
    shape, library = shape_of(gemm, program), context.estimate(template)
    if library is None or not shape.tma:
        unknown = "the time of the library call is not known"
        context.verdict(NAME, unknown if library is None else "its operands do not lie in memory as TMA needs them")
        return ()
    shared = Shared(gemm, template, program)
    found = []
    for tile, config in _configs(shape, context.target):
        estimate = _estimate(gemm, tile, config, shape, library, context)
        found.append(make_choice(gemm, config, estimate, template, program, shared))
    return [choice for choice in found if choice is not None]


def _gemm(template: Template, context: ChoiceContext) -> Gemm:
    """The product with its users. Errors: Unsuitable."""
    program: Program = context.program
    if context.target.capability not in TILES:
        raise Unsuitable("such kernels were not measured on this device; max-autotune measures them")
    before = unpadded_product(template, program)
    gemm = make_gemm(before.template if before else template, program, "matmul" in context.target.tf32)
    if gemm.dtype not in PLAIN:
        raise Unsuitable(f"{gemm.dtype} stays with the library")
    if not all(size.is_Integer for size in gemm.sizes):
        raise Unsuitable("its sizes are symbols")
    if 0 in gemm.sizes:
        raise Unsuitable("there is nothing to multiply")
    if gemm.batch or int(gemm.m) <= MOST_ROWS:
        raise Unsuitable("it is a batch of products" if gemm.batch else "it has few rows")
    if before is not None:
        return replace(gemm, epilogue=replace(gemm.epilogue, absorbed=before.absorbs))
    epilogues = list(fused(program, template, gemm.epilogue, most_operations(context.options)))
    if not epilogues:
        raise Unsuitable("the kernel can do none of the product's users")
    return replace(gemm, epilogue=epilogues[-1])


def _configs(shape: Shape, target: Target) -> Sequence[tuple[Tile, Config]]:
    """The tiles as configurations."""
    step = STEP_BYTES // shape.in_bytes
    found = []
    for tile in TILES[target.capability]:
        config = Config(tile.m, tile.n, step, tile.stages, tile.warps, programs=target.units)
        if not misfit(config, shape, target):
            found.append((tile, config))
    return found


def _estimate(
    gemm: Gemm, tile: Tile, config: Config, shape: Shape, library: Estimate, context: ChoiceContext
) -> Estimate:
    program, target = context.program, context.target
    tiles = ceil(shape.m / config.m) * ceil(shape.n / config.n)
    waves = ceil(tiles / target.units)
    filled = tiles / (waves * target.units) * (shape.m * shape.n) / (tiles * config.m * config.n)
    share = tile.share / filled
    extra = shape.extra_bytes + _lost_bytes(gemm.epilogue, program)
    flops = count_work(gemm.epilogue.loop, _with_stand_ins(gemm, program)).total_flops
    added = extra / (target.bandwidth * READS) + flops / (target.vector["fp32"] * COMPUTES)
    high = library.low_us + (share - 1) * library.high_us + added
    usual = library.us * max(1.0, share * 0.95) + added
    why = f"{share:.3g} of the library, {tiles} tiles in {waves} waves, {extra / 1e6:.3g} MB more"
    return Estimate(min(usual, high), min(library.low_us, usual, high), high, why)


def _lost_bytes(epilogue: Epilogue, program: Program) -> float:
    """What is read once more where the users could have been fused with a loop outside."""
    if not epilogue.shared:
        return 0.0
    return float(sum(program.hint(program.buffers[name].nbytes) for name in epilogue.writes))


def _with_stand_ins(gemm: Gemm, program: Program) -> Program:
    return replace(program, buffers={**program.buffers, **gemm.epilogue.buffers})


__all__ = ["offer_many_rows"]
