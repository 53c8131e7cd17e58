"""Covers: the library's calls that compute a Loop, as rows (`COVERS`), and the pass that puts them in Loops' places.

In and out: a Program. A row has the call, the pattern of a sum of products that the call computes, the types that the
call multiplies in, and the conditions under which the Loop may be the call. As a Loop every output loads all of its
values, so that m * n * k values pass through the caches for m * k + n * k in memory. The library loads each of them
once for a whole tile. Which of the two runs is decided by the cost model, with the reason on record.

A product that is found becomes a Template, as though the program had called it: what computes its operands, and what
is done with its result, are loops around it. A group of factors that is one tensor is read in place where its strides
allow that; else a loop writes the group's product out. The library writes where the sum was stored, where it can.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from typing import Any

import torch

from litz.cost import count_work
from litz.cost.roofline import estimate_work
from litz.ir import Buffer, Extern, Layout, Loop, Node, Operation, Program, Range, Store, Template, TensorRef, build
from litz.ir.build import call, cast, load
from litz.ir.dtypes import HALF
from litz.ir.index import ONE, ZERO, Expr, Symbol, flat_index, loop_var, product, stride_of
from litz.ir.node import intern, uncast, walk, with_args
from litz.ir.pattern import fits
from litz.ir.transform import map_stores, rename_nodes
from litz.schedule import CostModel
from litz.schedule.inline import TooComplex
from litz.schedule.simplify import remove_dead_operations
from litz.target import CacheFigures, Room, figures_of
from litz_plugins import PassContext, Target

from ..epilogue import exchanged
from ..module import Unsuitable
from .broadcast import Product, exact, find_product, sum_in

LEAST = 16
"""The rows, the columns and the depth of a product from which on a library's tile is not mostly empty."""


@dataclass(frozen=True)
class BroadcastFigures(Room):
    """Figures of sums as products, which `figures/any/broadcast.toml` explains."""

    table = "broadcast"
    most_terms: int
    least_cpu_terms: int
    least_cpu_half_terms: int


# ---------------------------------------------------------------------------------------------------------------- rows


@dataclass(frozen=True)
class Found:
    """A Loop's sum that is a product, and the type that the library multiplies in."""

    loop: Loop
    total: Node
    product: Product
    dtype: torch.dtype
    program: Program
    target: Target

    def count(self, *variables: Symbol) -> int:
        """Returns the likely number of the places along these axes."""
        return self.program.hint(product(self.loop.extents[var] for var in variables))


@dataclass(frozen=True)
class Cover:
    """A library call for a Loop that sums products. axes: of each operand's dimensions, as `Product` names them; the
    result has those of both that stay. processor: whether the call is for processors, for the other devices, or (None)
    for all. types: that hold every factor and the sum. multiplied: the type of the operands and the result; None for
    the factors' own. conditions: words of `CONDITIONS`."""

    call: torch._ops.OpOverload
    axes: tuple[tuple[str, ...], tuple[str, ...]]
    processor: bool | None
    types: Sequence[torch.dtype]
    multiplied: torch.dtype | None
    conditions: str

    @property
    def kind(self) -> str:
        """Returns the kind of Template that the call is."""
        return str(self.call._schema.name).removeprefix("aten::")

    @property
    def result(self) -> tuple[str, ...]:
        """Returns the axes of the result's dimensions."""
        return tuple(dict.fromkeys(axis for side in self.axes for axis in side if axis != "depth"))

    def matches(self, found: Product, target: Target) -> bool:
        """Returns whether the call computes this product on this device, its conditions aside."""
        there = {axis for axis in ("batch", "rows", "columns", "depth") if getattr(found, axis)}
        wanted = {axis for side in self.axes for axis in side}
        here = self.processor is None or self.processor is ("blocks" not in target.abilities)
        return there == wanted and here and found.dtype in self.types


