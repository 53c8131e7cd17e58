"""A norm as part of the products of its result: rms_norm(x, g) @ W = ((x * g) @ W) * rsqrt(mean(x * x) + eps). In:
products of one row and where they stand. Out: the same products, whose activation is what varies along the depth, whose
sums are multiplied by the factor that does not, and whose kernels reduce the row that the factor is made of; None where
the activation is not made so.

A program reads the row before its walk along the depth, beside its first weights, and adds it up after the walk. So the
norm costs no launch, and the factor is not rounded to a half type before it counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from litz.ir import Buffer, Layout, Loop, Node, Program, Store, Template
from litz.ir.build import call, cast, load
from litz.ir.index import ONE, ZERO, Symbol, symbols_in
from litz.ir.node import replaced, walk
from litz.ir.operation import expressions
from litz.ir.pattern import Pattern, find
from litz.ir.transform import flatten, rename_nodes, replace_loads
from litz.targets.triton.tile_shape import power_of_two
from litz.tiles.shape import Axis, Tiling

from ..epilogue import ROW_SUM, SUMS
from ..tile import Tile, write_axis
from .gemm import Gemm, Product
from .half_tile import HalfTile
from .plan import GemmPlan
from .prologue import OPERAND

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
    varying, factor = _apart(store.value, place)
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


def _apart(value: Node, place: Symbol) -> tuple[Node | None, Node | None]:
    """The factors of a value that vary with `place`, and those that do not, each as one value in float32; roundings on
    the way are left out."""
    if all(place not in symbols_in(expressions(node)) for node in walk(value)):
        return None, cast(value, torch.float32)
    if value.op == "cast" and value.dtype.is_floating_point and value.args[0].dtype.is_floating_point:
        return _apart(value.args[0], place)
    if value.op != "mul" or not value.dtype.is_floating_point:
        return cast(value, torch.float32), None
    pairs = [_apart(arg, place) for arg in value.args]
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


def row_variables(gemm: Gemm) -> dict[Symbol, str]:
    """Returns the names of the variables along the row."""
    return {} if gemm.row_terms is None else {gemm.row_terms.ranges[0].var: "d0"}


def load_row(gemm: Gemm, plan: GemmPlan, program: Program, warps: int, into: Tile) -> Tile | None:
    """Emits the loads of the row that a kernel reduces. Returns the tile that `add_row` takes, if any."""
    if gemm.row_terms is None:
        return None
    (row,) = gemm.row_terms.ranges
    axis = Axis("d", (row,), power_of_two(int(row.size)))
    names = replace(plan.names, variables={**plan.names.variables, **row_variables(gemm)})
    tile = HalfTile(gemm.row_terms, program.buffers, Tiling((axis,), warps), names, plan.index_type, prefix="row")
    tile.depth = into.depth
    tile.emit(f"DBLOCK: tl.constexpr = {axis.block}")
    write_axis(tile, axis, "tl.arange(0, DBLOCK)")
    tile.compute([node for node in gemm.row_terms.nodes if node.op == "load"])
    _hand_over(tile, into)
    return tile


def add_row(tile: Tile, into: Tile) -> None:
    """Emits the sum of the row, under the name that the epilogue loads it by."""
    tile.depth = into.depth
    (store,) = tile.loop.stores
    tile.compute([store.value])
    text = tile.get(store.value).text
    masks = tile.tile_mask("d")
    tile.emit(f"{ROW_SUM} = tl.sum({f'tl.where({masks[0]}, {text}, 0)' if masks else text}, 0)")
    _hand_over(tile, into)


def _hand_over(tile: Tile, into: Tile) -> None:
    into.lines += tile.lines
    into.limits += tile.limits
    tile.lines, tile.limits = [], []


__all__ = ["add_row", "load_row", "row_variables", "with_row_factor"]
