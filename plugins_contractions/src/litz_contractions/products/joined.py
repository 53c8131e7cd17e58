"""Products that do more. In: a `Gemm`, or two of one activation, and where they stand. Out: the same with a second
product added to it, with the reductions of its rows, or with the second product's sum beside its own; None where there
is nothing of the kind.

Of two products of one activation and what is made of both, silu(x @ gate) * (x @ up), neither is written to memory, and
what follows them is no launch of its own. Both are walked in one loop, so the activation is loaded once for both.

A norm is part of the products of its result: rms_norm(x, g) @ W = ((x * g) @ W) * rsqrt(mean(x * x) + eps). The
activation is then what varies along the depth, the sums are multiplied by the factor that does not, and a program reads
the row that the factor is made of before its walk along the depth, beside its first weights, and adds it up after the
walk. So the norm costs no launch, and the factor is not rounded to a half type before it counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from litz.ir import Buffer, Layout, Loop, Node, Program, Range, Store, Template
from litz.ir.build import call, cast, load
from litz.ir.index import ONE, ZERO, Symbol
from litz.ir.node import replaced, walk
from litz.ir.pattern import Pattern, Value, bind, find
from litz.ir.transform import flatten, rename_nodes, replace_loads
from litz.targets.triton.tile_shape import power_of_two

from ..epilogue import ACCUMULATOR, ROW_SUM, SECOND, SUMS, Epilogue, exchanged, fused, fused_rows, place, stands
from .gemm import Gemm, Product, make_product
from .prologue import OPERAND

ADDED = Value("add", (Value("load", (), "sum", "uncast", ACCUMULATOR), Value("", (), "other", "uncast plain")))

MOST_COLUMNS = 256
"""The longest row that a tile holds."""


def with_whole_rows(gemm: Gemm, template: Template, program: Program) -> Gemm | None:
    """Returns the product with the users that reduce its rows, where a tile has room for whole rows; else None."""
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
    ranges = [Range(var, extents[var]) for var in total]
    terms = tuple(replace(p, left=p.left.at(names), right=p.right.at(names)) for p in gemm.products)
    return replace(
        gemm,
        batch=tuple(ranges[:-2]),
        rows=(ranges[-2],),
        columns=(ranges[-1],),
        products=terms,
        epilogue=epilogue,
    )


def second_product(gemm: Gemm, epilogues: Sequence[Epilogue], template: Template, program: Program) -> Gemm | None:
    """Returns a @ b + c @ d as one sum, where `template` is the first of the two products; None where nothing adds the
    two. Neither product is rounded before they are added, so the result is closer to the exact one than the
    library's."""
    if template.kind != "mm" or gemm.accumulate != torch.float32:
        return None
    epilogue = epilogues[-1]
    for node in epilogue.loop.nodes:
        found = bind(ADDED, node)
        if found is None or found["other"].buffer == ACCUMULATOR:
            continue
        other = found["other"]
        second, *more = program.writers.get(other.buffer, ()) or (None,)
        if more or not isinstance(second, Template) or second.kind != "mm" or second.name == template.name:
            continue
        absorbed = (second.name, *epilogue.absorbed)
        position = place(epilogue.loop.ranges)
        readers = {operation.name for operation in program.readers[other.buffer]}
        if other.index != position or other.buffer in program.output_buffers or not readers <= set(absorbed):
            continue
        total = next(load_ for load_ in epilogue.loop.loads if load_.buffer == ACCUMULATOR)
        loop = replace(epilogue.loop, stores=exchanged(epilogue.loop.stores, node, cast(total, node.dtype)))
        if other.buffer in loop.reads or not stands(program, template, absorbed):
            continue
        (row,), (column,) = gemm.rows, gemm.columns
        left, right = second.args
        term = make_product(left, right, program, (), row, column)
        if term.left.dtype != gemm.dtype or term.right.dtype != gemm.dtype:
            continue
        return replace(gemm, products=(*gemm.products, term), epilogue=replace(epilogue, loop=loop, absorbed=absorbed))
    return None


