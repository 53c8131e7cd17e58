"""Products with few rows, which a model's decoding steps are full of. In: a contraction and where it stands. Out: at
most one choice, with an estimate.

Such a product takes as long as its weights take to arrive. Where weights are stored in fewer bits than they are
multiplied in, the library needs them written out first; the kernel converts them on their way to the registers. Where
they are not, the kernel reads them no faster than the library does; it wins what products in one launch, and what an
epilogue saves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from litz.cost.contractions import argument_names
from litz.ir import Program, Template, TensorRef
from litz.ir.dtypes import HALF
from litz.ir.index import ZERO
from litz.schedule.choices import replacement_of
from litz.schedule.fusion_size import most_operations
from litz.target import Room, figures_of
from litz.target.times import memory, time_of, vector
from litz.targets.triton.tile_shape import THREADS
from litz_plugins import Choice, ChoiceContext, Estimate, Share, Target

from ..epilogue import fused, stands
from ..module import Unsuitable, offer
from .choice import Kernels, together
from .configs import Config
from .gemm import OPERANDS, Gemm, make_gemm, turned
from .joined import make_pair, with_row_factor
from .lanes import unpacked
from .prologue import with_prologues

NAME = "a kernel for few rows"
MOST_ROWS = 16
"""Rows of the smallest tile that tensor cores multiply."""
FEW = 8
"""Rows up to which a tile is half as wide: columns of the smallest tile, where the weights are its rows."""


@dataclass(frozen=True)
class RowsFigures(Room):
    """Figures of products of few rows, which `figures/gpu/rows.toml` explains."""

    table = "rows"
    warp_columns: int
    stages_loads: int
    stored_tiles: tuple[int, int, int, float]
    converted_tiles: tuple[int, int, int, float]
    least_steps: int
    reached_shares: tuple[float, float, float]
    large_bytes: int
    as_stored: tuple[float, float, float, float] | None = None


MOST_TOGETHER = 4
"""Products in one launch."""

INSTRUCTIONS = 1
"""Per node of the body that makes a weight."""


ALIGNED = 16
"""Bytes of the widest access of a thread."""


@offer("products", NAME)
def offer_rows(template: Template, context: ChoiceContext, measured: bool = False) -> Sequence[Choice]:
    """Returns a kernel for a product of few rows whose weights are converted for it, and for those products of the same
    activation that may run beside it. measured: is what is offered measured? Then weights need not be converted for
    products to run side by side, and alone they have other kernels."""
    program: Program = context.program
    if template.kind not in OPERANDS:
        return ()
    left = _left(template)
    rows = left.layout.size[-2] if isinstance(left, TensorRef) else ZERO
    if not rows.is_Integer or not 0 < int(rows) <= MOST_ROWS:
        raise Unsuitable(f"the kernel takes 1 to {MOST_ROWS} rows, a number known while compiling")
    plain = measured or figures_of(context.target, RowsFigures).as_stored is not None
    joint = _paired(template, context, plain) or _with_mates(template, context, plain)
    if joint is not None:
        return (joint,)
    own = None if measured else _gemm(template, context, frozenset(), plain)
    estimate = None if own is None else _estimate([own], [template], context)
    if own is None:
        raise Unsuitable("no operation converts its weights" + ", and they are neither bfloat16 nor float16" * plain)
    if estimate is None:
        raise Unsuitable(
            f"not measured on this device, or not for rows of weights that are no multiple of {ALIGNED} bytes"
        )
    config = _config(own, program, context.target)
    own = _normed(own, [template], template, config, context)
    choice = Kernels(turned(own), template, program).choice(config, estimate)
    return () if choice is None else (choice,)


def _gemm(template: Template, context: ChoiceContext, unread: frozenset[str], plain: bool) -> Gemm | None:
    """A product of few rows with what makes its weights, and its users, where none of those reads one of the buffers
    `unread`; None where there is nothing to convert. plain: such products as well."""
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
            return unpacked(made, words=True)
    return replace(gemm, epilogue=free[-1]) if plain and gemm.dtype in HALF else None


def _paired(template: Template, context: ChoiceContext, plain: bool) -> Choice | None:
    """Two products of one activation and what is made of both as one kernel, where each program does all of the depth;
    None where there are not two, or nothing is made of both alone."""
    program: Program = context.program
    group = _mates(template, program)
    if len(group) != 2:
        return None
    try:
        first, second = (make_gemm(each, program, "matmul" in context.target.tf32) for each in group)
    except Unsuitable:
        return None
    if not first.n.is_Integer or first.n == 0:
        return None

    def with_weights(gemm: Gemm, own: Template) -> Gemm:
        made = with_prologues(gemm, own, program, sides=("right",))
        return gemm if made is None else unpacked(made, words=True)

    pair = make_pair(first, second, (group[0], group[1]), program, most_operations(context.options), with_weights)
    if pair is None or _gathered(pair) or not (pair.products[0].right.prologue or (plain and pair.dtype in HALF)):
        return None
    config = _config(pair, program, context.target, paired=True)
    parts = [replace(pair, products=tuple(p for p in pair.products if p.second == own)) for own in (False, True)]
    estimate = _estimate(parts, group, context)
    if config.split > 1 or estimate is None:
        return None
    pair = _normed(pair, group, template, config, context)
    return Kernels(turned(pair), template, program).choice(config, estimate)


def _mates(template: Template, program: Program) -> list[Template]:
    """A product and those after it that multiply the same activation."""
    later, left = program.operations[program.positions[template.name] + 1 :], _left(template)
    mates = [op for op in later if isinstance(op, Template) and op.kind in OPERANDS and _left(op) == left]
    return [template, *mates]


def _with_mates(template: Template, context: ChoiceContext, plain: bool) -> Choice | None:
    """Offers one launch for all products of the same activation; None where there are no others, or where it loses more
    launches, of users that can no longer be fused, than it saves."""
    program: Program = context.program
    group = _mates(template, program)[:MOST_TOGETHER]
    if len(group) == 1:
        return None
    gemms = _apart(group, context, plain)
    if gemms is None:
        return None
    absorbed = [name for gemm in gemms for name in gemm.epilogue.absorbed]
    names = [each.name for each in group]
    alone = [gemm for gemm in (_gemm(each, context, frozenset(), plain) for each in group) if gemm is not None]
    lost = {name for gemm in alone for name in gemm.epilogue.absorbed} - set(absorbed)
    if len(lost) > len(group) - 1 or len(set(absorbed)) < len(absorbed):
        return None
    if not stands(program, template, [*names[1:], *absorbed]):
        return None
    configs = [_config(gemm, program, context.target, len(group)) for gemm in gemms]
    normed = [_normed(gemm, group, template, config, context) for gemm, config in zip(gemms, configs, strict=True)]
    if all(gemm.row_terms is not None for gemm in normed) and stands(program, template, _absorbed(normed, names[1:])):
        gemms = normed
    choices = [
        Kernels(turned(gemm), each, program).choice(config)
        for gemm, config, each in zip(gemms, configs, group, strict=True)
    ]
    made = [choice for choice in choices if choice is not None]
    whole = together([replacement_of(choice) for choice in made], names, program) if len(made) == len(group) else None
    estimate = _estimate(gemms, group, context)
    if whole is None or estimate is None:
        return None
    return Choice(f"triton {len(group)} {template.kind} {configs[0]}", "template", whole, estimate)


def _apart(group: Sequence[Template], context: ChoiceContext, plain: bool) -> list[Gemm] | None:
    """Products with their users, none of which reads what another's kernel writes: in one launch it may not be there
    yet. None where one of them has no kernel."""
    written = {str(each.outputs[0]) for each in group}
    while True:
        found = [_gemm(each, context, frozenset(written - set(each.outputs)), plain) for each in group]
        gemms = [gemm for gemm in found if gemm is not None]
        if len(gemms) < len(group):
            return None
        others = [{name for o in gemms if o is not gemm for name in o.epilogue.loop.writes} for gemm in gemms]
        if all(names.isdisjoint(gemm.epilogue.loop.reads) for names, gemm in zip(others, gemms, strict=True)):
            return gemms
        more = {name for names in others for name in names} - written
        if not more:
            return None
        written |= more


def _left(template: Template) -> object:
    """The activation that a product multiplies."""
    return argument_names(template).get(OPERANDS[template.kind][0])


def _config(gemm: Gemm, program: Program, target: Target, beside: int = 1, paired: bool = False) -> Config:
    """The tile, whose rows are the weights, and parts of the depth enough to keep every multiprocessor busy. beside:
    products in the launch. paired: are there two sums?"""
    product = gemm.products[0]
    limits = figures_of(target, RowsFigures)
    tiles = limits.stored_tiles if product.right.prologue is None else limits.converted_tiles
    alone, of_each, step_bytes, per_unit = tiles
    columns = of_each if paired else alone
    stored = max(program.buffers[name].dtype.itemsize for name in product.right.reads[:1]) << product.right.words
    depth, inner = program.hint(product.k), program.hint(product.depth[-1].size)
    step = step_bytes // stored
    if len(product.depth) > 1:  # a step within one block of scales
        step = next((size for size in (128, 64, 32, 16) if size <= step and inner % size == 0), step)
    count = program.hint(gemm.count) * -(-program.hint(gemm.n) // columns)
    split = 1
    while count * split * beside < per_unit * target.units and depth // (2 * split * step) >= limits.least_steps:
        split *= 2
    few = FEW if program.hint(gemm.m) <= FEW else MOST_ROWS
    return Config(columns, few, step, limits.stages_loads, max(1, columns // limits.warp_columns), split=split)


def _normed(gemm: Gemm, group: Sequence[Template], template: Template, config: Config, context: ChoiceContext) -> Gemm:
    """The product with the norm that makes the activation of all products of the launch, if there is one."""
    program: Program = context.program
    made = with_row_factor(gemm, group, program, THREADS * config.warps)
    others = [each.name for each in group if each is not template]
    if made is None or not stands(program, template, _absorbed([made], others)):
        return gemm
    context.record(
        f"{NAME}, with a norm", "the row fits: where the kernel runs, the norm of the activation is part of it"
    )
    return made


def _absorbed(gemms: Sequence[Gemm], more: Sequence[str]) -> list[str]:
    return list(dict.fromkeys([*more, *(name for gemm in gemms for name in gemm.epilogue.absorbed)]))


def _estimate(gemms: Sequence[Gemm], templates: Sequence[Template], context: ChoiceContext) -> Estimate | None:
    """Returns the time of the products in one launch; None where the library call's is unknown for some of them."""
    parts = [_part(*each, context, len(gemms) > 1) for each in zip(gemms, templates, strict=True)]
    found = [part for part in parts if part is not None]
    if len(found) < len(parts):
        return None
    converted = sum(gemm.products[0].right.prologue is not None for gemm in gemms)
    saved = max(0, converted - 1) * context.target.launch_us  # the other measurement is of one launch
    us, low, high = (sum(getattr(part, name) for part in found) - saved for name in ("us", "low_us", "high_us"))
    return Estimate(us, low, high, " + ".join(dict.fromkeys(part.why for part in found)))


