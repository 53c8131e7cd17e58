"""Products of many rows whose users go along without a measurement. In: a contraction and where it stands. Out: choices
with an estimate, or the reason why there is none.

A library's product is hard to beat, and what a kernel saves is the users' way through memory. So an estimate is made of
what can be lost (the library's time, times what its kernels were measured to be quicker) and of what the users cost as
a kernel of their own; the choice stands where the first is below the second at its best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from litz.cost.roofline import estimate_work
from litz.cost.work import count_work
from litz.ir import Program, Template
from litz.ir.dtypes import HALF
from litz.schedule.choices import absorbed_by
from litz.schedule.fusion_size import most_operations
from litz.schedule.instructions import instructions
from litz.target import Room, figures_of
from litz.target.times import Programs, memory, vector
from litz_plugins import Choice, ChoiceContext, Estimate, Target

from ..epilogue import fused
from ..module import Unsuitable, offer
from .blocks import rows_apart, tiles_of
from .choice import Kernels
from .configs import Config, Shape, misfit
from .gemm import Gemm, make_gemm
from .offer import shape_of
from .rows import MOST_ROWS
from .unpadded import unpadded_product


@dataclass(frozen=True)
class Tile:
    """A persistent kernel's tile. share: of the library's time that it takes at worst, where it fills the device. us:
    what it takes besides, however large the product is. apart: it has rows that begin alike in memory, each eighth say,
    rather than neighbours (`blocks.py`)."""

    m: int
    n: int
    stages: int
    warps: int
    share: float
    us: float = 0.0
    apart: bool = False


@dataclass(frozen=True)
class Cost:
    """The figures that, with the time measured of a tile, give the time of a product and its users. library: the call
    for the product alone. filled: the part of the device's time in which it works on results, where each tile takes as
    long. added_us: the users, at worst. usual_share: of a tile's share of the library's time, usually."""

    library: Estimate
    filled: float
    added_us: float
    usual_share: float
    why: str

    def estimate(self, tile: Tile) -> Estimate:
        """Returns what the kernel takes. At worst it is never quicker than the library: that was not measured for this
        product."""
        share, library = tile.share / self.filled, self.library
        added = self.added_us + tile.us
        high = library.low_us + max(0.0, share - 1) * library.high_us + added
        usual = min(library.us * max(1.0, share * self.usual_share) + added, high)
        return Estimate(usual, min(library.low_us, usual), high, f"{share:.3g} of the library, {self.why}")

    def least_share(self, loss_us: float, us: float) -> float:
        """Returns the least share for which `estimate` at its worst covers a kernel that took `loss_us` longer than the
        product alone."""
        return self.filled * (1 + (loss_us - self.added_us - us) / self.library.high_us)


@dataclass(frozen=True)
class Way:
    """A tile for one product and its users."""

    tile: Tile
    cost: Cost
    choice: Choice


NAME = "a kernel for the users too"
STEP_BYTES = 128
"""The bytes of the depth in one step."""


@dataclass(frozen=True)
class ManyRowsFigures(Room):
    """Figures of products of many rows, which `figures/gpu/many_rows.toml` explains."""

    table = "many_rows"
    least_filled_share: float
    reads_share: float
    computes_share: float
    usual_share: float
    tiles: tuple[tuple[int, int, int, int, float, float, bool], ...] | None = None
    unaligned_tiles: tuple[tuple[int, int, int, int, float, float, bool], ...] | None = None


@offer("products", NAME)
def offer_many_rows(template: Template, context: ChoiceContext) -> Sequence[Choice]:
    """Returns the kernels, as choices, for a product of more than `MOST_ROWS` rows that do its users too."""
    limits = figures_of(context.target, ManyRowsFigures)
    aligned = unpadded_product(template, context.program) is None
    tiles = limits.tiles if aligned else limits.unaligned_tiles
    if tiles is None:
        what = "such kernels" if aligned else "kernels for rows that begin anywhere"
        raise Unsuitable(f"{what} were not measured on this device; max-autotune measures them")
    tried = [Tile(*tile) for tile in tiles]
    found = [way.choice for way in ways(template, context, tried) if way.cost.filled >= limits.least_filled_share]
    if not found:
        raise Unsuitable("its tiles leave too much of the device idle")
    return found


def ways(template: Template, context: ChoiceContext, tiles: Sequence[Tile]) -> Sequence[Way]:
    """Returns a kernel for each tile that fits, for a product and its users. Errors: Unsuitable."""
    program: Program = context.program
    gemm = _gemm(template, context)
    shape, library = shape_of(gemm, program), context.estimate(template)
    if library is None:
        raise Unsuitable("the time of the library call is not known")
    if not shape.tma:
        raise Unsuitable("its operands do not lie in memory as TMA needs them")
    kernels = Kernels(gemm, template, program)
    found = []
    for tile, config in _configs(shape, context.target, tiles, rows_apart(gemm, program)):
        cost = _cost(gemm, config, shape, library, context)
        choice = kernels.choice(config, cost.estimate(tile))
        if choice is not None:
            found.append(Way(tile, cost, replace(choice, replaced=_replaced(choice, template, library, context))))
    return found


def _replaced(choice: Choice, template: Template, library: Estimate, context: ChoiceContext) -> Estimate:
    """The library's call and its users. At best the users find in the cache what the call and other users wrote. The
    other operands come from memory, as `_cost` assumes for the kernel: where the cache holds them, both sides gain."""
    program: Program = context.program
    users = [program.operations[program.positions[name]] for name in absorbed_by(choice)]
    made = {name for operation in (template, *users) for name in operation.writes}
    parts = [library]
    for user in users:
        cold = sum(program.hint(program.buffers[name].nbytes) for name in {*user.reads} - made)
        work, known = count_work(user, program, context.target), context.estimate(user)
        far = estimate_work(work, context.target, cold)
        parts += [] if known is None else [replace(known, low_us=min(max(known.low_us, far.low_us), known.us))]
    us, low, high = (sum(getattr(part, name) for part in parts) for name in ("us", "low_us", "high_us"))
    return Estimate(us, low, high, "the library's call and its users")


def _gemm(template: Template, context: ChoiceContext) -> Gemm:
    """The product with its users. Errors: Unsuitable."""
    program: Program = context.program
    before = unpadded_product(template, program)
    gemm = make_gemm(before[0] if before else template, program, "matmul" in context.target.tf32)
    if gemm.dtype not in HALF:
        raise Unsuitable(f"{gemm.dtype} stays with the library")
    if not all(size.is_Integer for size in gemm.sizes):
        raise Unsuitable("its sizes are symbols")
    if 0 in gemm.sizes:
        raise Unsuitable("there is nothing to multiply")
    if gemm.batch or int(gemm.m) <= MOST_ROWS:
        raise Unsuitable("it is a batch of products" if gemm.batch else "it has few rows")
    if before is not None:
        return replace(gemm, epilogue=replace(gemm.epilogue, absorbed=before[1]))
    epilogues = list(fused(program, template, gemm.epilogue, most_operations(context.options)))
    if not epilogues:
        raise Unsuitable("the kernel can do none of the product's users")
    return replace(gemm, epilogue=epilogues[-1])


def _configs(shape: Shape, target: Target, tiles: Sequence[Tile], apart: int) -> Sequence[tuple[Tile, Config]]:
    """The tiles as configurations. apart: how many rows apart those are that begin alike; 0 where there is no kernel
    for these."""
    step = STEP_BYTES // shape.in_bytes
    found = []
    for tile in tiles:
        if tile.apart and apart < 2:
            continue
        every = apart if tile.apart else 1
        config = Config(tile.m, tile.n, step, tile.stages, tile.warps, programs=target.units, apart=every)
        if not misfit(config, replace(shape, m=shape.m // every), target):
            found.append((tile, config))
    return found


def _cost(gemm: Gemm, config: Config, shape: Shape, library: Estimate, context: ChoiceContext) -> Cost:
    program, target = context.program, context.target
    tiles = int(tiles_of(gemm, config))
    programs = Programs(tiles, target.units)
    filled = programs.filled * (shape.m * shape.n) / (tiles * config.m * config.n)
    # What is read once more where the users could have been fused with a loop outside.
    again = gemm.epilogue.loop.writes if gemm.epilogue.shared else ()
    extra = shape.extra_bytes + float(sum(program.hint(program.buffers[name].nbytes) for name in again))
    work = shape.m * shape.n * sum(instructions(node, target) for node in gemm.epilogue.loop.nodes if node.op != "load")
    limits = figures_of(target, ManyRowsFigures)
    added = memory(extra, target, busy=limits.reads_share).us + vector(work, target, limits.computes_share).us
    why = f"{tiles} tiles in {programs.waves} waves, {extra / 1e6:.3g} MB more"
    return Cost(library, filled, added, limits.usual_share, why)
