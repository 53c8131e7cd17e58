"""Offers: in, a contraction and its context; out, the choices that are worth measuring.

`KINDS` has a row for each kind of contraction: the function that makes a `Gemm` of it.

Each choice does the contraction with as many of its users as one kernel can; where core's fusion could have joined such
a user with something else, the contraction alone is offered too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import sympy
import torch

from litz.cost.contractions import argument_names
from litz.ir import Buffer, KernelCall, Layout, Loop, Operation, Program, Range, Store, Template
from litz.ir.build import cast, load, reduce
from litz.ir.index import reduction_var
from litz.ir.node import Node, with_args
from litz.ir.transform import map_stores, replace_loads
from litz.schedule.choices import Replacement
from litz_plugins import Choice, ChoiceContext, Estimate

from ..epilogue import ACCUMULATOR, Epilogue, fused, fused_rows, others, stands
from ..subprogram import Meaning, cut
from .configs import Config, Shape, rank, spread
from .convolution import make_convolution
from .gemm import OPERANDS, Gemm, Operand, Unsuitable, make_gemm, make_product
from .kernel import Plan, can_use_descriptors, make_plan, write_gemm
from .prologue import with_prologues

SEARCH = {"fast": 4, "default": 12, "exhaustive": 1000}
"""How many configurations are measured, by `autotune.search`."""
MOST_COLUMNS = 256
"""The longest row that a tile holds."""


@dataclass(frozen=True)
class Offer:
    """What can be done for a contraction: choices, and (candidate, why not) of the rest."""

    choices: tuple[Choice, ...]
    rejected: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Kind:
    """make: a contraction of the kind as a product. tf32: the fact of the device that says whether float32 may lose
    bits. splits: may the depth be split?"""

    make: Callable[[Template, Program, bool], Gemm]
    tf32: str = "tf32.matmul"
    splits: bool = True


KINDS: Mapping[str, Kind] = {
    **dict.fromkeys(OPERANDS, Kind(make_gemm)),
    "convolution": Kind(make_convolution, "tf32.convolution", splits=False),
}


def offer_gemm(template: Template, context: ChoiceContext) -> Offer:
    """Kernels for a contraction of one of `KINDS`."""
    program: Program = context.program
    kind, facts = KINDS[template.kind], dict(context.device.facts)
    try:
        gemm = kind.make(template, program, bool(facts.get(kind.tf32)))
    except Unsuitable as why:
        return Offer((), ((f"triton {template.kind}", str(why)),))
    shape = shape_of(gemm, program)
    if 0 in (shape.m, shape.n, shape.batch):
        return Offer((), ((f"triton {template.kind}", "the result is empty"),))
    ranked = rank(shape, context.device, kind.splits)
    count = SEARCH[str(context.options["autotune.search"])]
    epilogues = [*fused(program, template, gemm.epilogue)]
    choices: list[Choice] = []
    both = None if not epilogues else second_product(gemm, epilogues, template, program)
    if both is not None:
        double = replace(shape, k=2 * shape.k, tma=False)
        choices += _choices(both, spread(rank(double, context.device, False).best, count), template, program)
    rows = with_whole_rows(gemm, template, program)
    if rows is not None:
        whole = [item for item in ranked.best if item[0].n >= shape.n and item[0].split == 1]
        choices += _choices(rows, spread(whole, count), template, program)
    made = with_prologues(replace(gemm, epilogue=[gemm.epilogue, *epilogues][-1]), template, program)
    if made is not None:
        choices += _choices(
            made, spread(rank(shape_of(made, program), context.device, False).best, count), template, program
        )
    for epilogue, share in _variants(gemm.epilogue, epilogues, count):
        choices += _choices(replace(gemm, epilogue=epilogue), spread(ranked.best, share), template, program)
    return Offer(tuple(choices), ranked.rejected)


def with_whole_rows(gemm: Gemm, template: Template, program: Program) -> Gemm | None:
    """The product with users that reduce its rows, where a tile has room for whole rows; None where there are none."""
    (*batch, row), (column, *more) = (*gemm.batch, *gemm.rows), gemm.columns
    if more or len(gemm.rows) != 1 or not column.size.is_Integer or int(column.size) > MOST_COLUMNS:
        return None
    epilogue = fused_rows(program, template, gemm.epilogue)
    if epilogue is None:
        return None
    loop = epilogue.loop
    (total,) = {node.index for node in loop.loads if node.buffer == ACCUMULATOR}
    extents = loop.extents
    old = tuple(r.var for r in (*batch, row, column))
    if set(total) != set(extents) or [r.var for r in loop.reduction_ranges] != [total[-1]]:
        return None  # the rows are walked as several ranges
    if any(extents[var] != r.size for var, r in zip(total, (*batch, row, column), strict=True)):
        return None
    names = dict(zip(old, total, strict=True))

    def renamed(operand: Operand) -> Operand:
        return replace(operand, position=operand.position.subs(names, simultaneous=True))

    ranges = [Range(var, extents[var]) for var in total]
    terms = tuple(replace(p, left=renamed(p.left), right=renamed(p.right)) for p in gemm.products)
    return replace(
        gemm,
        batch=tuple(ranges[:-2]),
        rows=(ranges[-2],),
        columns=(ranges[-1],),
        products=terms,
        epilogue=epilogue,
    )


def _choices(
    gemm: Gemm, configs: Sequence[tuple[Config, Estimate]], template: Template, program: Program
) -> list[Choice]:
    shared = _Shared(gemm, template, program)
    found = (make_choice(gemm, config, estimate, template, program, shared) for config, estimate in configs)
    return [choice for choice in found if choice is not None]


def second_product(gemm: Gemm, epilogues: Sequence[Epilogue], template: Template, program: Program) -> Gemm | None:
    """a @ b + c @ d as one sum, where `template` is the first of the two products; None where it is not such a sum.

    Neither product is rounded before they are added, so the result is closer to the exact one than the library's.
    """
    if template.kind != "mm" or gemm.accumulate != torch.float32:
        return None
    epilogue = epilogues[-1]
    for node in epilogue.loop.nodes:
        other = _added_to_sum(node)
        writers = () if other is None else program.writers.get(other.buffer, ())
        if other is None or len(writers) != 1 or not _is_second(writers[0], template, program):
            continue
        second = writers[0]
        assert isinstance(second, Template)
        absorbed = (second.name, *epilogue.absorbed)
        position = tuple(r.var for r in epilogue.loop.ranges)
        readers = {operation.name for operation in program.readers[other.buffer]}
        if other.index != position or other.buffer in program.output_buffers or not readers <= set(absorbed):
            continue
        total = next(load_ for load_ in epilogue.loop.loads if load_.buffer == ACCUMULATOR)
        loop = replace(epilogue.loop, stores=_replaced(epilogue.loop.stores, node, cast(total, node.dtype)))
        if other.buffer in loop.reads or not stands(program, template, absorbed):
            continue
        (row,), (column,) = gemm.rows, gemm.columns
        left, right = second.args
        term = make_product(left, right, program, (), row, column)
        if term.left.dtype != gemm.dtype or term.right.dtype != gemm.dtype:
            continue
        return replace(gemm, products=(*gemm.products, term), epilogue=replace(epilogue, loop=loop, absorbed=absorbed))
    return None


def _added_to_sum(node: Node) -> Node | None:
    """The load that `node` adds to the accumulator, roundings aside; None if it is no such sum."""
    if node.op != "add":
        return None
    first, second = (_unrounded(arg) for arg in node.args)
    total, other = (first, second) if first.op == "load" and first.buffer == ACCUMULATOR else (second, first)
    if total.op != "load" or total.buffer != ACCUMULATOR or total is other:
        return None
    return other if other.op == "load" and other.mask is None and not other.indirect else None


def _unrounded(node: Node) -> Node:
    while node.op == "cast" and node.dtype.is_floating_point and node.args[0].dtype.is_floating_point:
        node = node.args[0]
    return node


def _is_second(operation: Operation, template: Template, program: Program) -> bool:
    return isinstance(operation, Template) and operation.kind == "mm" and operation.name != template.name


def _replaced(stores: tuple[Store, ...], old: Node, new: Node) -> tuple[Store, ...]:
    return map_stores(stores, lambda node, args: new if node is old else with_args(node, args))


def _variants(alone: Epilogue, fused_ones: Sequence[Epilogue], count: int) -> Iterator[tuple[Epilogue, int]]:
    """(epilogue, how many configurations of it)."""
    if not fused_ones:
        yield alone, count
        return
    yield fused_ones[-1], count
    if fused_ones[-1].shared:
        yield alone, max(1, count // 2)


def shape_of(gemm: Gemm, program: Program) -> Shape:
    """The likely sizes of a product."""
    hint = program.hint
    result = [program.buffers[name] for name in gemm.epilogue.writes]
    read = {node.buffer for node in gemm.epilogue.loop.loads} - set(gemm.epilogue.buffers)
    operands = {name for product in gemm.products for o in (product.left, product.right) for name in o.reads}
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


class _Shared:
    """What the kernels of one product share, whatever their configuration; made when it is first needed."""

    def __init__(self, gemm: Gemm, template: Template, program: Program) -> None:
        self._gemm, self._template, self._program = gemm, template, program

    @cached_property
    def plan(self) -> Plan:
        return make_plan(self._gemm, self._program)

    @cached_property
    def meaning(self) -> Meaning:
        names = {self._template.name, *self._gemm.epilogue.absorbed}
        replaced = [op for op in self._program.operations if op.name in names]
        return Meaning(cut(self._program, replaced, self._gemm.epilogue.writes))

    @cached_property
    def others(self) -> str:
        return others(self._program, self._template, self._gemm.epilogue.absorbed)


def make_choice(
    gemm: Gemm,
    config: Config,
    estimate: Estimate | None,
    template: Template,
    program: Program,
    shared: _Shared | None = None,
) -> Choice | None:
    """One configuration as a choice; None where k cannot be split, as the epilogue reads a view."""
    shared = shared or _Shared(gemm, template, program)
    epilogue = gemm.epilogue
    name = f"triton {template.kind} {config}"
    if epilogue.absorbed:
        name += f" with {shared.others}"
    if config.split == 1:
        call = _kernel_call(gemm, config, template, program, shared)
        return Choice(name, "template", Replacement((call,), absorbs=epilogue.absorbed), estimate)
    made = any(operand.prologue is not None for p in gemm.products for operand in (p.left, p.right))
    if set(epilogue.buffers) != {ACCUMULATOR} or len(gemm.products) != 1 or made or epilogue.loop.is_reduction:
        return None
    operations, buffers = _split(gemm, config, template, program)
    return Choice(name, "template", Replacement(operations, buffers, epilogue.absorbed), estimate)


def _kernel_call(gemm: Gemm, config: Config, template: Template, program: Program, shared: _Shared) -> KernelCall:
    """One kernel for the product and its epilogue."""
    return KernelCall(
        template.name,
        template.device,
        shared.meaning,
        shared.meaning.arguments(),
        outputs=gemm.epilogue.writes,
        origins=gemm.epilogue.loop.origins,
        source=write_gemm(gemm, config, program, template.name, plan=shared.plan),
    )


# Split k: partial sums in a kernel, their sum and the epilogue in one of core's own.


def _split(
    gemm: Gemm, config: Config, template: Template, program: Program
) -> tuple[tuple[Operation, ...], tuple[Buffer, ...]]:
    """The operations and the workspace. The partial sums are added in a fixed order, so results repeat bit for bit."""
    workspace = f"{template.outputs[0]}_parts"
    size = (sympy.Integer(config.split), *(r.size for r in (*gemm.batch, *gemm.rows, *gemm.columns)))
    buffer = Buffer(workspace, gemm.accumulate, template.device, Layout.contiguous(size))
    extended = replace(program, buffers={**program.buffers, workspace: buffer})
    parts = _Parts(config.split, gemm.accumulate)
    source = write_gemm(gemm, config, extended, template.name, workspace)
    call = KernelCall(
        template.name,
        template.device,
        parts,
        tuple(argument_names(template)[name] for name in OPERANDS[template.kind]),
        outputs=(workspace,),
        origins=template.origins,
        source=source,
    )
    return (call, _sum_of_parts(gemm, workspace, config.split, template)), (buffer,)


def _sum_of_parts(gemm: Gemm, workspace: str, split: int, template: Template) -> Loop:
    loop, part = gemm.epilogue.loop, reduction_var(0)
    walked = tuple(r.var for r in (*gemm.batch, *gemm.rows, *gemm.columns))

    def change(node: Node) -> Node | None:
        if node.buffer != ACCUMULATOR:
            return None
        return reduce("sum", load(workspace, (part, *walked), node.dtype))

    return replace(
        loop,
        name=f"{template.name}_sum",
        stores=replace_loads(loop.stores, change),
        reduction_ranges=(Range(part, sympy.Integer(split)),),
    )


@dataclass(frozen=True)
class _Parts:
    """The meaning of a split kernel: partial sums, of shape (part, m, n) or (part, batch, m, n)."""

    split: int
    accumulate: torch.dtype

    @property
    def __name__(self) -> str:
        return f"matrix product in {self.split} parts"

    def __call__(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        # Where the cuts lie does not matter: what reads the parts adds them up.
        lefts, rights = left.to(self.accumulate), right.to(self.accumulate)
        chunks = zip(lefts.tensor_split(self.split, -1), rights.tensor_split(self.split, -2))
        return torch.stack([a @ b for a, b in chunks])


__all__ = ["KINDS", "SEARCH", "Offer", "make_choice", "offer_gemm", "shape_of"]