def _part(gemm: Gemm, template: Template, context: ChoiceContext, together: bool) -> Estimate | None:
    """Returns the time of one product: a launch, what is read and written, once, and what it takes to convert weights;
    where nothing is converted, what was measured of the time that the library takes at its best."""
    program, target = context.program, context.target
    limits = figures_of(target, RowsFigures)
    prologue = gemm.products[0].right.prologue
    if prologue is None:
        call = context.estimate(template)
        if limits.as_stored is None or call is None:
            return None
        columns, depth = (program.hint(size) * gemm.dtype.itemsize for size in (gemm.n, gemm.products[0].k))
        if depth % ALIGNED:
            return None
        alone, small, unaligned, of_several = limits.as_stored
        share = alone if program.hint(gemm.count * gemm.n) * depth >= limits.large_bytes else small
        share = of_several if together else unaligned if columns % ALIGNED else share
        us = share * call.low_us
        return Estimate(us, us, us, f"{share} of the library at its best, as measured")
    touched = {name for product in gemm.products for name in product.reads}
    touched |= {name for name in (*gemm.epilogue.loop.reads, *gemm.epilogue.loop.writes) if name in program.buffers}
    gathered = _gathered(gemm)
    moved = sum(program.hint(program.buffers[name].nbytes) for name in touched - gathered)
    weights = program.hint(gemm.count * gemm.n) * sum(program.hint(product.k) for product in gemm.products)
    for buffer in (program.buffers[name] for name in gathered):
        moved += min(weights * buffer.dtype.itemsize, program.hint(buffer.nbytes))
    bounds = (
        memory(moved, target, Share(*limits.reached_shares)),
        vector(2 * weights * len(prologue.nodes) * INSTRUCTIONS, target),
    )
    return time_of(bounds, target, why=f"{moved / 1e6:.3g} MB at {target.bandwidth / 1e3:.4g} GB/s")


def _gathered(gemm: Gemm) -> set[str]:
    """Buffers of which the weights are some rows."""
    loops = [product.right.prologue for product in gemm.products if product.right.prologue is not None]
    return {node.buffer for loop in loops for node in loop.loads if node.indirect}