Make = Callable[[Gemm, Template], Gemm]


def make_pair(
    first: Gemm, second: Gemm, templates: tuple[Template, Template], program: Program, most: int | None, make: Make
) -> Gemm | None:
    """Returns both products and their users as one, or None. make: adds to a product what makes its weights."""
    template, mate = templates
    if (first.m, first.n) != (second.m, second.n) or first.batch:
        return None
    users = _users(first, templates, program, most)
    if users is None:
        return None
    loop = replace(users.loop, stores=_with_second(users.loop.stores, second, str(mate.outputs[0])))
    walks = make(first, template), make(second, mate)
    absorbed = (mate.name, *users.absorbed, *(name for each in walks for name in each.epilogue.absorbed))
    if str(mate.outputs[0]) in (*loop.reads, *loop.writes) or len(set(absorbed)) < len(absorbed):
        return None
    products = _together(walks[0].products, walks[1].products)
    if products is None or not stands(program, template, absorbed):
        return None
    stand_in = replace(second.epilogue.buffers[ACCUMULATOR], name=SECOND)
    epilogue = replace(users, loop=loop, absorbed=absorbed, buffers={**users.buffers, SECOND: stand_in})
    return replace(first, products=products, epilogue=epilogue)


def _users(first: Gemm, templates: tuple[Template, Template], program: Program, most: int | None) -> Epilogue | None:
    """The first product with what uses both, where that alone reads the second's result, element by element."""
    template, mate = templates
    result = str(mate.outputs[0])
    for epilogue in reversed(list(fused(program, template, first.epilogue, most))):
        readers = {operation.name for operation in program.readers.get(result, ())}
        loads = [node for node in epilogue.loop.loads if node.buffer == result]
        here = place(epilogue.loop.ranges)
        if not loads or not readers <= set(epilogue.absorbed) or result in program.output_buffers:
            continue
        if all(node.index == here and node.mask is None and not node.indirect for node in loads):
            return epilogue
    return None


def _with_second(stores: tuple[Store, ...], second: Gemm, result: str) -> tuple[Store, ...]:
    """The stores with the second product's own value, of its sum, where its result was loaded."""
    (own,) = replace_loads(
        second.epilogue.loop.stores,
        lambda node: load(SECOND, node.index, node.dtype) if node.buffer == ACCUMULATOR else None,
    )
    return replace_loads(stores, lambda node: own.value if node.buffer == result else None)


def _together(first: Sequence[Product], second: Sequence[Product]) -> tuple[Product, ...] | None:
    """The products in turn, those of the second sum after those whose left operand they share; None where they do not
    walk alike."""
    if len(first) != len(second):
        return None
    found: list[Product] = []
    for one, other in zip(first, second, strict=True):
        if one.left != other.left or one.depth != other.depth or one.right.words != other.right.words:
            return None
        found += [one, replace(other, joins=True, second=True)]
    return tuple(found)


ROW = Pattern("temporary unreturned", "plain direct")
FACTOR = replace(ROW, loop="pointwise plain direct")

MOST_VALUES = 64
"""Elements of a row that a thread holds during the walk, two to a register."""
TYPES = (torch.bfloat16,)
"""Of the activation: what is not normed yet may be too large for float16."""


