"""Products of matrices that a model writes out by broadcasting: `(a[:, :, None] * b[None]).sum(1)`.

In and out: a Program. A sum of products in which each of two groups of factors varies along axes that the other does
not is a product of matrices:

    sum over k of a[b, m, k] * c[b, n, k]  =  bmm(a, c.transpose(1, 2))[b, m, n]

As a loop every output loads all of its values, so that m * n * k values pass through the caches for m * k + n * k in
memory. The library loads each of them once for a whole tile. The product becomes a Template, a contraction like any
other: what computes its operands, and what is done with its result, are loops around it.

Factors are followed through the multiplications and copies that make them, whatever loops those are in. A group that
is one tensor is read in place where its strides allow that; else a loop writes the group's product out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from math import prod

import torch

from litz.cost import count_work
from litz.cost.roofline import estimate_work
from litz.ir import Buffer, Layout, Loop, Node, Operation, Program, Range, Store, Template, TensorRef
from litz.ir.build import call, cast, load
from litz.ir.index import ONE, ZERO, Expr, Symbol, flat_index, loop_var, product, stride_of, symbols_in
from litz.ir.node import uncast, walk, with_args
from litz.ir.operation import expressions
from litz.ir.pattern import fits
from litz.ir.transform import map_stores, rename_nodes
from litz.schedule import CostModel
from litz.schedule.inline import Body, TooComplex
from litz.schedule.simplify import remove_dead_operations
from litz.target import CacheFigures, Room, figures_of
from litz_plugins import PassContext, Target

from .gemm import Unsuitable

TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
LEAST = 16
"""The rows, the columns and the depth of a product from which on a library's tile is not mostly empty."""


@dataclass(frozen=True)
class BroadcastFigures(Room):
    """Figures of sums as products, which `figures/any/broadcast.toml` explains."""

    table = "broadcast"
    most_terms: int
    least_cpu_terms: int


MOST_FACTORS = 8
"""The factors of a sum's term, at most: each way to divide them in two groups is looked at."""
MOST_NODES = 200
"""The operations on a sum's term, at most."""

Variables = frozenset[Symbol]


@dataclass(frozen=True)
class Groups:
    """The axes of a product, as variables of the loop: those of both operands that stay (batch), those of the left
    alone (rows), of the right alone (columns), and those that are summed (depth)."""

    batch: tuple[Symbol, ...]
    rows: tuple[Symbol, ...]
    columns: tuple[Symbol, ...]
    depth: tuple[Symbol, ...]


@dataclass(frozen=True)
class Product:
    """A sum as a product of matrices: the factors of each operand, its axes, and the type that holds every factor.
    origins: names of the graph's nodes that it computes."""

    left: tuple[Node, ...]
    right: tuple[Node, ...]
    groups: Groups
    dtype: torch.dtype
    origins: tuple[str, ...]


@dataclass(frozen=True)
class Contracted:
    """The operations that take a loop's place, in order, with the product among them, and their new buffers."""

    operations: tuple[Operation, ...]
    buffers: tuple[Buffer, ...]


def contract_broadcast_products(program: Program, context: PassContext) -> Program:
    """Turns sums of broadcast products into products of matrices, where those are faster (a pass)."""
    costs = CostModel(program, context.target_of, context.ask)
    operations: list[Operation] = []
    buffers = dict(program.buffers)
    for operation in program.operations:
        made = _considered(operation, program, costs, context) if isinstance(operation, Loop) else None
        operations += [operation] if made is None else made.operations
        buffers |= {buffer.name: buffer for buffer in (() if made is None else made.buffers)}
    if len(buffers) == len(program.buffers):
        return program
    return remove_dead_operations(replace(program, operations=tuple(operations), buffers=buffers), context)


