"""What all kernels of a product share, whatever their tile. In: a `Gemm` and its program. Out: a `GemmPlan`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import sympy

from litz.ir import Loop, Program, Store
from litz.ir.index import Expr, Symbol
from litz.targets.triton.indices import index_type_of
from litz.tiles.names import Names, name_all

from ..epilogue import ACCUMULATOR, STAND_INS
from .gemm import Gemm

_PART = sympy.Symbol("part", integer=True, nonnegative=True)


@dataclass(frozen=True)
class GemmPlan:
    """The plan that all configurations of a kernel share: the flat loop of its stores, the names of its two axes, all
    names, the type of indices, and what must not exceed 32 bits."""

    loop: Loop
    row: str
    column: str
    names: Names
    index_type: str
    limits: Sequence[Expr]


def make_plan(gemm: Gemm, program: Program, parts: str | None = None, finishes: bool = False) -> GemmPlan:
    """Returns the plan of a product's kernels. parts: the buffer of partial sums, if there is one. finishes: does the
    kernel add them up itself?"""
    loop = _stored(gemm, program, None if finishes else parts)
    # A row that is reduced lies along core's axis r, whole.
    row, column = ("x", "r") if loop.reduction_ranges else ("y", "x")
    loaded = [node.buffer for node in loop.loads if node.buffer not in STAND_INS]
    read = [name for p in gemm.products for name in p.reads]
    read += () if gemm.row_terms is None else gemm.row_terms.reads
    touched = list(
        dict.fromkeys([*read, *loaded, *(store.buffer for store in loop.stores), *([parts] if parts else [])])
    )
    # How far offsets reach: every buffer.
    spans = [program.buffers[name].layout.span for name in touched]
    exprs = [*gemm.sizes, *spans, *(e for p in gemm.products for e in p.expressions), *loop.expressions]
    variables: dict[Symbol, str] = {_PART: "part"}
    for prefix, ranges in ((row, gemm.rows), (column, gemm.columns), ("batch", gemm.batch)):
        variables |= {r.var: f"{prefix}{number}" for number, r in enumerate(ranges)}
    for product in gemm.products:
        variables |= {r.var: f"k{number}" for number, r in enumerate(product.depth)}
    names = name_all(touched, variables, exprs)
    return GemmPlan(loop, row, column, names, *index_type_of(spans, bool(names.sizes)))


def _stored(gemm: Gemm, program: Program, partial: str | None) -> Loop:
    """What is done with the accumulator, in flat form: the epilogue, or the store of a partial sum."""
    loop = gemm.epilogue.flat(program)
    if partial is None:
        return loop
    position: Expr = _PART
    for r in (*gemm.batch, *gemm.rows, *gemm.columns):
        position = position * r.size + r.var
    value = next(node for node in loop.loads if node.buffer == ACCUMULATOR)
    return replace(loop, stores=(Store(partial, (sympy.expand(position),), value),))


__all__ = ["GemmPlan", "make_plan"]
