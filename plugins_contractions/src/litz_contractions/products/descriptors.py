"""The tensor memory accelerator (TMA): which products' operands it can bring, and how a kernel asks it to."""

from __future__ import annotations

import sympy

from litz.ir import Program
from litz.ir.index import ONE, stride_of

from .gemm import Gemm
from .plan import GemmPlan


def can_use_descriptors(gemm: Gemm, program: Program) -> bool:
    """Returns whether TMA can bring the operands. Operands must be plain matrices of constant sizes, or a batch of
    such, contiguous along one dimension, with rows (and the data's start) at multiples of 16 bytes. Source: CUDA driver
    API, cuTensorMapEncodeTiled."""
    if len(gemm.batch) > 1 or len(gemm.products) != 1 or len(gemm.rows) != 1 or len(gemm.columns) != 1:
        return False
    if not all(r.size.is_Integer for r in gemm.batch):
        return False
    (product,) = gemm.products
    for operand, ranges in (
        (product.left, (gemm.rows[0], *product.depth)),
        (product.right, (*product.depth, gemm.columns[0])),
    ):
        buffer = program.buffers[operand.buffer]
        if (
            program.is_unaligned(buffer.name)
            or operand.inside
            or operand.prologue is not None
            or len(ranges) != 2
            or buffer.layout.span.free_symbols
        ):
            return False
        strides = [stride_of(operand.position, r.var) for r in ranges]
        outer = [stride_of(operand.position, r.var) for r in gemm.batch]
        offset = operand.position.xreplace({r.var: sympy.Integer(0) for r in (*ranges, *gemm.batch)})
        if not all(e is not None and e.is_Integer for e in (*strides, *outer, offset, *(r.size for r in ranges))):
            return False
        narrow, wide = sorted(int(stride) for stride in strides if stride is not None)
        units = 16 // operand.dtype.itemsize
        if narrow != 1 or wide % units or wide == 0 or any(int(e) % units for e in (offset, *filter(None, outer))):
            return False
        if any(int(r.size) >= 2**31 for r in ranges) or operand.dtype.itemsize > 4:
            return False
    return True


def descriptor_texts(gemm: Gemm, plan: GemmPlan, side: str, apart: int = 1) -> tuple[str, str]:
    """Returns the text that makes an operand's descriptor, and the one that loads a tile with it. side: "left" or
    "right". The operands of a batch are three-dimensional, so that no tile reaches into the next product; so is a left
    operand of which a tile has each `apart`-th row, from row `part` on."""
    (product,) = gemm.products
    operand = product.left if side == "left" else product.right
    ranges = (gemm.rows[0], product.depth[0]) if side == "left" else (product.depth[0], gemm.columns[0])
    row, column = (f"{name.upper()}BLOCK" for name in (plan.row, plan.column))
    blocks = (row, "KBLOCK") if side == "left" else ("KBLOCK", column)
    starts = ("top", "offset") if side == "left" else ("offset", "side - ahead" if apart > 1 else "side")
    strides = [stride_of(operand.position, r.var) for r in ranges]
    turned = strides[1] != ONE  # the dimension that is contiguous comes last
    order = (1, 0) if turned else (0, 1)
    batch = [r for r in gemm.batch if stride_of(operand.position, r.var) != 0]
    zero = {r.var: sympy.Integer(0) for r in (*ranges, *batch)}
    offset = operand.position.xreplace(zero)
    base = plan.names.buffers[operand.buffer] + (f" + {int(offset)}" if offset != 0 else "")
    size = [str(r.size) for r in batch] + [str(int(ranges[n].size)) for n in order]
    step = [str(stride_of(operand.position, r.var)) for r in batch] + [str(strides[order[0]]), "1"]
    block = ["1" for _ in batch] + [blocks[n] for n in order]
    start = [plan.names.variables[r.var] for r in batch] + [starts[n] for n in order]
    if apart > 1 and side == "left":
        size = [str(apart), str(int(ranges[0].size) // apart), size[-1]]
        step, block = [step[-2], str(apart * int(step[-2])), "1"], ["1", *block]
        start, batch = ["part", *start], [gemm.rows[0]]
    text = f"tl.make_tensor_descriptor({base}, [{', '.join(size)}], [{', '.join(step)}], [{', '.join(block)}])"
    load = f"{side}.load([{', '.join(start)}])"
    if batch:
        load += f".reshape([{', '.join(blocks[n] for n in order)}])"
    return text, load + (".T" if turned else "")


__all__ = ["can_use_descriptors", "descriptor_texts"]