def _full(found: Found) -> str:
    for what in ("rows", "columns", "depth"):
        extent = found.count(*getattr(found.product, what))
        if extent < LEAST:
            return f"{what} of {extent}: a library's tile would be mostly empty"
    return ""


def _whole_bits(found: Found) -> str:
    if found.dtype == torch.float32 and "matmul" in found.target.tf32:
        return "the library would multiply in fewer bits, which torch's settings allow to products of matrices alone"
    return ""


def _few_terms(found: Found) -> str:
    most = figures_of(found.target, BroadcastFigures).most_terms
    many = found.count(*found.product.depth) > most and found.total.dtype == found.dtype
    return f"sums of more than {most} terms are more exact as a loop" * many


def _many_products(found: Found) -> str:
    points = found.count(*(r.var for r in found.loop.all_ranges))
    limits = figures_of(found.target, BroadcastFigures)
    halves = any(exact(each).dtype in HALF for each in (*found.product.left, *found.product.right))
    few = points < (limits.least_cpu_half_terms if halves else limits.least_cpu_terms)
    return "so few terms take no longer as a loop" * few


def _repeats(found: Found) -> str:
    asked = torch.are_deterministic_algorithms_enabled()
    return "torch's deterministic mode refuses the library's products, and no sum" * asked


def _wide_sums(found: Found) -> str:
    narrow = found.dtype == torch.float16 and getattr(torch.backends.cuda.matmul, "allow_fp16_accumulation", False)
    return "torch's settings allow products of matrices alone to add up in float16" * narrow


CONDITIONS: Mapping[str, Callable[[Found], str]] = {
    "full": _full,
    "whole_bits": _whole_bits,
    "few_terms": _few_terms,
    "many_products": _many_products,
    "repeats": _repeats,
    "wide_sums": _wide_sums,
}
"""The words for what a cover demands; each row says why a Loop has to stay one, '' for nothing. full: each edge of the
product fills a tile. whole_bits: no bits of float32 are lost. few_terms: the library's sum is as exact as the Loop's,
or the sum is rounded to fewer bits. many_products: the library's start is a small part of its time. repeats: the call
is one that torch lets run. wide_sums: of float16 in float32."""

MATRICES = (("rows", "depth"), ("depth", "columns"))
BATCHES = (("batch", "rows", "depth"), ("batch", "depth", "columns"))
ON_GPUS = (False, (*HALF, torch.float32, torch.float64), None, "whole_bits full few_terms repeats wide_sums")
ON_PROCESSORS = (True, (torch.float32, torch.float64), None, "whole_bits full few_terms many_products")
HALVES_ON_PROCESSORS = (True, tuple(HALF), torch.float32, "whole_bits full few_terms many_products")
"""Processors' libraries differ in how fast they multiply half types, and in what they add them up in. So the operands
become float32, whose products are exact, and the sum is rounded once."""

aten = torch.ops.aten
COVERS = tuple(
    Cover(op, axes, *where)
    for op, axes in ((aten.mm.default, MATRICES), (aten.bmm.default, BATCHES))
    for where in (ON_GPUS, ON_PROCESSORS, HALVES_ON_PROCESSORS)
)
"""Which call computes which product, the first that matches."""


# ------------------------------------------------------------------------------------------------------------ the pass


@dataclass(frozen=True)
class Covered:
    """The operations that take a loop's place, in order, with the library's call among them, and their buffers. moved:
    the buffer of the loop's that the call itself writes, if it does, and the groups of its dimensions that are now one
    each."""

    operations: tuple[Operation, ...]
    buffers: tuple[Buffer, ...]
    moved: tuple[str, tuple[tuple[int, ...], ...]] | None = None


