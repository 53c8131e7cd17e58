"""Rows of a result that begin anywhere in memory, in tiles of rows that all begin at multiples of 16 bytes.

A row of 50257 bfloat16 begins at any even address, where no store may be wider than an element. But the rows 0, 8, 16,
... begin alike, and so do the rows 1, 9, 17, ...: a tile has rows of one such part. Its columns begin where each of its
rows has a multiple of 16 bytes, up to seven elements ahead of where they would. So each thread stores 16 bytes at a
time, except at the ends of rows.

In: a `Gemm` and its program. Out: how many rows apart the rows of a tile are, how many tiles there are, and whether the
tensor memory accelerator (TMA) can bring them.
"""

from __future__ import annotations

from math import gcd

from sympy import Integer, ceiling

from litz.ir import Loop, Program
from litz.ir.index import ONE, Expr, stride_of
from litz.ir.pattern import STORED, match_loop

from ..epilogue import SUMS
from .configs import Config
from .gemm import Gemm

WIDE = 16
"""Bytes of a thread's widest store."""


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
        offset = operand.position.xreplace({r.var: Integer(0) for r in (*ranges, *gemm.batch)})
        if not all(e is not None and e.is_Integer for e in (*strides, *outer, offset, *(r.size for r in ranges))):
            return False
        narrow, wide = sorted(int(stride) for stride in strides if stride is not None)
        units = WIDE // operand.dtype.itemsize
        if narrow != 1 or wide % units or wide == 0 or any(int(e) % units for e in (offset, *filter(None, outer))):
            return False
        if any(int(r.size) >= 2**31 for r in ranges) or operand.dtype.itemsize > 4:
            return False
    return True


def rows_apart(gemm: Gemm, program: Program) -> int:
    """Returns how many rows apart two rows of the result are that begin alike, where a kernel can have tiles of such
    rows; 1 where every row begins at a multiple of 16 bytes; 0 where there is no such kernel."""
    loop = gemm.epilogue.flat(program)
    step = _row_step(gemm, loop)
    if step is None or not can_use_descriptors(gemm, program):
        return 0
    (store,), (product,) = loop.stores, gemm.products
    buffer = program.buffers[store.buffer]
    units = max(1, WIDE // buffer.dtype.itemsize)
    apart = units // gcd(units, step)
    start = store.index[0].subs({r.var: 0 for r in (*gemm.rows, *gemm.columns)})
    begins = not program.is_unaligned(store.buffer) and start == 0
    across = stride_of(product.left.position, product.depth[0].var) == ONE  # TMA has no steps along what is contiguous
    if not begins or not across or units > WIDE // 2 or not gemm.m.is_Integer or int(gemm.m) % apart:
        return 0
    return apart


def most_ahead(apart: int) -> int:
    """Returns how many elements a row's first tile begins ahead of the row, at most."""
    return WIDE // 2 - 1 if apart > 1 else 0


def units_of(gemm: Gemm, loop: Loop, program: Program) -> tuple[int, int]:
    """Returns how many elements of the result a thread stores at a time, and how far rows are apart, in elements."""
    (store,), step = loop.stores, _row_step(gemm, loop)
    assert step is not None, "rows_apart says what there are kernels for"
    return WIDE // program.buffers[store.buffer].dtype.itemsize, step


def _row_step(gemm: Gemm, loop: Loop) -> int | None:
    """Returns how far rows of the result are apart, in elements, where the kernel stores its sum to one matrix, with
    contiguous rows, and reads nothing else for it; None else."""
    found = match_loop(STORED, loop)
    if isinstance(found, str) or gemm.batch or any(n.buffer not in SUMS for n in loop.loads):
        return None
    if len(gemm.rows) != 1 or len(gemm.columns) != 1:
        return None
    store = found.store
    step = stride_of(store.index[0], gemm.rows[0].var)
    if stride_of(store.index[0], gemm.columns[0].var) != ONE or step is None or not step.is_Integer:
        return None
    return int(step)


def tiles_of(gemm: Gemm, config: Config) -> Expr:
    """Returns how many tiles a product's result has, all of a batch together."""
    apart, ahead = config.apart, most_ahead(config.apart)
    rows, columns = apart * ceiling(gemm.m / apart / config.m), ceiling((gemm.n + ahead) / config.n)
    return gemm.count * rows * columns


def workspace_size(gemm: Gemm, config: Config) -> Expr:
    """Returns the number of elements of the buffer of partial sums, which has a tile for each part of each tile."""
    return tiles_of(gemm, config) * config.split * config.m * config.n