def _considered(loop: Loop, program: Program, costs: CostModel, context: PassContext) -> Contracted | None:
    """Returns what takes the place of a loop that is better off as a product of matrices; None for all others."""
    total = _sum_in(loop)
    if total is None:
        return None
    subject, target = f"sum {loop.name}", context.target_of(loop.device)
    try:
        found = find_product(loop, total, program)
        if why := _obstacle(loop, total, found, program, target):
            raise Unsuitable(why)
    except (TooComplex, Unsuitable) as reason:
        if message := str(reason):
            context.record(subject, "a loop", message, about=loop.name)
        return None
    made = _contracted(loop, total, found, program)
    as_loop, as_product = _times(loop, total, found, made, program, costs, context)
    pays, why = context.weigh(loop.name, as_product < as_loop, as_loop, as_product)
    ways = (("a loop", as_loop), ("a product of matrices", as_product))
    if not pays:
        context.record(subject, "a loop", why or "a product of matrices takes longer", ways, about=loop.name)
        return None
    because = why or "each operand's values are loaded once for a tile of outputs, not once for each output"
    context.record(subject, "a product of matrices", because, ways, about=loop.name)
    return made


def _sum_in(loop: Loop) -> Node | None:
    """Returns the loop's sum, where that is all that it reduces, of real numbers, into one tensor."""
    if len(loop.stores) != 1 or not loop.stores[0].is_plain or loop.at_reduction_level(loop.stores[0]):
        return None
    if not any(r.size != ONE for r in loop.reduction_ranges):
        return None
    found = [node for node in loop.nodes if node.op in ("reduce", "scan")]
    if len(found) != 1 or found[0].op != "reduce" or found[0].attrs[0] != "sum" or found[0].dtype not in TYPES:
        return None
    return found[0]


# ------------------------------------------------------------------------------------------------------------- factors


def find_product(loop: Loop, total: Node, program: Program) -> Product:
    """Returns the product of matrices that a sum of products is. loop: what sums, with one store. total: the sum among
    its nodes. Raises Unsuitable: its message says why the sum is none, or is "" for a sum that is not like one."""
    found = _Factors(loop, program)
    factors = found.of(total.args[0])
    if not 2 <= len(factors) <= MOST_FACTORS:
        raise Unsuitable("" if len(factors) < 2 else f"its terms have {len(factors)} factors")
    known = [found.variables(factor) for factor in factors]
    sizes = {var: program.hint(size) for var, size in loop.extents.items()}
    summed = frozenset(r.var for r in loop.reduction_ranges) & found.whole
    best: tuple[int, int, Variables, Variables] | None = None
    for chosen in range(1, 1 << (len(factors) - 1)):  # the last factor is always of the right operand
        left, right = (
            frozenset[Symbol]().union(*(own for n, own in enumerate(known) if bool(chosen >> n & 1) is side))
            for side in (True, False)
        )
        if not (summed <= left and summed <= right) or left <= right or right <= left:
            continue
        elements = sum(prod(sizes[var] for var in side) for side in (left, right))
        if best is None or elements < best[0]:
            best = elements, chosen, left, right
    if best is None:
        raise Unsuitable("")
    _, chosen, left, right = best
    own = tuple(r.var for r in loop.ranges)
    groups = Groups(
        tuple(var for var in own if var in left and var in right),
        tuple(var for var in own if var in left and var not in right),
        tuple(var for var in own if var in right and var not in left),
        tuple(r.var for r in loop.reduction_ranges if r.var in summed),
    )
    sides = [tuple(f for n, f in enumerate(factors) if bool(chosen >> n & 1) is side) for side in (True, False)]
    dtype = reduce(torch.promote_types, (factor.dtype for factor in factors), total.dtype)
    return Product(sides[0], sides[1], groups, dtype, tuple(dict.fromkeys((*found.origins, *loop.origins))))