def with_row_factor(gemm: Gemm, templates: Sequence[Template], program: Program, threads: int) -> Gemm | None:
    """Returns the product with the norm that makes its activation. templates: the products that one kernel makes, which
    alone read the activation. threads: of a program."""
    operand = gemm.products[0].left
    if gemm.m != ONE or gemm.batch or gemm.dtype not in TYPES or any(p.left.prologue for p in gemm.products):
        return None
    found = find(FACTOR, operand.buffer, program, {each.name for each in templates})
    if found is None or len(program.readers[operand.buffer]) != len(templates):
        return None
    maker = found.loop
    flat = flatten(maker, program.buffers)
    (store,) = flat.stores
    if len(flat.ranges) != 1 or store.index != (flat.ranges[0].var,):
        return None
    place = flat.ranges[0].var
    varying, factor = _apart(store.value, place, flat)
    row_sum = None if factor is None or varying is None else _row_of(factor, maker, program)
    if row_sum is None or factor is None or varying is None:
        return None
    reduction, terms, factor = row_sum
    (row,) = terms.ranges
    if not row.size.is_Integer or power_of_two(int(row.size)) > MOST_VALUES * threads:
        return None
    value = cast(varying, gemm.dtype)
    products = tuple(_made(p, value, place, gemm) for p in gemm.products)
    scaled = replace_loads(
        gemm.epilogue.loop.stores, lambda node: call("mul", node, factor) if node.buffer in SUMS else None
    )
    loop = replace(gemm.epilogue.loop, stores=scaled)
    stand_in = Buffer(ROW_SUM, torch.float32, maker.device, Layout.contiguous((ONE,)))
    epilogue = replace(
        gemm.epilogue,
        loop=loop,
        absorbed=(reduction.name, maker.name, *gemm.epilogue.absorbed),
        buffers={**gemm.epilogue.buffers, ROW_SUM: stand_in},
    )
    return replace(gemm, products=products, epilogue=epilogue, row_terms=terms)


def _apart(value: Node, place: Symbol, loop: Loop) -> tuple[Node | None, Node | None]:
    """The factors of a value that vary with `place`, and those that do not, each as one value in float32; roundings on
    the way are left out."""
    if place not in loop.variables[value]:
        return None, cast(value, torch.float32)
    if value.op == "cast" and value.dtype.is_floating_point and value.args[0].dtype.is_floating_point:
        return _apart(value.args[0], place, loop)
    if value.op != "mul" or not value.dtype.is_floating_point:
        return cast(value, torch.float32), None
    pairs = [_apart(arg, place, loop) for arg in value.args]
    return tuple(_times([pair[side] for pair in pairs]) for side in (0, 1))  # type: ignore[return-value]


def _times(factors: Sequence[Node | None]) -> Node | None:
    first, second = factors
    return call("mul", first, second) if first is not None and second is not None else first or second


def _row_of(factor: Node, maker: Loop, program: Program) -> tuple[Loop, Loop, Node] | None:
    """The loop that reduces a row for the factor, the terms of its sum as a flat loop, and the factor as a value of
    that sum; None where the factor is made of something else."""
    loads = [node for node in walk(factor) if node.op == "load"]
    if len(loads) != 1:
        return None
    (own,) = loads
    found = find(ROW, own.buffer, program, {maker.name})
    if found is None or not found.loop.is_reduction or found.loop.has_scan:
        return None
    reduction = found.loop
    flat = flatten(reduction, program.buffers)
    (store,) = flat.stores
    sums = [node for node in walk(store.value) if node.op == "reduce"]
    if flat.ranges or len(flat.reduction_ranges) != 1 or len(sums) != 1 or sums[0].attrs[0] != "sum":
        return None
    (total,) = sums
    outside = [node for node in walk(store.value, into=lambda node: node is not total) if node.op == "load"]
    if len(total.args) != 1 or total.dtype != torch.float32 or outside:
        return None
    terms = Loop(ROW_SUM, reduction.device, flat.reduction_ranges, (), (Store(ROW_SUM, (ZERO,), total.args[0]),))
    row = load(ROW_SUM, (ZERO,), torch.float32)
    (mean,) = replaced((store.value,), total, row)
    (scale,) = replaced((factor,), own, mean)
    return reduction, terms, scale


def _made(product: Product, value: Node, place: Symbol, gemm: Gemm) -> Product:
    """The product with its activation made by `value`, where it was read at `place`."""
    position = product.left.position.subs({r.var: 0 for r in gemm.rows})
    extents = {r.var: r.size for r in product.depth}
    (made,) = rename_nodes((value,), {place: position}, extents)
    store = Store(OPERAND, (ZERO,), made)
    prologue = Loop(OPERAND, gemm.epilogue.loop.device, product.depth, (), (store,))
    return replace(product, left=replace(product.left, prologue=prologue))