def contract_broadcast_products(program: Program, context: PassContext) -> Program:
    """Turns sums of broadcast products into products of matrices, where those are faster (a pass)."""
    costs = CostModel(program, context.target_of, context.ask)
    operations: list[Operation] = []
    buffers = dict(program.buffers)
    moved: dict[str, tuple[tuple[int, ...], ...]] = {}
    for operation in program.operations:
        made = _considered(operation, program, costs, context) if isinstance(operation, Loop) else None
        operations += [operation] if made is None else made.operations
        if made is not None:
            buffers |= {buffer.name: buffer for buffer in made.buffers}
            moved |= dict([made.moved] if made.moved is not None else [])
    if buffers == program.buffers and not moved:
        return program
    operations = [_reading(each, moved, program) for each in operations]
    return remove_dead_operations(replace(program, operations=tuple(operations), buffers=buffers), context)


def _considered(loop: Loop, program: Program, costs: CostModel, context: PassContext) -> Covered | None:
    """Returns what takes the place of a loop that is better off as a library call; None for all others."""
    total = sum_in(loop)
    if total is None:
        return None
    subject, target = f"sum {loop.name}", context.target_of(loop.device)
    try:
        sum_of = find_product(loop, total, program)
        cover = next((row for row in COVERS if row.matches(sum_of, target)), None)
        if cover is None:
            return None
        found = Found(loop, total, sum_of, cover.multiplied or sum_of.dtype, program, target)
        if why := next(filter(None, (CONDITIONS[word](found) for word in cover.conditions.split())), ""):
            raise Unsuitable(why)
    except (TooComplex, Unsuitable) as reason:
        if message := str(reason):
            context.record(subject, "a loop", message, about=loop.name)
        return None
    made = _covered(found, cover)
    as_loop, as_product = _times(found, made, costs, context)
    pays, why = context.weigh(loop.name, as_product < as_loop, as_loop, as_product)
    ways = (("a loop", as_loop), ("a product of matrices", as_product))
    gain = "each operand's values are loaded once for a tile of outputs, not once for each output"
    because = why or (gain if pays else "a product of matrices takes longer")
    context.record(subject, ways[pays][0], because, ways, about=loop.name)
    return made if pays else None


# ---------------------------------------------------------------------------------------------------------- operations


def _covered(found: Found, cover: Cover) -> Covered:
    """Returns the library's call, the loops that write its operands where they have to be written, and the loop that
    stores its result where the sum was stored, unless the call does."""
    loop, stem, origins = found.loop, found.loop.name, found.product.origins
    makers: list[Operation] = []
    buffers: list[Buffer] = []
    refs: list[TensorRef] = []
    sides = zip(("left", "right"), (found.product.left, found.product.right), cover.axes, strict=True)
    for name, factors, axes in sides:
        operand = _Operand(f"{stem}_{name}", factors, tuple(getattr(found.product, axis) for axis in axes))
        ref = operand.in_place(found)
        if ref is None:
            maker, buffer, ref = operand.written(found)
            makers.append(maker)
            buffers.append(buffer)
        refs.append(ref)
    whole = tuple(getattr(found.product, axis) for axis in cover.result)
    moved = _written_by_call(found, whole)
    name = f"{stem}_product" if moved is None else loop.stores[0].buffer  # of the result
    result = Buffer(name, found.dtype, loop.device, Layout.contiguous(_sizes(whole, loop)))
    outputs: dict[str, Any] = {"outputs": (name,), "origins": origins}
    template = Template(f"{stem}_product", loop.device, cover.call, tuple(refs), **outputs, kind=cover.kind)
    if moved is not None:
        return Covered((*makers, template), (*buffers, result), (name, moved))
    value = cast(load(name, tuple(_flat(group, loop) for group in whole), found.dtype), found.total.dtype)
    last = replace(loop, reduction_ranges=(), stores=exchanged(loop.stores, found.total, value))
    return Covered((*makers, template, last), (*buffers, result))


