"""Products with few rows on a processor. In: a contraction and where it stands. Out: at most one choice.

The product becomes what it means: a loop that reduces over the depth, with whatever makes the weights in it, for core's
code generator to write (several rows in one walk along the weights: `litz.targets.cpp.jam`). So weights of 8 or 4 bits
are never written out. The few rows of the activation are converted once, by a loop before; where weights are packed
several to an element, value j of each is multiplied with activations that lie together.

A processor differs from the one that was measured, so the figures serve to compare the loop with the library's call on
weights that were written out; both meet the same processor, and a margin is left between them. The file for AVX-512 has
the library's bfloat16 with instructions for it, the fastest there is short of AMX, which has no file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import sympy
import torch

from litz.cost.contractions import argument_names
from litz.ir import Buffer, Layout, Loop, Node, Program, Range, Store, Template, TensorRef
from litz.ir.build import call, cast, load, reduce
from litz.ir.dtypes import HALF
from litz.ir.index import ONE, ZERO, Expr, Symbol, flat_index, reduction_var, stride_of, substitute
from litz.ir.ops import flops_of
from litz.ir.pattern import fits
from litz.ir.transform import rename_nodes, replace_loads
from litz.ir.views import position_in
from litz.schedule.choices import Replacement
from litz.schedule.inline import Body
from litz.target import Room, figures_of, rate_kind
from litz.target.times import NONE, Limit, time_of
from litz_plugins import Choice, ChoiceContext, Estimate, Share, Target

from ..epilogue import ACCUMULATOR, place, stands
from ..module import Unsuitable, offer
from .broadcast import stays
from .gemm import OPERANDS, Gemm, make_gemm
from .lanes import unpacked
from .prologue import MOST_NODES, prologue_of
from .rows import MOST_ROWS

MEASURED = (1, 2, 4, 8, 16)
"""Rows whose products were measured."""
AT_A_TIME = 8
"""Rows in one walk along the weights."""


@dataclass(frozen=True)
class MarginFigures(Room):
    """Figures of two ways of products of few rows, which `figures/any/few_rows_margin.toml` explains."""

    table = "few_rows_margin"
    loop_times: float
    library_share: float
    several_rows: int


@dataclass(frozen=True)
class FewRowFigures(Room):
    """Nanoseconds of one thread for each weight, which `figures/cpu-avx2.toml` explains; None where nobody measured."""

    table = "few_rows"
    multiply_add_ns: float = 0.0
    node_ns: float = 0.0
    written_ns: float = 0.0
    far_ns: float = 0.0
    packed_ns: float = 0.0
    fp32_library_ns: tuple[float, ...] | None = None
    bf16_library_ns: tuple[float, ...] | None = None


@dataclass(frozen=True)
class FewRowsProblem:
    """A product of `rows` activations of type `dtype` with so many weights; nodes: operations that make one. lanes:
    weights in an element of storage."""

    rows: int
    weights: int
    dtype: torch.dtype
    nodes: float
    lanes: int = 1


def compare(problem: FewRowsProblem, on: Target) -> tuple[Estimate, Estimate] | None:
    """Returns the estimates of the loop and of the library's product; None where the library's speed is unknown."""
    known = figures_of(on, FewRowFigures)
    library = {"fp32": known.fp32_library_ns, "bf16": known.bf16_library_ns}.get(rate_kind(problem.dtype))
    if library is None:
        return None
    limits = figures_of(on, MarginFigures)
    share = problem.weights * 1e-3 / on.units
    walks = -(-problem.rows // AT_A_TIME)
    own = share * (known.node_ns * problem.nodes * walks + known.multiply_add_ns * problem.rows)
    product = [time for rows, time in zip(MEASURED, library, strict=True) if rows <= problem.rows][-1]
    written = known.packed_ns if problem.lanes > 1 else known.written_ns
    if problem.weights * problem.dtype.itemsize > on.cache_bytes:
        written = max(written, known.far_ns * problem.dtype.itemsize)
    other = share * (product + written)
    surely = Share(1 / limits.library_share, 1.0, 1 / limits.loop_times)
    ways = (
        Limit(own, surely, f"{problem.rows} rows, {problem.nodes:.3g} operations a weight"),
        Limit(other, surely, "the library's product of weights that are written out"),
    )
    loop, call = (time_of((way,), on, NONE) for way in ways)
    return loop, call


KINDS = ("mm", "addmm")
MARCHES = ("native", "x86-64-v3", "x86-64-v4")
"""What code has to be made for to be as fast as was measured."""
ROUNDING = 8
"""Operations that round a number to a half type."""
GAP = 16
"""Elements: a line of the cache."""


MOST_SUMS = 16
"""Sums that a walk keeps: of each row one for each of the weights in an element."""


@offer("", says="loop {}")
def offer_rows_loop(template: Template, context: ChoiceContext) -> Sequence[Choice]:
    """Returns a loop, as a choice, for a product of few rows whose weights are converted for it; else nothing."""
    if context.target.type != "cpu" or template.kind not in KINDS:
        return ()
    program: Program = context.program
    payload, problem = make_rows_loop(template, program, figures_of(context.target, MarginFigures).several_rows)
    compared = compare(problem, context.target)
    if compared is None or context.options.get("cpp.march", "native") not in MARCHES:
        raise Unsuitable("such products were not measured on this processor")
    estimate, replaced = compared
    return (Choice(f"loop {template.kind}", "template", payload, estimate, replaced),)


def make_rows_loop(template: Template, program: Program, several: int) -> tuple[Replacement, FewRowsProblem]:
    """Returns the product and what makes its weights as one loop, after another that makes its activation if need be,
    and its sizes. several: rows from which on walks along an activation
    as it is get in each other's way. Raises Unsuitable where that cannot be."""
    arguments = argument_names(template)
    left, right = (arguments[name] for name in OPERANDS[template.kind])
    rows, depth = left.layout.size
    if not (rows.is_Integer and 0 < int(rows) <= MOST_ROWS):
        raise Unsuitable(f"the kernel takes 1 to {MOST_ROWS} rows, and the product has {rows}")
    if left.buffer == right.buffer:
        raise Unsuitable("both operands are one buffer")
    gemm = make_gemm(template, program)
    if gemm.accumulate != torch.float32 or not depth.is_Integer or not gemm.n.is_Integer or depth == 0:
        raise Unsuitable(f"sums in {gemm.accumulate} of {depth} products for {gemm.n} columns")
    (product,) = gemm.products
    prologue = prologue_of(right, (*product.depth, *gemm.columns), template, program, last=True)
    if prologue is None:
        raise Unsuitable("no operation makes the weights that the loop could do as it reads them")
    absorbs, prologue = _with_makers(prologue, (program.writers[right.buffer][0].name,), template, program)
    if not stands(program, template, absorbs):
        raise Unsuitable("no place in the program is right for the loop and the operations that make the weights")
    # Positions of the activation are worked out below: the buffer that holds it is not there yet.
    bare = replace(product, left=replace(product.left, position=ZERO), right=replace(product.right, prologue=prologue))
    split = unpacked(replace(gemm, products=(bare,)))
    walking = _along_depth(split, program)
    if not walking:
        raise Unsuitable("its weights do not lie along the depth")
    if max(node.dtype.itemsize for node in walking) >= gemm.dtype.itemsize:
        raise Unsuitable("its weights are not stored in fewer bits than they are multiplied in")
    lanes, walked = len(split.products), split.products[0].depth
    if lanes * min(int(rows), AT_A_TIME) > MOST_SUMS:
        raise Unsuitable(f"{rows} rows of {lanes} sums do not fit in the registers")
    wide = None
    position = position_in(left.layout, program.buffers[left.buffer].layout, (gemm.rows[0], product.depth[0]))
    if position is None:
        raise Unsuitable("its activation is a view of a part of a buffer")
    if len(walked) > 1 or lanes > 1 or int(rows) >= several or program.buffers[left.buffer].dtype != torch.float32:
        wide = _wide(left, lanes, walked, split, template, program)
    ranges = tuple(Range(reduction_var(number), r.size) for number, r in enumerate(walked))
    renamed: dict[Symbol, Expr] = {old.var: new.var for old, new in zip(walked, ranges, strict=True)}
    extents = {r.var: r.size for r in (*gemm.rows, *gemm.columns, *ranges)}
    row = ZERO if gemm.rows[0].size == ONE else gemm.rows[0].var
    total: Node | None = None
    for lane, each in enumerate(split.products):
        assert each.right.prologue is not None
        (weight,) = rename_nodes((each.right.prologue.stores[0].value,), renamed, extents)
        if wide is None:
            (value,) = rename_nodes((load(left.buffer, position, torch.float32),), renamed, extents)
        else:
            place = (row, sympy.Integer(lane), *(r.var if r.size != ONE else ZERO for r in ranges))
            value = load(wide[1].name, place, torch.float32)
        term = reduce("dot", value, cast(weight, torch.float32))
        total = term if total is None else call("add", total, term)
    assert total is not None
    whole = total

    def change(node: Node) -> Node | None:
        return whole if node.buffer == ACCUMULATOR else None

    stores = replace_loads(gemm.epilogue.loop.stores, change)
    loop = replace(
        gemm.epilogue.loop,
        reduction_ranges=ranges,
        stores=stores,
        origins=tuple(dict.fromkeys((*prologue.origins, *template.origins))),
    )
    makers = {node for each in split.products if each.right.prologue for node in each.right.prologue.nodes}
    made = sum(map(_operations, makers)) / lanes
    problem = FewRowsProblem(int(rows), int(depth) * int(gemm.n), gemm.dtype, made, lanes)
    if wide is None or wide[1].name in program.buffers:
        return Replacement((loop,), absorbs=absorbs), problem
    return Replacement((wide[0], loop), (wide[1],), absorbs), problem