class _Factors:
    """Takes the terms of a loop's sum apart, through the loops that multiply and copy."""

    def __init__(self, loop: Loop, program: Program) -> None:
        self.program, self.extents = program, loop.extents
        self.origins: list[str] = []
        self.whole = frozenset(r.var for r in loop.all_ranges if r.size != ONE)

    def of(self, node: Node) -> list[Node]:
        """Returns the factors of a term, none of which varies along all axes. Raises Unsuitable if there is one that
        does and is no product."""
        node = self.behind(node)
        if self.variables(node) != self.whole:
            return [node]
        inner = uncast(node)
        if inner.op == "mul":
            return [factor for arg in inner.args for factor in self.of(arg)]
        if inner.op == "load" and (body := self.body(inner)) is not None:
            value = body.at(inner, self.extents)
            if uncast(value).op == "mul" and sum(1 for _ in walk(value)) <= MOST_NODES:
                self.origins += body.origins
                return self.of(value)
        raise Unsuitable("")

    def behind(self, node: Node) -> Node:
        """Returns the value that a copy was made of."""
        inner = uncast(node)
        while inner.op == "load" and (body := self.body(inner)) is not None:
            value = body.at(inner, self.extents)
            source = uncast(value)
            if source.op != "load" or source.args or source.dtype != inner.dtype:
                return node
            self.origins += body.origins
            node = inner = source
        return node

    def body(self, at: Node) -> Body | None:
        """Returns what computes a value that is loaded, if its operands still have the values that it was computed
        of."""
        maker = self.program.maker(at.buffer)
        body = None if at.args or maker is None or not self._stays(at.buffer) else Body.of(maker)
        return body if body is not None and all(map(self._stays, body.loop.reads)) else None

    def _stays(self, name: str) -> bool:
        """Has a buffer one value only, from where it is first written?"""
        once = len(self.program.writers[name]) <= (self.program.buffers[name].kind == "temporary")
        return once and fits("unshared", name, self.program)

    def variables(self, node: Node) -> Variables:
        """Returns the axes of more than one place that a value varies along."""
        return self.whole & symbols_in(tuple(expr for each in walk(node) for expr in expressions(each)))


# ------------------------------------------------------------------------------------------------------------- product


def _obstacle(loop: Loop, total: Node, found: Product, program: Program, target: Target) -> str:
    """Returns why the sum has to stay a loop, '' for nothing."""
    if "blocks" not in target.abilities and found.dtype.itemsize < 4:
        return f"processors differ in how fast their libraries multiply {found.dtype}"
    limits = figures_of(target, BroadcastFigures)
    points = program.hint(loop.numel) * program.hint(loop.reduction_numel)
    if found.dtype == torch.float32 and "matmul" in target.tf32:
        return "the library would multiply in fewer bits, which torch's settings allow to products of matrices alone"
    for what, group in (("rows", found.groups.rows), ("columns", found.groups.columns), ("depth", found.groups.depth)):
        extent = program.hint(product(loop.extents[var] for var in group))
        if extent < LEAST:
            return f"{what} of {extent}: a library's tile would be mostly empty"
    if extent > limits.most_terms:
        return f"sums of more than {limits.most_terms} terms are more exact as a loop"
    if "blocks" not in target.abilities and points < limits.least_cpu_terms:
        return "so few terms take no longer as a loop"
    return ""


def _contracted(loop: Loop, total: Node, found: Product, program: Program) -> Contracted:
    """Returns the product of matrices, the loops that write its operands where they have to be written, and the loop
    that stores its result where the sum was stored."""
    groups, dtype, stem = found.groups, found.dtype, loop.name
    left = _Operand(f"{stem}_left", found.left, groups.batch, groups.rows, groups.depth)
    right = _Operand(f"{stem}_right", found.right, groups.batch, groups.depth, groups.columns)
    makers: list[Operation] = []
    buffers: list[Buffer] = []
    refs: list[TensorRef] = []
    for operand in (left, right):
        ref = operand.in_place(loop, program, dtype)
        if ref is None:
            maker, buffer, ref = operand.written(loop, dtype, found.origins)
            makers.append(maker)
            buffers.append(buffer)
        refs.append(ref)
    whole = [tuple(group) for group in (groups.batch, groups.rows, groups.columns)][0 if groups.batch else 1 :]
    result = Buffer(f"{stem}_product", dtype, loop.device, Layout.contiguous(_sizes(whole, loop)))
    target = torch.ops.aten.bmm.default if groups.batch else torch.ops.aten.mm.default
    kind = "bmm" if groups.batch else "mm"
    template = Template(
        result.name, loop.device, target, tuple(refs), outputs=(result.name,), origins=found.origins, kind=kind
    )
    position = tuple(_flat(group, loop) for group in whole)
    value = cast(load(result.name, position, dtype), total.dtype)
    stores = map_stores(loop.stores, lambda node, args: value if node is total else with_args(node, args))
    last = replace(loop, reduction_ranges=(), stores=stores)
    return Contracted((*makers, template, last), (*buffers, result))