def _written_by_call(found: Found, whole: Sequence[tuple[Symbol, ...]]) -> tuple[tuple[int, ...], ...] | None:
    """Returns which dimensions of the loop's buffer each dimension of the product is, where the buffer holds nothing
    but the product, in its order; None where a loop has to store the product."""
    loop, store, program = found.loop, found.loop.stores[0], found.program
    buffer = program.buffers[store.buffer]
    if store.value is not found.total or buffer.dtype != found.dtype or program.maker(buffer.name) is not loop:
        return None
    if not fits("temporary unshared", buffer.name, program) or buffer.layout != Layout.contiguous(buffer.layout.size):
        return None
    dims = [dim for dim, index in enumerate(store.index) if index != ZERO]
    if [store.index[dim] for dim in dims] != [var for group in whole for var in group]:
        return None
    if any(buffer.layout.size[dim] != loop.extents[store.index[dim]] for dim in dims):
        return None
    if product(buffer.layout.size) != product(_sizes(whole, loop)):
        return None
    readers = program.readers[buffer.name]
    loads = [node for each in readers if isinstance(each, Loop) for node in each.loads if node.buffer == buffer.name]
    if any(type(each) not in (Extern, Template, Loop) for each in readers) or any(node.args for node in loads):
        return None
    left = iter(dims)
    return tuple(tuple(next(left) for _ in group) for group in whole)


def _reading(operation: Operation, moved: Mapping[str, Sequence[Sequence[int]]], program: Program) -> Operation:
    """Returns a loop that reads buffers whose dimensions are now these groups of those that they were; any other
    operation as it is. program: with the buffers as they were."""
    if not isinstance(operation, Loop) or moved.keys().isdisjoint(operation.reads):
        return operation

    def change(node: Node, args: tuple[Node, ...]) -> Node:
        if node.op != "load" or node.buffer not in moved:
            return with_args(node, args)
        size, index = program.buffers[node.buffer].layout.size, node.index
        grouped = tuple(_joined([(index[dim], size[dim]) for dim in group]) for group in moved[node.buffer])
        return intern("load", node.dtype, args, (node.buffer, grouped, *node.attrs[2:]))

    return replace(operation, stores=map_stores(operation.stores, change))


def _sizes(groups: Sequence[tuple[Symbol, ...]], loop: Loop) -> tuple[Expr, ...]:
    return tuple(product(loop.extents[var] for var in group) for group in groups)


def _flat(group: tuple[Symbol, ...], loop: Loop) -> Expr:
    """Returns the position in one dimension that several axes make together."""
    return _joined([(var, loop.extents[var]) for var in group])


def _joined(places: Sequence[tuple[Expr, Expr]]) -> Expr:
    """Returns the position in one dimension of positions in several, each with its size."""
    positions, sizes = zip(*places) if places else ((), ())
    return flat_index(positions, Layout.contiguous(sizes).stride, ZERO)