def _with_makers(
    prologue: Loop, absorbs: tuple[str, ...], template: Template, program: Program
) -> tuple[tuple[str, ...], Loop]:
    """Returns the names of a weight's makers, and its loop, with loops inlined whose results nobody else reads."""
    while True:
        known = {template.name, *absorbs}
        makers: list[Body] = []
        for name in prologue.reads:
            maker = program.maker(name) if fits("temporary unreturned", name, program, known) else None
            body = None if maker is None or len(maker.nodes) > MOST_NODES else Body.of(maker)
            makers += [] if body is None else [body]
        if not makers:
            return absorbs, prologue
        for body in makers:
            prologue, absorbs = body.into(prologue), (body.loop.name, *absorbs)


def _operations(node: Node) -> int:
    """Returns the cost of a node of the body that makes a weight, in operations of a vector."""
    if node.op == "cast" and node.dtype in HALF and node.args[0].dtype.itemsize > 1:
        return ROUNDING
    return flops_of(node, otherwise=int(node.op not in ("const", "index")))


def _along_depth(gemm: Gemm, program: Program) -> list[Node]:
    """The loads that weights are made of and that walk along the depth, in which neighbours have to lie side by side;
    none where they do not."""
    inner = gemm.products[0].depth[-1].var
    loads = [node for each in gemm.products for node in (each.right.prologue.loads if each.right.prologue else ())]
    walking = [node for node in loads if any(inner in expr.free_symbols for expr in node.index)]
    for node in walking:
        steps = [stride_of(expr, inner) for expr in node.index]
        strides = program.buffers[node.buffer].layout.stride
        total = ZERO
        for step, stride in zip(steps, strides, strict=True):
            if step is None:
                return []
            total = total + step * stride
        if node.args or total != ONE:
            return []
    return walking


