"""Tilings of reductions of columns: what lies side by side in memory belongs to different results.

In: a flat loop, the bytes of its accesses, its sizes. Out: the blocks of its tile; the tiling of a loop that combines
partial results.
"""

from __future__ import annotations

from dataclasses import dataclass

from litz.codegen.kernel_plan import KernelPlan
from litz.ir import Loop
from litz.ir.index import product
from litz.ir.reductions import REDUCTIONS
from litz.target import Room, figures_of
from litz.tiles.shape import VECTOR, Axis, Tiling
from litz_plugins import Target

from .tile_shape import THREADS, Blocks, clamp, power_of_two, warps_for
from .traffic import Traffic, find_traffic, innermost_last, live_values, writes_rows


@dataclass(frozen=True)
class ColumnFigures(Room):
    """Figures of tilings of columns, which `target/figures/gpu/columns.toml` explains."""

    table = "columns"
    room_registers: int
    written_elements: int
    whole_bytes: int
    at_work_programs: tuple[tuple[int, tuple[tuple[int, int], ...]], ...]
    few_rows: int
    few_times: int
    long_rows: int
    few_values: int
    combined_elements: int
    several_rows: tuple[int, int, int]
    single_rows: tuple[int, int]


def combining_tiling(loop: Loop, plan: KernelPlan, columns: Axis, num_warps: int, target: Target) -> Tiling:
    """Returns the tiling of a loop that reduces the partial results of others. columns: the axis of the outputs."""
    length = product(r.size for r in loop.reduction_ranges)
    loads = {access: moved for access, moved in find_traffic(loop, plan).items() if not access.is_store}
    ranges = innermost_last(loop.reduction_ranges, loads)
    whole = power_of_two(plan.hint(length))
    # Each further block waits for the one before it. But the first loop has the same registers, and needs those that it
    # has.
    limits = figures_of(target, ColumnFigures)
    lanes = limits.combined_elements
    lanes = min(_lanes(loop, loads, limits), lanes) if writes_rows(plan.loops[0]) else lanes
    block = min(whole, max(1, lanes * THREADS * num_warps // columns.block))
    persistent = bool(length.is_Integer) and block == whole
    return Tiling((columns, Axis("r", ranges, block)), num_warps, persistent)


def _lanes(loop: Loop, traffic: Traffic, limits: ColumnFigures) -> int:
    """Returns how many elements a thread has room for in its registers, where it keeps an accumulator for each. Loads
    that many elements share, such as the norm of a row, do not stay in registers of their own."""
    loads = {access: moved for access, moved in traffic.items() if access.inner and not access.is_store}
    most = max((moved // access.itemsize for access, moved in loads.items()), default=0)
    if any(access.is_indirect for access in loads):
        most = 0  # what waits for a position holds its registers
    own = (access.itemsize for access, moved in loads.items() if limits.few_times * moved // access.itemsize >= most)
    words = sum(max(1, itemsize // 4) for itemsize in own)
    words += sum(node.op == "reduce" for node in loop.nodes)
    return 64 if words <= 2 else clamp(power_of_two(limits.room_registers // words) // 2, 4, 16)


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
    target: Target,
) -> Blocks:
    """Returns what lies side by side in memory belongs to different results, so a program takes many columns.

    At least two whole sectors of a cache line side by side, four or more if there are columns enough.
    """
    units, limits = target.units, figures_of(target, ColumnFigures)
    warps = 16
    x_block = min(widest, power_of_two(columns))
    floor = min(64 // width, x_block)
    while x_block > floor and columns < x_block * units:
        x_block //= 2
    r_block = power_of_two(length)
    persistent = fixed and r_block <= (64 if live_values(loop) <= 4 else 32)
    lanes, writes = _lanes(loop, traffic, limits), writes_rows(loop)
    # A few columns of a few values are in one block too: their statistics are exact then.
    persistent = persistent or (fixed and not mixed and lanes >= 8 and x_block * r_block <= limits.few_values)
    if writes:
        lanes = min(lanes, limits.written_elements)
    if not persistent:
        alone = lanes < 8 and columns <= x_block * units  # on its multiprocessor, whose registers it has
        r_block = min(r_block, 256, max(8, lanes * (512 if alone else 256) // x_block))
        warps = 8
    elif x_block * r_block < 1024 and columns >= 4 * x_block * units:
        x_block = min(1024 // r_block, 256)
    if mixed and not persistent:
        r_block = min(r_block, 64)
    if writes and not persistent and lanes == limits.written_elements and x_block >= 32:
        # A piece that is one block has no block to wait for.
        whole = power_of_two(length)
        if r_block < whole and 32 * whole * width <= limits.whole_bytes:
            return 32, whole, 8, False
    if not (mixed or writes) and lanes >= 8:
        if persistent:  # 32 elements a thread: columns of 56 values took 7.9 us in place of 10.2 on an H200
            return x_block, r_block, clamp(x_block * r_block // 1024, 1, 16), True
        if (few := _few_warps(loop, x_block, columns, length, lanes, target)) is not None:
            return few
    if not persistent and lanes < 8:
        # As many threads as the registers are for; half of them waited for gathers, at 2.8 µs a block of 16 rows.
        warps = clamp(x_block * r_block // (THREADS * max(lanes, VECTOR // width)), 1, warps)
    elif writes and not persistent and (found := _warps_at_work(limits, lanes, columns, x_block * units)):
        warps = clamp(x_block * r_block // 256, 1, found)
    else:
        warps = min(warps, warps_for(x_block * r_block))
    return x_block, r_block, warps, persistent


def _few_warps(loop: Loop, x_block: int, columns: int, length: int, lanes: int, target: Target) -> Blocks | None:
    """Blocks of columns that are reduced alone, with four warps, whose lanes meet in shared memory sooner. None for
    long columns, which keep the memory busy."""
    units, limits = target.units, figures_of(target, ColumnFigures)
    if any(len(REDUCTIONS[node.attrs[0]].parts) > 1 for node in loop.nodes if node.op == "reduce"):
        x_block = min(x_block, 32)
        # Many programs hide each other's waiting; few take more rows at a time, in fewer steps.
        few, long, short = limits.several_rows
        rows = few if columns < 8 * x_block * units else long if length > limits.long_rows else short
        return x_block, min(power_of_two(length), rows), 4, False
    if length > limits.few_rows:
        return None
    return x_block, min(power_of_two(length), limits.single_rows[lanes < 64]), 4, False


def _warps_at_work(limits: ColumnFigures, lanes: int, columns: int, beside: int) -> int | None:
    """Returns the warps of a program with which all programs are at work at once; None if no row of
    `at_work_programs` says. beside: columns of one program on each multiprocessor."""
    return next(
        (warps for warps, programs in dict(limits.at_work_programs).get(lanes, ()) if columns <= programs * beside),
        None,
    )