def _sizes(groups: Sequence[tuple[Symbol, ...]], loop: Loop) -> tuple[Expr, ...]:
    return tuple(product(loop.extents[var] for var in group) for group in groups)


def _flat(group: tuple[Symbol, ...], loop: Loop) -> Expr:
    """Returns the position in one dimension that several axes make together."""
    position: Expr = ZERO
    for var in group:
        position = position * loop.extents[var] + var
    return position.expand()


@dataclass(frozen=True)
class _Operand:
    """An operand of the product, (batch, outer, inner), of the axes in each; of a product without a batch (outer,
    inner)."""

    name: str
    factors: tuple[Node, ...]
    batch: tuple[Symbol, ...]
    outer: tuple[Symbol, ...]
    inner: tuple[Symbol, ...]

    @property
    def groups(self) -> tuple[tuple[Symbol, ...], ...]:
        return ((self.batch,) if self.batch else ()) + (self.outer, self.inner)

    def in_place(self, loop: Loop, program: Program, dtype: torch.dtype) -> TensorRef | None:
        """Returns the operand as a view of the one tensor that it is; None where it is none that a library takes."""
        node = uncast(self.factors[0])
        if len(self.factors) > 1 or node.op != "load" or node.args or program.buffers[node.buffer].dtype != dtype:
            return None
        flat = flat_index(node.index, program.buffers[node.buffer].layout.stride, ZERO)
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

    def written(self, loop: Loop, dtype: torch.dtype, origins: tuple[str, ...]) -> tuple[Loop, Buffer, TensorRef]:
        """Returns the loop that writes the operand out, its buffer, and the operand as a view of that."""
        axes = [var for group in self.groups for var in group]
        ranges = tuple(Range(loop_var(n), loop.extents[var]) for n, var in enumerate(axes))
        mapping: dict[Symbol, Expr] = {r.var: ZERO for r in loop.all_ranges if r.size == ONE}
        mapping |= {var: r.var for var, r in zip(axes, ranges, strict=True)}
        values = rename_nodes(self.factors, mapping, {r.var: r.size for r in ranges})
        value = reduce(lambda product, factor: call("mul", product, factor), (cast(each, dtype) for each in values))
        buffer = Buffer(self.name, dtype, loop.device, Layout.contiguous(tuple(r.size for r in ranges)))
        store = Store(self.name, tuple(r.var for r in ranges), cast(value, dtype))
        maker = Loop(self.name, loop.device, ranges, (), (store,), origins)
        return maker, buffer, TensorRef(self.name, Layout.contiguous(_sizes(self.groups, loop)))


def _dense(size: Sequence[Expr], stride: Sequence[Expr]) -> bool:
    """Does a matrix lie in memory as BLAS takes it: its rows or its columns dense, and none over another?"""
    ways = ((0, 1), (1, 0))
    return any(stride[unit] == ONE and (stride[other] - size[unit]).is_nonnegative for unit, other in ways)


# --------------------------------------------------------------------------------------------------------------- times


def _times(
    loop: Loop,
    total: Node,
    found: Product,
    made: Contracted,
    program: Program,
    costs: CostModel,
    context: PassContext,
) -> tuple[float, float]:
    """Returns the microseconds of the sum as a loop, which multiplies as it sums, and as a product of matrices with the
    loops around it."""
    factors = (cast(factor, found.dtype) for factor in (*found.left, *found.right))
    term = reduce(lambda product, factor: call("mul", product, factor), factors)
    summed = replace(
        loop,
        stores=map_stores(
            loop.stores, lambda node, args: with_args(node, (cast(term, args[0].dtype),) if node is total else args)
        ),
    )
    buffers = {**program.buffers, **{buffer.name: buffer for buffer in made.buffers}}
    after = CostModel(replace(program, operations=made.operations, buffers=buffers), context.target_of, context.ask)
    us, target = 0.0, context.target_of(loop.device)
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


__all__ = ["contract_broadcast_products", "find_product"]
