"""Products that do more. In: a `Gemm` and where it stands. Out: the same with a second product added to it, or with the
reductions of its rows; None where there is nothing of the kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from litz.ir import Operation, Program, Range, Store, Template
from litz.ir.build import cast
from litz.ir.node import Node, with_args
from litz.ir.pattern import Value, bind
from litz.ir.transform import map_stores

from ..epilogue import ACCUMULATOR, Epilogue, fused_rows, place, stands
from .gemm import Gemm, Operand, make_product

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


def second_product(gemm: Gemm, epilogues: Sequence[Epilogue], template: Template, program: Program) -> Gemm | None:
    """Returns a @ b + c @ d as one sum, where `template` is the first of the two products; None where nothing adds the
    two. Neither product is rounded before they are added, so the result is closer to the exact one than the
    library's."""
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
        position = place(epilogue.loop.ranges)
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
    found = bind(ADDED, node)
    return None if found is None or found["other"].buffer == ACCUMULATOR else found["other"]


def _is_second(operation: Operation, template: Template, program: Program) -> bool:
    return isinstance(operation, Template) and operation.kind == "mm" and operation.name != template.name


def _replaced(stores: tuple[Store, ...], old: Node, new: Node) -> tuple[Store, ...]:
    return map_stores(stores, lambda node, args: new if node is old else with_args(node, args))


__all__ = ["second_product", "with_whole_rows"]
