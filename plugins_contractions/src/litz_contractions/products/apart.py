"""Rows of a result that begin anywhere in memory, in tiles of rows that all begin at multiples of 16 bytes.

A row of 50257 bfloat16 begins at any even address, where no store may be wider than an element. But the rows 0, 8, 16,
... begin alike, and so do the rows 1, 9, 17, ...: a tile has rows of one such part. Its columns begin where each of its
rows has a multiple of 16 bytes, up to seven elements ahead of where they would. So each thread stores 16 bytes at a
time, except at the ends of rows.

In: a `Gemm`, its plan and a persistent `Config` with `apart`. Out: the text of the walk over tiles.
"""

from __future__ import annotations

from math import gcd

from litz.ir import Loop, Program
from litz.ir.index import ONE, stride_of
from litz.ir.pattern import STORED, match_loop

from ..epilogue import SUMS
from ..tile import Tile
from .configs import Config
from .descriptors import can_use_descriptors, descriptor_texts
from .gemm import Gemm
from .plan import GemmPlan

WIDE = 16
"""Bytes of a thread's widest store."""


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


def write_apart(tile: Tile, gemm: Gemm, plan: GemmPlan, config: Config, program: Program, precision: str) -> None:
    """Emits the walk over tiles of a kernel whose tiles have each `config.apart`-th row."""
    loop, emit, apart = plan.loop, tile.emit, config.apart
    step, (store,) = _row_step(gemm, loop), loop.stores
    assert step is not None, "rows_apart says what there are kernels for"
    rows, columns, units = int(gemm.m) // apart, int(gemm.n), WIDE // program.buffers[store.buffer].dtype.itemsize
    row, column = (f"{name.upper()}BLOCK" for name in (plan.row, plan.column))
    texts = {side: descriptor_texts(gemm, plan, side, apart) for side in ("left", "right")}
    emit(*(f"{name} = {descriptor}" for name, (descriptor, _) in texts.items()))
    emit(f"for number in tl.range(tl.program_id(0), rows * columns, {config.programs}, flatten=True):")
    tile.depth += 1
    emit(f"first = number // ({config.group} * columns) * {config.group}")
    emit(f"height = tl.minimum(rows - first, {config.group})", f"inside = number % ({config.group} * columns)")
    emit("place = first + inside % height")
    emit(f"part = place % {apart}", f"top = place // {apart} * {row}")
    emit(f"start = part * {step} // {units} * {units}", f"ahead = part * {step} - start")
    emit(f"side = inside // height * {column}")
    emit(f"accumulator = tl.zeros([{row}, {column}], tl.float32)")
    emit(f"for offset in range(0, {int(gemm.products[0].k)}, KBLOCK):")
    emit(f"    a = {texts['left'][1]}", f"    b = {texts['right'][1]}")
    emit(f"    accumulator = tl.dot(a, b, accumulator{precision})")
    for node in loop.loads:
        tile.give(node, node.buffer, (plan.row, plan.column))
    tile.compute([store.value])
    wide = "" if plan.index_type == "tl.int32" else f".to({plan.index_type})"
    emit(f"y = (top + tl.arange(0, {row})[:, None]){wide}", f"x = side + tl.arange(0, {column})[None, :]")
    emit(f"target = {plan.names.buffers[store.buffer]} + (y * {step * apart} + start + x)")
    emit(f"begin = x // {units} * {units} - ahead")
    emit(f"whole = (begin >= 0) & (begin <= {columns - units})")
    emit(f"ends = (x >= ahead) & (x < {columns} + ahead) & (whole == 0)")
    # Spread over the tile: Triton's interpreter reads a broadcast mask as if it were not broadcast.
    there = f" & (y < {rows})" if rows % config.m else " & (y >= 0)"
    emit(*(f"tl.store(target, {tile.bits(store.value)}, {mask}{there})" for mask in ("whole", "ends")))
    tile.depth -= 1


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


__all__ = ["most_ahead", "rows_apart", "write_apart"]
