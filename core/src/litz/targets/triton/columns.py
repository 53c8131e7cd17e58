"""Tilings of reductions of columns: what lies side by side in memory belongs to different results.

In: a flat loop, the bytes of its accesses, its sizes. Out: the blocks of its tile; the tiling of a loop that combines
partial results.
"""

from __future__ import annotations

from collections.abc import Mapping

from litz.codegen.kernel_plan import KernelPlan
from litz.ir import Loop
from litz.ir.index import product
from litz.ir.reductions import REDUCTIONS

from .frame import VECTOR
from .tile_shape import Axis, Blocks, Tiling, clamp, power_of_two, warps_for
from .traffic import Traffic, find_traffic, innermost_last, live_values, writes_rows
from .warps import THREADS

ROOM = 64
"""Registers of a thread that a block of columns may take, of 255. With all of them an SM has 8 warps at work; the
gradients of a batch norm after a max pool, in channels last, even kept 8 KB a thread on the stack."""


WRITTEN = 16
"""Elements of a thread in a block of columns that are written as well as reduced: a load of the next block waits for
the stores of this one, so that more elements are of no use. With 64 of them the products with a gate and their sums
(8 x 1024 x 1152) had 128 registers a thread: an SM held 2 of 288 programs, and the last 24 ran alone. `benchmarks.
gpu_tilings` found 19.1 us in place of 23.0 with shorter blocks or more warps on an H200; and 30.7 in place of 35.2 for
the gradient of a gelu with its sum, which had 23 warps on an SM and now has 46, of 8 elements a thread."""

WHOLE_BYTES = 16384
"""Of a piece of 32 columns that is written and reduced in one block. On an H200 (2026-11-27) the gradients of queries,
keys and values with their sum, in bf16 with 224 rows a piece, took 18.9 to 19.7 us in place of 20.9 to 22.0, and where
queries and keys were normalized 43.2 in place of 47.7. In float32, whose piece has 32 KB, the latter took 86.3 in place
of 82.6, and the products with a gate, of 8 elements a thread, 33.5 in place of 28.6."""

