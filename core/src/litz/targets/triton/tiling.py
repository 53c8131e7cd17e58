"""The tile that a program (a CUDA block) works on: which ranges lie along which axis, how many elements and warps.

In: a flat loop, its accesses and the target. Out: a `Tiling`. The numbers aim at copy
bandwidth: 16-byte accesses, at least 8 elements a thread, and a few programs for each multiprocessor. Sizes that are
not constants enter by their hints, which decide speed only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from litz.codegen.kernel_plan import KernelPlan
from litz.ir import Loop, Range
from litz.ir.accesses import Access, distinct
from litz.ir.index import Symbol, product
from litz.ir.reductions import REDUCTIONS
from litz.schedule.estimate import EstimateFigures
from litz.target import Room, figures_of
from litz.tiles.shape import VECTOR, Axis, Frame, Tiling, is_multiple
from litz_plugins import Target

from .columns import column_blocks, widest_block
from .frame import find_frame
from .lanes import fewer_lanes
from .tile_shape import THREADS, Blocks, clamp, power_of_two, warps_for
from .traffic import Traffic, bytes_along, find_traffic, innermost_last, live_values, writes_rows


@dataclass(frozen=True)
class TilingFigures(Room):
    """Figures of tilings, which `target/figures/gpu/tilings.toml` explains."""

    table = "tilings"
    persistent_elements: int
    alone_elements: int
    alone_half_elements: int
    persistent_nodes: int
    persistent_bytes: int
    row_elements: int
    own_values: int
    busy_threads: int
    few_nodes: int
    few_buffers: int
    gathered_rows: int
    turned_elements: int
    short_elements: int
    ragged_elements: int
    alike_elements: int
    shortest_alike_elements: int
    free_alike_elements: int
    longest_alike_elements: int
    two_loads_elements: int
    thread_elements: int
    light_thread_elements: int
    pass_elements: int
    longest_pass_elements: int
    mixed_elements: int


def choose_tiling(loop: Loop, plan: KernelPlan, target: Target) -> Tiling:
    """Returns the tiling of a flat, collapsed loop."""
    limits = figures_of(target, TilingFigures)
    traffic = find_traffic(loop, plan)
    if loop.reduction_ranges:
        return _reduction(loop, plan, traffic, target)
    across = _second_axis(loop, plan, traffic, limits)
    if across is None:
        return _rows(loop, plan, traffic, limits) or _pointwise(loop, plan, traffic, target)
    return _two_axes(loop, plan, *across, target.units)


# Pointwise.


def _elements_per_thread(loop: Loop, traffic: Traffic, limits: TilingFigures) -> int:
    """32 bytes of each access, in half types and wider ones: two of 16 bytes are on their way at a time, and what a
    thread computes for its position is shared by more. Fewer where many values are alive at once."""
    most = max(traffic.values(), default=0)
    moving = (
        access
        for access, moved in traffic.items()
        if not access.is_indirect and not access.symbols.isdisjoint(loop.extents) and 4 * moved >= most
    )
    widths = [access.itemsize for access in moving]
    if len(loop.nodes) > 400 or len(traffic) > 24:
        return 4
    few = len(loop.nodes) <= limits.few_nodes and len(traffic) <= limits.few_buffers
    light = widths and (max(widths) == 1 or (max(widths) == 2 and few and not _has_ragged_rows(loop, traffic)))
    return limits.light_thread_elements if light else limits.thread_elements


def _has_ragged_rows(loop: Loop, traffic: Traffic) -> bool:
    """Returns whether something goes by columns of rows that begin anywhere, such as a bias, loaded one by one."""
    if len(loop.ranges) < 2 or is_multiple(loop.ranges[-1].size, VECTOR // 2):
        return False
    last = loop.ranges[-1]
    return any(access.stride(last.var) == 1 and access.symbols <= {last.var} for access in traffic)


def _pointwise(loop: Loop, plan: KernelPlan, traffic: Traffic, target: Target) -> Tiling:
    units, limits = target.units, figures_of(target, TilingFigures)
    total = plan.hint(loop.numel)
    # Before a thread takes more than one element, each unit has warps enough to hide what they wait for.
    ranges = innermost_last(loop.ranges, traffic)
    most = fewer_lanes(loop, ranges, plan, traffic, target, _elements_per_thread(loop, traffic, limits))
    lanes = clamp(power_of_two(total // (limits.busy_threads * units)), 1, most)
    block = 128 * lanes
    while block > max(64, THREADS * lanes) and total < block * 2 * units:
        block //= 2
    while block > 64 and total < block * units:
        block //= 2
    block = min(block, power_of_two(total))
    warps = clamp(block // (THREADS * lanes), 1, 8)
    axis = Axis("x", ranges, block)
    return Tiling((axis,), warps, whole=total >= block * units and _is_cut_by_mask(loop, traffic, axis, limits))


def _is_cut_by_mask(loop: Loop, traffic: Traffic, axis: Axis, limits: TilingFigures) -> bool:
    """Returns whether the end of the range lies within 16 bytes of an access. A mask with it is another for each
    element, and so is the access: rows of 50257 columns, 67093095 elements of two bytes in all, took 195 µs on an H200
    where those of even totals took 73."""
    if not axis.masked or not axis.size.is_Integer or len(loop.nodes) > limits.few_nodes:
        return False
    last = axis.ranges[-1].var
    widths = [a.itemsize for a in traffic if not a.is_indirect and a.stride(last) == 1 and a.itemsize < VECTOR]
    return any(int(axis.size) % (VECTOR // width) for width in widths)


def _rows(loop: Loop, plan: KernelPlan, traffic: Traffic, limits: TilingFigures) -> Tiling | None:
    """Blocks of one row each, where rows are long and have many values of their own (the maximum, the sum and the class
    of a cross entropy): such a value is loaded once for the block, not once for each element. Only where rows that are
    written begin at 16 bytes, which a tile over all of them does not need."""
    if len(loop.ranges) < 2:
        return None
    last = innermost_last(loop.ranges, traffic)[-1]
    others = tuple(r for r in loop.ranges if r.var != last.var)
    if plan.hint(last.size) < limits.row_elements:
        return None
    own = [access for access in traffic if not access.is_store and last.var not in loop.positions_by(access)]
    if sum(bool(loop.positions_by(access)) for access in own) < limits.own_values:
        return None
    for access in traffic:
        steps = [access.stride(r.var) for r in others] if access.is_store else []
        if any(step is None or not is_multiple(step, VECTOR // access.itemsize) for step in steps):
            return None
    block = 128 * _elements_per_thread(loop, traffic, limits)
    return Tiling((Axis("y", others, 1), Axis("x", (last,), block)), block // (THREADS * 8))


Chain = tuple[Range, ...]
"""Ranges through which an access goes as through one, contiguous along the last."""


def _second_axis(loop: Loop, plan: KernelPlan, traffic: Traffic, limits: TilingFigures) -> tuple[Chain, Chain] | None:
    """(y, x): the ranges along which accesses are contiguous, where there are two runs that matter; else None. A run
    may go through several ranges: the rows of 7 x 7 windows lie one after the other in an image of 56 x 56."""
    if len(loop.ranges) < 2:
        return None
    votes = {r.var: bytes_along(traffic, r.var) for r in loop.ranges}
    # Stores decide between equals: what is written in short pieces costs more than what is read so.
    stores = {access: moved for access, moved in traffic.items() if access.is_store}
    stored = {r.var: bytes_along(stores, r.var) for r in loop.ranges}
    order = sorted(loop.ranges, key=lambda r: (-votes[r.var], -stored[r.var]))
    fast, slow = order[0], order[1]
    total = sum(traffic.values())
    if votes[slow.var] == 0 or votes[slow.var] * 8 < total:  # a loop without elements moves nothing along any axis
        return None
    # An access along `slow` that steps along `fast` by a little hits the same cache lines either way.
    steps = [access.stride(fast.var) for access in traffic if access.stride(slow.var) == 1]
    wide = [step for step in steps if step is None or step == 0 or not step.is_Integer or abs(int(step)) >= 4]
    if not wide:
        return None
    y, x = _chain(loop, plan, traffic, slow, {fast.var}), _chain(loop, plan, traffic, fast, {slow.var})
    if set(x) & set(y) or min(plan.hint(product(r.size for r in chain)) for chain in (y, x)) < limits.turned_elements:
        return None
    return y, x


def _chain(loop: Loop, plan: KernelPlan, traffic: Traffic, last: Range, taken: set[Symbol]) -> Chain:
    """The range, and before it those that its greatest access goes through as through one with it, until there are 16
    elements."""
    most = max((a for a in traffic if a.stride(last.var) == 1), key=lambda access: traffic[access])
    chain: Chain = (last,)
    while plan.hint(length := product(r.size for r in chain)) < 16:
        before = (r for r in loop.ranges if r not in chain and r.var not in taken and most.stride(r.var) == length)
        if (found := next(before, None)) is None:
            break
        chain = (found, *chain)
    return chain


def _two_axes(loop: Loop, plan: KernelPlan, slow: Chain, fast: Chain, units: int) -> Tiling:
    x_hint, y_hint = (plan.hint(product(r.size for r in chain)) for chain in (fast, slow))
    x_block = clamp(power_of_two(x_hint), 16, 64)
    y_block = clamp(power_of_two(y_hint), 16, 4096 // x_block if x_block < 64 else 64)
    y_block = min(y_block, 128)
    others = tuple(r for r in loop.ranges if r not in slow and r not in fast)
    outer = plan.hint(product(r.size for r in others))
    while x_block * y_block > 1024 and outer * (x_hint // x_block + 1) * (y_hint // y_block + 1) < 2 * units:
        if y_block >= x_block:
            y_block //= 2
        else:
            x_block //= 2
    warps = clamp(x_block * y_block // (THREADS * 16), 1, 8)
    return Tiling((Axis("y", (*others, *slow), y_block), Axis("x", fast, x_block)), warps)


# Reductions.


def _reduction(loop: Loop, plan: KernelPlan, traffic: Traffic, target: Target) -> Tiling:
    limits = figures_of(target, TilingFigures)
    inner_vars = {r.var for r in loop.reduction_ranges}
    relevant = {access: moved for access, moved in traffic.items() if not access.symbols.isdisjoint(inner_vars)}
    # Bytes contiguous along the reduction ranges, and along the output ranges.
    along_r = sum(bytes_along(relevant, r.var) for r in loop.reduction_ranges)
    along_x = max((bytes_along(relevant, r.var) for r in loop.ranges), default=0)
    columns = along_x > along_r and bool(loop.ranges)
    mixed = along_r * 4 > along_x if columns else along_x * 4 > along_r > 0
    width = max((access.itemsize for access in relevant), default=4)
    r_ranges = loop.reduction_ranges if loop.ordered else innermost_last(loop.reduction_ranges, relevant)
    length = loop.reduction_numel
    known = plan.hint(loop.numel), plan.hint(length), bool(length.is_Integer), width, mixed, target
    if columns:
        blocks = column_blocks(loop, traffic, widest_block(loop, plan, mixed), *known)
    else:
        blocks = _row_blocks(loop, *known)
    x_block, r_block, warps, persistent = blocks
    frame = None if columns or mixed else find_frame(loop, plan, r_ranges)
    if frame is not None and not _has_room(loop, frame, r_block if persistent else None):
        frame = None
    if frame is not None and persistent and r_block < limits.shortest_alike_elements:
        x_block = min(x_block, limits.ragged_elements // r_block)
    x_ranges = innermost_last(loop.ranges, relevant if columns else traffic)
    axes = Axis("x", x_ranges, x_block), Axis("r", r_ranges, r_block)
    alike = _rows_alike(loop, plan, frame, r_block, target) if persistent else None
    if frame is not None and alike is not None:
        rows, warps = alike
        return Tiling((Axis("x", loop.ranges, rows, step=frame.period), axes[1]), warps, persistent, frame=frame)
    if frame is not None and (persistent or writes_rows(loop)):
        # 16 elements a thread: it also has to find the ends of rows. On an H200 rows of 50257 gained 3 %.
        warps = clamp(x_block * r_block // 512, 1, warps)
    together, once = 1, length.is_Integer and r_block >= int(length)  # in one block: nothing meets an accumulator
    walked = x_block == 1 and not (columns or mixed or persistent or once)
    if walked and (frame is not None or _is_aligned(relevant, r_ranges)):
        together = max(1, min(VECTOR // width, r_block // (THREADS * warps)))
    return Tiling(axes, warps, persistent, together=together, frame=frame)


def _rows_alike(
    loop: Loop, plan: KernelPlan, frame: Frame | None, r_block: int, target: Target
) -> tuple[int, int] | None:
    """Returns (rows, warps) of a program whose rows begin at the same lane of the frame; None where rows have no
    period, are short, long, few, or more than a thread can hold."""
    limits = figures_of(target, TilingFigures)
    if frame is None or not frame.period:
        return None
    if not limits.shortest_alike_elements <= r_block <= limits.longest_alike_elements:
        return None
    if r_block > limits.free_alike_elements and not any(_is_shared(access, loop) for access in loop.accesses):
        return None
    if live_values(loop) > 4 or len(loop.nodes) > limits.few_nodes:
        return None
    warps = max(2, r_block // (256 if r_block <= 1024 else 512))
    rows = limits.alike_elements * THREADS * warps // r_block
    return (rows, warps) if plan.hint(loop.numel) >= rows * frame.period * target.units else None


def _is_shared(access: Access, loop: Loop) -> bool:
    """Returns whether an access varies along rows and not from row to row."""
    return access.inner and not access.is_store and access.symbols.isdisjoint(r.var for r in loop.ranges)


def _has_room(loop: Loop, frame: Frame, block: int | None) -> bool:
    """Returns whether there is a place for the lanes before a row. block: of rows that are held whole, else None."""
    if block is not None:
        return int(loop.reduction_numel) + frame.lanes - 1 <= block
    # Those count the values that each lane has seen, which lanes before the row have not.
    return not any(node.op == "reduce" and REDUCTIONS[node.attrs[0]].name == "welford" for node in loop.nodes)


def _is_aligned(accesses: Iterable[Access], rows: tuple[Range, ...]) -> bool:
    """Returns whether rows are contiguous, and read 16 bytes at a time: then neighbours along them are one thread's."""
    return all(
        access.stride(rows[-1].var) == 1 and is_multiple(access.offset - rows[-1].var, VECTOR // access.itemsize)
        for access in accesses
        if not access.is_indirect
    )


def longest_persistent(loop: Loop, limits: TilingFigures) -> int:
    """Returns the length, in elements, of the longest row that is worth holding in registers."""
    live, writes = live_values(loop), writes_rows(loop)
    inner = [access for access in distinct(loop.accesses) if access.inner]
    own = [access.itemsize for access in inner if not access.is_store and not _is_shared(access, loop)]
    if live == 1 and writes:
        few_halves = own == [2] and len(loop.nodes) <= limits.persistent_nodes
        return limits.alone_half_elements if few_halves else limits.alone_elements
    longest = limits.persistent_elements // (1 if live <= 2 else 2 if live <= 4 else 4)
    if live > 2 and writes and len(own) == 1 and _is_aligned(inner, loop.reduction_ranges):
        return min(longest, limits.persistent_bytes // own[0])
    return longest


def _row_blocks(loop: Loop, rows: int, length: int, fixed: bool, width: int, mixed: bool, target: Target) -> Blocks:
    """Rows are contiguous: a program takes one long row, or several short ones."""
    units, limits = target.units, figures_of(target, TilingFigures)
    r_block = power_of_two(length)
    persistent = fixed and r_block <= longest_persistent(loop, limits)
    warps = None
    if not persistent:
        r_block, warps = _pass(loop, r_block, width, fixed, limits)
    floor = limits.gathered_rows if _gathers_across(loop) and r_block <= 1024 else 1
    if mixed:
        floor = figures_of(target, EstimateFigures).mixed_rows
    # A row of 1024 or more has a program of its own: values that all rows share then need no other layout. A row of 256
    # in a program of its own took 163 µs in place of 74 on an H200 (layer norm in bf16, 4 elements a thread).
    x_block = clamp(limits.short_elements // r_block, floor, 256)
    while x_block > floor and rows < x_block * 2 * units:
        x_block //= 2
    x_block = min(x_block, power_of_two(rows))
    if mixed and x_block * r_block > limits.mixed_elements:
        persistent, r_block = False, max(16, limits.mixed_elements // 2 // x_block)
    if floor == limits.gathered_rows:
        warps = clamp(x_block * r_block // 256, 1, 16)
    elif warps is None or x_block > 1:
        warps = warps_for(x_block * r_block)
        if persistent and width == 2 and 256 <= r_block <= 1024 and live_values(loop) <= 4:
            warps = max(1, x_block * r_block // (THREADS * limits.two_loads_elements))
        if persistent and mixed:  # the tile meets itself, turned, in shared memory
            warps = clamp(x_block * r_block // 1024, 1, 16)
        elif persistent and rows <= x_block * units:
            warps = clamp(x_block * r_block // 64, warps, 16)  # nobody else is there to hide what a thread waits for
    return x_block, r_block, warps, persistent


def _gathers_across(loop: Loop) -> bool:
    """Returns whether there is a gather whose neighbours along the row lie in different rows of what it reads."""
    steps = (
        access.stride(r.var)
        for access in loop.accesses
        if access.is_indirect and access.inner and not access.is_store
        for r in loop.reduction_ranges
    )
    return any(step is not None and step.is_Integer and abs(int(step)) >= 16 for step in steps)


def _pass(loop: Loop, r_block: int, width: int, fixed: bool, limits: TilingFigures) -> tuple[int, int]:
    """(block, warps) of a pass over a long row. `r_block`: the row, as a power of two. `width`: bytes per element.
    `fixed`: the row's length is a constant.

    A row that is read again to be written is taken in large bites, 16 bytes a thread: more of it is then in flight, and
    the second pass finds it in the cache. One that is only reduced needs no more than keeps the memory busy.
    """
    if not writes_rows(loop):
        block = min(r_block, limits.pass_elements)
        return block, clamp(block // 256, 1, 8)
    if fixed and r_block <= limits.persistent_elements // 2 and live_values(loop) <= 4:
        return r_block, clamp(r_block // 512, 1, 16)  # not held for its bytes alone (`persistent_bytes`)
    block = min(r_block, clamp(r_block // 4, limits.pass_elements, limits.longest_pass_elements))
    return block, clamp(block * width // 512, 1, 32)