def _wide(
    ref: TensorRef, lanes: int, walked: tuple[Range, ...], gemm: Gemm, template: Template, program: Program
) -> tuple[Loop, Buffer]:
    """The activation in float32, as (row, lane, depth): by a loop into a buffer of its own, which products of the same
    activation share. Errors: Unsuitable."""
    own = program.buffers[ref.buffer]
    (row,) = gemm.rows
    whole = Range(Symbol("k", integer=True, nonnegative=True), ref.layout.size[1])
    position = position_in(ref.layout, own.layout, (row, whole))
    assert position is not None
    lane = Range(Symbol("lane", integer=True, nonnegative=True), sympy.Integer(lanes))
    ranges = (row, lane, *walked)
    extents = {r.var: r.size for r in ranges}
    steps = Layout.contiguous(tuple(r.size for r in walked)).stride
    along = flat_index(tuple(r.var for r in walked), steps, ZERO)
    mapping = {whole.var: sympy.expand(along * lanes + lane.var)}
    single: dict[Symbol, Expr] = {r.var: ZERO for r in ranges if r.size == ONE}
    index = tuple(substitute(substitute(expr, mapping, extents), single, extents) for expr in position)
    size = tuple(r.size for r in ranges)
    view = "_".join(map(str, (*ref.layout.size, *ref.layout.stride)))
    name = f"{ref.buffer}_wide_{view}_{'_'.join(map(str, size[1:]))}"
    if not stays(ref.buffer, program):
        name = f"{template.outputs[0]}_{name}"
    buffer = Buffer(name, torch.float32, own.device, _apart(size))
    store = Store(name, place(ranges), cast(load(ref.buffer, index, own.dtype), torch.float32))
    return Loop(name, own.device, ranges, (), (store,)), buffer


def _apart(size: tuple[Expr, ...]) -> Layout:
    """(row, lane, depth...) with a gap after each lane: the walks along all of them would share a few lines of the
    nearest cache otherwise, where the depth is a multiple of 1024."""
    inner = Layout.contiguous(size[2:])
    lane = sympy.prod(size[2:]) + GAP
    return Layout(size, (size[1] * lane, lane, *inner.stride), ZERO)