AT_WORK: Mapping[int, tuple[tuple[int, int], ...]] = {WRITTEN: ((16, 3),), WRITTEN // 2: ((8, 3), (4, 5))}
"""Of columns that are written as well, by the elements of a thread (`_lanes`): warps of a program, and how many such
programs are at work on an SM, for Triton 3.6 and sm_90. The first warps for which all programs are at work at once are
taken. With the products with a gate and three sums of them, five words an element, 8 warps have 66 registers a thread
(80 in float32), so that an SM holds 3 of its 4.4 programs and the rest run alone; 4 warps of 16 elements have 92 (94),
and an SM holds 5. On an H200 (2026-11-26) 26.5 us in place of 33.1, in float32 37.2 in place of 44.2."""

FEW_ROWS = 1024
"""Values of a column up to which a program of four warps reduces a block of columns."""

FEW_SHARE = 4
"""Loads of so many times fewer elements than the most are shared by many. With the norms of rows counted as well, and
64 of 96 columns in a block, the gradients of normalized queries, keys and values and their sum took 188 us in place of
157 (H200, 2026-11-27): columns had blocks of 32 rows in place of 128."""

LONG_COLUMN = 512
"""Values of a column from which on a program takes 32 rows at a time, and not 16. On an H100 (2026-11-27) statistics of
a batch norm, 32 images, with 16 and with 32: 1024 x 14 x 14 (98 values) 14.0 and more than 15.8 us, 728 x 19 x 19 (183)
18.4 and 21.2, 728 x 38 x 38 (733) 46.8 and 41.3, 256 x 75 x 75 (1125) 59.3 and 49.9, 128 x 150 x 150 (2250) 102.6 and
82.8."""

FEW_VALUES = 2048
"""Values of a block of columns that are reduced at once."""


def combining_tiling(loop: Loop, plan: KernelPlan, columns: Axis, num_warps: int) -> Tiling:
    """Returns the tiling of a loop that reduces the partial results of others. columns: the axis of the outputs."""
    length = product(r.size for r in loop.reduction_ranges)
    loads = {access: moved for access, moved in find_traffic(loop, plan).items() if not access.is_store}
    ranges = innermost_last(loop.reduction_ranges, loads)
    whole = power_of_two(plan.hint(length))
    # Each further block waits for the one before it: 448 partial results of a batch norm took 10.8 us in blocks of 128
    # and 7.0 of 512 on an H200 (2026-11-27). But the first loop has the same registers, and needs those that it has.
    lanes = min(_lanes(loop, loads), 16) if writes_rows(plan.loops[0]) else 16
    block = min(whole, max(1, lanes * THREADS * num_warps // columns.block))
    persistent = bool(length.is_Integer) and block == whole
    return Tiling((columns, Axis("r", ranges, block)), num_warps, persistent)


def _lanes(loop: Loop, traffic: Traffic) -> int:
    """How many elements a thread has room for in its registers, where it keeps an accumulator for each. Loads that many
    elements share, such as the norm of a row, do not stay in registers of their own."""
    loads = {access: moved for access, moved in traffic.items() if access.inner and not access.is_store}
    most = max((moved // access.itemsize for access, moved in loads.items()), default=0)
    if any(access.is_indirect for access in loads):
        most = 0  # what waits for a position holds its registers
    own = (access.itemsize for access, moved in loads.items() if FEW_SHARE * moved // access.itemsize >= most)
    words = sum(max(1, itemsize // 4) for itemsize in own)
    words += sum(node.op == "reduce" for node in loop.nodes)
    return 64 if words <= 2 else clamp(power_of_two(ROOM // words) // 2, 4, 16)


def widest_block(loop: Loop, plan: KernelPlan, mixed: bool) -> int:
    """Columns of a program, at most. Where pieces have programs of their own, the last block of a piece may be mostly
    empty."""
    run = plan.hint(product(r.size for r in loop.ranges if r not in plan.pieces)) if plan.pieces else 0
    spare = {block: -run % block for block in (32, 64)}
    return 32 if mixed or (spare[64] > spare[32] and 8 * spare[64] > run) else 64


def column_blocks(
    loop: Loop,
    traffic: Traffic,
    widest: int,
    columns: int,
    length: int,
    fixed: bool,
    width: int,
    mixed: bool,
    units: int,
) -> Blocks:
    """What lies side by side in memory belongs to different results, so a program takes many columns.

    At least two whole sectors of a cache line side by side, four or more if there are columns enough.
    """
    warps = 16
    x_block = min(widest, power_of_two(columns))
    floor = min(64 // width, x_block)
    while x_block > floor and columns < x_block * units:
        x_block //= 2
    r_block = power_of_two(length)
    persistent = fixed and r_block <= (64 if live_values(loop) <= 4 else 32)
    lanes, writes = _lanes(loop, traffic), writes_rows(loop)
    # A few columns of a few values are in one block too: their statistics are exact then.
    persistent = persistent or (fixed and not mixed and lanes >= 8 and x_block * r_block <= FEW_VALUES)
    if writes:
        lanes = min(lanes, WRITTEN)
    if not persistent:
        alone = lanes < 8 and columns <= x_block * units  # on its multiprocessor, whose registers it has
        r_block = min(r_block, 256, max(8, lanes * (512 if alone else 256) // x_block))
        warps = 8
    elif x_block * r_block < 1024 and columns >= 4 * x_block * units:
        x_block = min(1024 // r_block, 256)
    if mixed and not persistent:
        r_block = min(r_block, 64)
    if writes and not persistent and lanes == WRITTEN and x_block >= 32:
        # A piece that is one block has no block to wait for.
        whole = power_of_two(length)
        if r_block < whole and 32 * whole * width <= WHOLE_BYTES:
            return 32, whole, 8, False
    if not (mixed or writes) and lanes >= 8:
        if persistent:  # 32 elements a thread: columns of 56 values took 7.9 us in place of 10.2 on an H200
            return x_block, r_block, clamp(x_block * r_block // 1024, 1, 16), True
        if (few := _few_warps(loop, x_block, columns, length, lanes, units)) is not None:
            return few
    if not persistent and lanes < 8:
        # As many threads as the registers are for; half of them waited for gathers, at 2.8 µs a block of 16 rows.
        warps = clamp(x_block * r_block // (THREADS * max(lanes, VECTOR // width)), 1, warps)
    elif writes and not persistent and (found := _warps_at_work(lanes, columns, x_block * units)):
        warps = clamp(x_block * r_block // 256, 1, found)
    else:
        warps = min(warps, warps_for(x_block * r_block))
    return x_block, r_block, warps, persistent


def _few_warps(loop: Loop, x_block: int, columns: int, length: int, lanes: int, units: int) -> Blocks | None:
    """Blocks of columns that are reduced alone, with four warps, whose lanes meet in shared memory sooner. None for
    long columns, which keep the memory busy.

    On an H200 (2026-11-27) in bf16 with a cold cache, 8 warps of 64 columns each, and as here: statistics of a batch
    norm of 32 x 1024 x 14 x 14 26.4 and 16.7 us, of 256 x 28 x 28 18.1 and 15.5; the sums of its gradient 21.5 and
    19.3, of a layer norm's gradient 23.4 and 18.5, of 25,088 rows of 384 14.5 and 13.2.
    """
    if any(len(REDUCTIONS[node.attrs[0]].parts) > 1 for node in loop.nodes if node.op == "reduce"):
        x_block = min(x_block, 32)
        # Many programs hide each other's waiting; few take more rows at a time, in fewer steps.
        rows = 64 if columns < 8 * x_block * units else 32 if length > LONG_COLUMN else 16
        return x_block, min(power_of_two(length), rows), 4, False
    if length > FEW_ROWS:
        return None
    return x_block, min(power_of_two(length), 128 if lanes == 64 else 64), 4, False


def _warps_at_work(lanes: int, columns: int, beside: int) -> int | None:
    """Returns the warps of a program with which all programs are at work at once; None if no row of `AT_WORK` says.
    beside: columns of one program on each multiprocessor."""
    return next((warps for warps, programs in AT_WORK.get(lanes, ()) if columns <= programs * beside), None)
