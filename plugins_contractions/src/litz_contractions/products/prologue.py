"""Prologues: the pointwise operation that makes an operand, as part of the kernel that multiplies it.

In: a matrix product of a program. Out: the same with operands that are computed as they are loaded: a conversion from
another dtype, a scale, an activation, rows that are gathered (the tokens of an expert, the experts of a token). An
operand is taken over only where the product alone reads it, and where core could not have fused what makes it with
anything before it. What it is rounded to stays the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from litz.cost.contractions import argument_names
from litz.ir import Buffer, Layout, Loop, Program, Range, Store, Template, TensorRef
from litz.ir.build import load
from litz.ir.dtypes import STORED
from litz.ir.node import walk
from litz.ir.pattern import fits
from litz.ir.transform import flatten
from litz.ir.views import position_in
from litz.schedule.inline import Body

from ..epilogue import stands
from .gemm import OPERANDS, Gemm

OPERAND = "operand"
"""Stands for the tile that a prologue makes: a buffer that is never in memory."""
MOST_NODES = 60
MOST_LOADS = 4
"""Beyond so many values or loads the tile takes longer to make than to multiply."""


def with_prologues(
    gemm: Gemm, template: Template, program: Program, sides: tuple[str, ...] = ("left", "right")
) -> Gemm | None:
    """Returns the product with what makes its operands; None where no operand has a prologue. sides: which operands are
    looked at."""
    if template.kind not in OPERANDS or len(gemm.products) != 1 or gemm.products[0].scale is not None:
        return None
    (product,) = gemm.products
    arguments = argument_names(template)
    left, right = (arguments[name] for name in OPERANDS[template.kind])
    if left.buffer == right.buffer:
        return None
    ranges = {
        "left": (*gemm.batch, *gemm.rows, *product.depth),
        "right": (*gemm.batch, *product.depth, *gemm.columns),
    }
    found = {
        side: _prologue(ref, ranges[side], product.depth, template, program)
        for side, ref in (("left", left), ("right", right))
    }
    found |= {side: None for side in found if side not in sides}
    taken = {side: prologue for side, prologue in found.items() if prologue is not None}
    if not taken:
        return None
    made = replace(
        product,
        left=replace(product.left, prologue=found["left"]),
        right=replace(product.right, prologue=found["right"]),
    )
    producers = (program.writers[getattr(product, side).buffer][0].name for side in taken)
    absorbed = (*producers, *gemm.epilogue.absorbed)
    if not stands(program, template, absorbed):
        return None
    return replace(gemm, products=(made,), epilogue=replace(gemm.epilogue, absorbed=absorbed))


def _prologue(
    ref: TensorRef, ranges: Sequence[Range], depth: Sequence[Range], template: Template, program: Program
) -> Loop | None:
    """Returns what makes the operand's element at the variables of `ranges`, as a flat loop with one store. None where
    each element along the depth would be looked for by itself."""
    loop = prologue_of(ref, ranges, template, program)
    if loop is None:
        return None
    along = {r.var for r in depth}
    if any(not along.isdisjoint(loop.variables[position]) for node in loop.loads for position in node.indirect):
        return None
    buffer = program.buffers[ref.buffer]
    tile = Buffer(OPERAND, buffer.dtype, buffer.device, Layout.contiguous(tuple(r.size for r in ranges)))
    return flatten(loop, {**program.buffers, OPERAND: tile})


def prologue_of(
    ref: TensorRef, ranges: Sequence[Range], template: Template, program: Program, last: bool = False
) -> Loop | None:
    """Returns what makes the operand's element at the variables of `ranges`, as a loop with one store; None where the
    loop that made it cannot be left out. last: may it be the last of several loops that core left apart?"""
    buffer = program.buffers[ref.buffer]
    body = _body(buffer, template, program, last)
    extents = {r.var: r.size for r in ranges}
    index = position_in(ref.layout, buffer.layout, ranges)
    if body is None or index is None:
        return None
    value = body.at(load(ref.buffer, index, buffer.dtype), extents)
    store = Store(OPERAND, tuple(r.var for r in ranges), value)
    return Loop(OPERAND, buffer.device, tuple(ranges), (), (store,), body.origins)


def _body(buffer: Buffer, template: Template, program: Program, last: bool) -> Body | None:
    """Returns what is stored in a buffer, where its writer can be left out."""
    loop = program.maker(buffer.name)
    if loop is None or not fits("temporary unreturned", buffer.name, program, {template.name}):
        return None
    places = {(node.buffer, node.index) for node in loop.loads}  # packed values are several loads of one place
    if not places or len(loop.nodes) > MOST_NODES or len(places) > MOST_LOADS:
        return None
    if any(program.buffers[node.buffer].dtype not in STORED for node in loop.loads):
        return None
    if last and any(node.indirect for node in loop.loads):
        return None
    positions = [position for node in loop.loads for position in node.indirect]
    gathered = {node for node in loop.loads if node.indirect} | {*walk(*positions)}
    beside = {node.buffer for node in loop.loads if node not in gathered}
    if not last and any(isinstance(writer, Loop) for name in beside for writer in program.writers.get(name, ())):
        return None  # core fuses the two
    return Body.of(loop)