@dataclass(frozen=True)
class _Operand:
    """An operand of the product: its factors, and the axes in each of its dimensions."""

    name: str
    factors: tuple[Node, ...]
    groups: tuple[tuple[Symbol, ...], ...]

    def in_place(self, found: Found) -> TensorRef | None:
        """Returns the operand as a view of the one tensor that it is; None where it is none that a library takes."""
        loop, buffers, node = found.loop, found.program.buffers, uncast(self.factors[0])
        if len(self.factors) > 1 or node.op != "load" or node.args or buffers[node.buffer].dtype != found.dtype:
            return None
        flat = flat_index(node.index, buffers[node.buffer].layout.stride, ZERO)
        strides: list[Expr] = []
        for group in self.groups:
            steps = [step for var in group if (step := stride_of(flat, var)) is not None]
            if len(steps) < len(group):
                return None
            for (_, step), (inner, following) in pairwise(zip(group, steps, strict=True)):
                if (step - following * loop.extents[inner]).expand() != 0:
                    return None
            strides.append(steps[-1])
        size = _sizes(self.groups, loop)
        if not _dense(size[-2:], strides[-2:]):
            return None
        offset = flat.xreplace(dict.fromkeys(loop.extents, ZERO))
        return TensorRef(node.buffer, Layout(size, tuple(strides), offset))

    def written(self, found: Found) -> tuple[Loop, Buffer, TensorRef]:
        """Returns the loop that writes the operand out, its buffer, and the operand as a view of that. Values that lie
        side by side in a factor do so in the buffer, since the library takes rows and columns alike."""
        loop, dtype = found.loop, found.dtype
        *outer, near, last = self.groups
        turned = self._dense_along(near, found) > self._dense_along(last, found)
        groups = (*outer, last, near) if turned else self.groups
        axes = [var for group in groups for var in group]
        ranges = tuple(Range(loop_var(n), loop.extents[var]) for n, var in enumerate(axes))
        mapping: dict[Symbol, Expr] = {r.var: ZERO for r in loop.all_ranges if r.size == ONE}
        mapping |= {var: r.var for var, r in zip(axes, ranges, strict=True)}
        values = rename_nodes(self.factors, mapping, {r.var: r.size for r in ranges})
        value = reduce(lambda product, factor: call("mul", product, factor), (cast(each, dtype) for each in values))
        buffer = Buffer(self.name, dtype, loop.device, Layout.contiguous(tuple(r.size for r in ranges)))
        store = Store(self.name, tuple(r.var for r in ranges), cast(value, dtype))
        maker = Loop(self.name, loop.device, ranges, (), (store,), found.product.origins)
        layout = Layout.contiguous(_sizes(groups, loop))
        if turned:
            layout = Layout(_sizes(self.groups, loop), (*layout.stride[:-2], layout.stride[-1], layout.stride[-2]))
        return maker, buffer, TensorRef(self.name, layout)

    def _dense_along(self, group: Sequence[Symbol], found: Found) -> int:
        """Returns how many of the factors' loads have neighbours side by side."""
        buffers = found.program.buffers
        loads = [node for node in walk(*self.factors) if node.op == "load" and node.buffer in buffers]
        steps = (flat_index(node.index, buffers[node.buffer].layout.stride, ZERO) for node in loads)
        return sum(stride_of(step, group[-1]) == ONE for step in steps)


def _dense(size: Sequence[Expr], stride: Sequence[Expr]) -> bool:
    """Returns whether a matrix lies in memory as BLAS takes it: its rows or columns dense, and none over another."""
    ways = ((0, 1), (1, 0))
    return any(stride[unit] == ONE and (stride[other] - size[unit]).is_nonnegative for unit, other in ways)


# --------------------------------------------------------------------------------------------------------------- times


def _times(found: Found, made: Covered, costs: CostModel, context: PassContext) -> tuple[float, float]:
    """Returns the microseconds of the sum as a loop, which multiplies as it sums, and as a product of matrices with the
    loops around it."""
    loop, total, program, target = found.loop, found.total, found.program, found.target
    factors = (cast(factor, found.dtype) for factor in (*found.product.left, *found.product.right))
    term = cast(reduce(lambda product, factor: call("mul", product, factor), factors), total.args[0].dtype)
    summed = replace(loop, stores=exchanged(loop.stores, total, build.reduce("sum", term)))
    buffers = {**program.buffers, **{buffer.name: buffer for buffer in made.buffers}}
    after = CostModel(replace(program, operations=made.operations, buffers=buffers), context.target_of, context.ask)
    us = 0.0
    for operation in made.operations:
        if isinstance(operation, Loop):
            us += after.cost(operation).us
        else:
            us += estimate_work(count_work(operation, after.program, target), target).us
    as_loop = costs.cost(summed).us
    if "blocks" in target.abilities:
        loaded = sum(node.dtype.itemsize for node in summed.loads if summed.levels[node])
        points = program.hint(summed.numel) * program.hint(summed.reduction_numel)
        times = figures_of(target, CacheFigures).reloaded_times
        as_loop = max(as_loop, points * loaded / (target.usual_bandwidth * times))
    return as_loop, us
