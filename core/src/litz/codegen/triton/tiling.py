"""The tile that a program (a CUDA block) works on: which ranges lie along which axis, how many elements and warps.

In: a flat loop, its accesses and how many multiprocessors there are (`units`). Out: a `Tiling`. The numbers aim at copy
bandwidth: 16-byte accesses, at least 8 elements a thread, and a few programs for each multiprocessor. Sizes that are
not constants enter by their hints, which decide speed only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod

from litz.ir import Loop, Range
from litz.ir.accesses import Access, distinct
from litz.ir.index import Expr, Symbol, product
from litz.ir.reductions import REDUCTIONS
from litz.schedule.estimate import MIXED_ROWS

from ..kernel_plan import KernelPlan
from .frame import VECTOR, Frame, find_frame, is_multiple

PERSISTENT = 8192
"""The longest row that is held in registers: 16 elements a thread with 16 warps."""
PERSISTENT_ALONE, PERSISTENT_HALF = 32768, 65536
"""The same for a row that is the only value held, and is written, and for such a row of two bytes an element: a second
read of it would cost a third of the time. Measured on an H200: rows of 32768 in float32 0.94 of copy bandwidth, against
0.64 in passes; softmax of 50257 in bf16 98.7 us, against 111.8 (2026-11-26). The latter has 64 elements in the 64
registers of each thread of 32 warps, and 64 bytes on the stack (Triton 3.6, sm_90)."""
PERSISTENT_NODES = 12
"""Nodes of a loop that holds rows of more than `PERSISTENT_ALONE`: there are no registers for further values."""
PERSISTENT_BYTES = 8192
"""Of a written row that is held beside operands which all rows share; a longer one is read again, from the cache, if it
is aligned (Welford's means over several blocks have no frame). On an H200 layer norm of 4096 columns in float32 took
131.5 us so, and 136.3 held (2026-11-26)."""


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

ROW, OWN_VALUES = 4096, 3
"""Of a pointwise loop: elements of a row, and values that each row has, from which on a block is of one row."""

FEW_ROWS = 1024
"""Values of a column up to which a program of four warps reduces a block of columns."""

FEW_SHARE = 4
"""Loads of so many times fewer elements than the most are shared by many. With the norms of rows counted as well, the
gradients of normalized queries, keys and values and their sum took 188 us in place of 157 (H200, 2026-11-27): columns
had blocks of 32 rows in place of 128."""

FEW_VALUES = 2048
"""Values of a block of columns that are reduced at once."""

BUSY = 256
"""Threads that keep a multiprocessor busy."""

FEW_NODES, FEW_BUFFERS = 80, 6
"""Of a pointwise loop whose threads have registers for 16 elements, and nodes of rows that begin alike, for 32."""

GATHERED_ROWS = 8
"""Rows of a program that gathers from one place for each element of a row: those beside each other are of several rows.
Measured on an H200: a softmax of 512 columns over biases gathered along and across the rows, 224 µs with 2 rows, 147
with 4, 125 with 8."""


@dataclass(frozen=True)
class Axis:
    """One axis of the tile. `ranges` are walked together as one index, the last fastest.

    `masked`: does the last block reach beyond the end? Known not to only for constant extents. `step`: a program's
    positions are so far apart, and programs beside each other take what lies between.
    """

    name: str
    ranges: tuple[Range, ...]
    block: int
    step: int = field(default=1, kw_only=True)

    @property
    def size(self) -> Expr:
        """Returns how many elements the axis has: the product of its ranges."""
        return product(r.size for r in self.ranges)

    @property
    def masked(self) -> bool:
        """Returns whether the last block may reach beyond the end. It cannot for a constant size that the block
        divides."""
        size = self.size
        return not (size.is_Integer and int(size) > 0 and int(size) % (self.block * self.step) == 0)


@dataclass(frozen=True)
class Tiling:
    """`axes` in the order of the tile's dimensions: (x), (y, x) or (x, r). `persistent`: the r axis in one block.

    `pieces` are output ranges along which every step has programs of its own: within a program they do not vary.
    `together`: in a loop over r, so many neighbouring elements of a thread are reduced before they meet an accumulator.
    `stages`: blocks along r that are on their way at a time; 1 leaves that to the hardware. `frame`: of rows that are
    not aligned, which need a few lanes more than they have elements. `whole`: in a pointwise loop, programs whose block
    lies in the range have code of their own, without a mask.
    """

    axes: tuple[Axis, ...]
    num_warps: int
    persistent: bool = False
    pieces: tuple[Range, ...] = ()
    together: int = 1
    stages: int = 1
    frame: Frame | None = None
    whole: bool = False

    @property
    def grid_axes(self) -> tuple[Axis, ...]:
        """Returns the axes that programs are numbered along; the last one varies fastest."""
        return tuple(axis for axis in self.axes if axis.name != "r")

    @property
    def begins_alike(self) -> bool:
        """Returns whether all rows of a program have a frame and begin at the same of its lanes."""
        x = self.axis("x")
        return self.frame is not None and x is not None and bool(self.frame.period) and x.step % self.frame.period == 0

    def axis(self, name: str) -> Axis | None:
        """Returns the axis "x", "y" or "r", None if the tile does not have it."""
        return next((axis for axis in self.axes if axis.name == name), None)


Traffic = Mapping[Access, int]
"""The distinct accesses of a flat loop, and the bytes that each moves in all, each element counted once."""


def find_traffic(loop: Loop, plan: KernelPlan) -> Traffic:
    """Returns the bytes that each access moves, for the hinted sizes."""

    def moved(access: Access) -> int:
        positions = loop.positions_by(access)
        walked = (plan.hint(r.size) for r in loop.all_ranges if r.var in positions)
        return min(access.itemsize * prod(walked), plan.hint(plan.buffers[access.buffer].nbytes))

    return {access: moved(access) for access in distinct(loop.accesses)}


def bytes_along(traffic: Traffic, var: Symbol) -> int:
    """Returns the bytes of the accesses that are contiguous along `var`."""
    return sum(moved for access, moved in traffic.items() if access.stride(var) == 1)


def power_of_two(value: int) -> int:
    """Returns the least power of two that is not below `value`; 1 for 0."""
    return 1 << max(0, value - 1).bit_length()


def clamp(value: int, low: int, high: int) -> int:
    """Returns the value, or the nearer of `low` and `high` if it lies outside of them; `low` where they cross."""
    return max(low, min(value, high))


def choose_tiling(loop: Loop, plan: KernelPlan, units: int) -> Tiling:
    """Returns the tiling of a flat, collapsed loop. units: of the device, which work independently."""
    traffic = find_traffic(loop, plan)
    if loop.reduction_ranges:
        return _reduction(loop, plan, traffic, units)
    across = _second_axis(loop, plan, traffic)
    if across is None:
        return _rows(loop, plan, traffic) or _pointwise(loop, plan, traffic, units)
    return _two_axes(loop, plan, *across, units)


# Pointwise.


def _elements_per_thread(loop: Loop, traffic: Traffic) -> int:
    """32 bytes of each access, in half types and wider ones: two of 16 bytes are on their way at a time, and what a
    thread computes for its position is shared by more. Fewer where many values are alive at once.

    Measured on an H200 in bf16, with 8 and with 16: bias and gelu 0.86 and 0.92 of copy bandwidth, a batch norm applied
    in channels last 0.71 and 0.92, an embedding 34 and 28 µs.
    """
    most = max(traffic.values(), default=0)
    moving = (
        access
        for access, moved in traffic.items()
        if not access.is_indirect and not access.symbols.isdisjoint(loop.extents) and 4 * moved >= most
    )
    widths = [access.itemsize for access in moving]
    if len(loop.nodes) > 400 or len(traffic) > 24:
        return 4
    few = len(loop.nodes) <= FEW_NODES and len(traffic) <= FEW_BUFFERS and not _has_ragged_rows(loop, traffic)
    return 16 if widths and (max(widths) == 1 or (max(widths) == 2 and few)) else 8


def _has_ragged_rows(loop: Loop, traffic: Traffic) -> bool:
    """Does something go by columns of rows that begin anywhere, such as a bias? Its elements are loaded one by one."""
    if len(loop.ranges) < 2 or is_multiple(loop.ranges[-1].size, VECTOR // 2):
        return False
    last = loop.ranges[-1]
    return any(access.stride(last.var) == 1 and access.symbols <= {last.var} for access in traffic)


def _pointwise(loop: Loop, plan: KernelPlan, traffic: Traffic, units: int) -> Tiling:
    total = plan.hint(loop.numel)
    # Before a thread takes more than one element, each unit has warps enough to hide what they wait for.
    lanes = clamp(power_of_two(total // (BUSY * units)), 1, _elements_per_thread(loop, traffic))
    block = 128 * lanes
    while block > max(64, 32 * lanes) and total < block * 2 * units:
        block //= 2
    while block > 64 and total < block * units:
        block //= 2
    block = min(block, power_of_two(total))
    warps = clamp(block // (32 * lanes), 1, 8)
    axis = Axis("x", _innermost_last(loop.ranges, traffic), block)
    return Tiling((axis,), warps, whole=total >= block * units and _is_cut_by_mask(loop, traffic, axis))


def _is_cut_by_mask(loop: Loop, traffic: Traffic, axis: Axis) -> bool:
    """Does the end of the range lie within 16 bytes of an access? A mask with it is another for each element, and so
    is the access: rows of 50257 columns, 67093095 elements of two bytes in all, took 195 µs on an H200 where those of
    even totals took 73."""
    if not axis.masked or not axis.size.is_Integer or len(loop.nodes) > FEW_NODES:
        return False
    last = axis.ranges[-1].var
    widths = [a.itemsize for a in traffic if not a.is_indirect and a.stride(last) == 1 and a.itemsize < VECTOR]
    return any(int(axis.size) % (VECTOR // width) for width in widths)


def _rows(loop: Loop, plan: KernelPlan, traffic: Traffic) -> Tiling | None:
    """Blocks of one row each, where rows are long and have many values of their own (the maximum, the sum and the class
    of a cross entropy): such a value is loaded once for the block, not once for each element. Only where rows that are
    written begin at 16 bytes, which a tile over all of them does not need."""
    if len(loop.ranges) < 2:
        return None
    last = _innermost_last(loop.ranges, traffic)[-1]
    others = tuple(r for r in loop.ranges if r.var != last.var)
    if plan.hint(last.size) < ROW:
        return None
    own = [access for access in traffic if not access.is_store and last.var not in loop.positions_by(access)]
    if sum(bool(loop.positions_by(access)) for access in own) < OWN_VALUES:
        return None
    for access in traffic:
        steps = [access.stride(r.var) for r in others] if access.is_store else []
        if any(step is None or not is_multiple(step, VECTOR // access.itemsize) for step in steps):
            return None
    block = 128 * _elements_per_thread(loop, traffic)
    return Tiling((Axis("y", others, 1), Axis("x", (last,), block)), block // (32 * 8))


def _innermost_last(ranges: tuple[Range, ...], traffic: Traffic) -> tuple[Range, ...]:
    """The ranges with the one along which most bytes are contiguous as the last; the others keep their order."""
    if len(ranges) < 2:
        return ranges
    votes = {r.var: bytes_along(traffic, r.var) for r in ranges}
    best = max(reversed(ranges), key=lambda r: votes[r.var])
    return (*(r for r in ranges if r.var != best.var), best)


Chain = tuple[Range, ...]
"""Ranges through which an access goes as through one, contiguous along the last."""


def _second_axis(loop: Loop, plan: KernelPlan, traffic: Traffic) -> tuple[Chain, Chain] | None:
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
    if set(x) & set(y) or min(plan.hint(product(r.size for r in chain)) for chain in (y, x)) < LEAST_TURNED:
        return None
    return y, x


LEAST_TURNED = 8
"""Elements along an axis for which a tile of two axes is worth its empty lanes. On an H200 (2026-11-23) the weights of
a 3 x 3 convolution, 768 x 768 x 9, took 16 us in one axis to become channels last: each sector was read 9 times."""


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
    warps = clamp(x_block * y_block // (32 * 16), 1, 8)
    return Tiling((Axis("y", (*others, *slow), y_block), Axis("x", fast, x_block)), warps)


# Reductions.


Blocks = tuple[int, int, int, bool]
"""The tile of a reduction: its extents along x and along r, the warps, and whether a row is in one block."""


def _reduction(loop: Loop, plan: KernelPlan, traffic: Traffic, units: int) -> Tiling:
    inner_vars = {r.var for r in loop.reduction_ranges}
    relevant = {access: moved for access, moved in traffic.items() if not access.symbols.isdisjoint(inner_vars)}
    # Bytes contiguous along the reduction ranges, and along the output ranges.
    along_r = sum(bytes_along(relevant, r.var) for r in loop.reduction_ranges)
    along_x = max((bytes_along(relevant, r.var) for r in loop.ranges), default=0)
    columns = along_x > along_r and bool(loop.ranges)
    mixed = along_r * 4 > along_x if columns else along_x * 4 > along_r > 0
    width = max((access.itemsize for access in relevant), default=4)
    r_ranges = loop.reduction_ranges if loop.ordered else _innermost_last(loop.reduction_ranges, relevant)
    length = loop.reduction_numel
    known = plan.hint(loop.numel), plan.hint(length), bool(length.is_Integer), width, mixed, units
    if columns:
        blocks = _column_blocks(loop, traffic, _widest(loop, plan, mixed), *known)
    else:
        blocks = _row_blocks(loop, *known)
    x_block, r_block, warps, persistent = blocks
    frame = None if columns or mixed else find_frame(loop, plan, r_ranges)
    if frame is not None and not _has_room(loop, frame, r_block if persistent else None):
        frame = None
    if frame is not None and persistent and r_block < SHORTEST_ALIKE:
        x_block = min(x_block, RAGGED // r_block)
    x_ranges = _innermost_last(loop.ranges, relevant if columns else traffic)
    axes = Axis("x", x_ranges, x_block), Axis("r", r_ranges, r_block)
    alike = _rows_alike(loop, plan, frame, r_block, units) if persistent else None
    if frame is not None and alike is not None:
        rows, warps = alike
        return Tiling((Axis("x", loop.ranges, rows, step=frame.period), axes[1]), warps, persistent, frame=frame)
    if frame is not None and (persistent or _writes_rows(loop)):
        # 16 elements a thread: it also has to find the ends of rows. On an H200 rows of 50257 gained 3 %.
        warps = clamp(x_block * r_block // 512, 1, warps)
    together, once = 1, length.is_Integer and r_block >= int(length)  # in one block: nothing meets an accumulator
    if (
        not (columns or mixed or persistent or once)
        and x_block == 1
        and (frame is not None or _is_aligned(relevant, r_ranges))
    ):
        together = max(1, min(VECTOR // width, r_block // (32 * warps)))
    return Tiling(axes, warps, persistent, together=together, frame=frame)


SHORT, RAGGED = 1024, 512
"""Elements of a program of several rows in one block; of one whose rows are short and begin anywhere, which is one warp
and waits for no other. On an H200 (2026-11-26), in place of 2048: softmax of 64 columns in float32 130.9 us and not
134.8; softmax of 49 in bf16 108.7 with 512 and not 115.7 (with 1024 112.4 to 122.4, by the warps)."""

ALIKE = 32
"""Elements of a thread where a program's rows begin alike: the masks and what all rows share are worked out once for
them. Instructions for each lane (SASS for sm_90), with 16 elements of rows that begin anywhere and with 32 of these:
softmax of 49 columns 31 and 25, of 197 columns 36 and 26, of 1001 columns 31 and 26, layer norm of 1001 40 and 32; and
the weights of that layer norm, which are loaded an element at a time, are loaded for every fourth row only."""

SHORTEST_ALIKE, FREE_ALIKE, LONGEST_ALIKE = 128, 512, 2048
"""Lanes of a row from which rows are taken so, up to which they are taken in any case, and up to which they are taken
where all rows share operands. On an H100 (2026-11-25) rows that begin alike, in place of rows that follow each other,
took a softmax of 49 columns from 123 to 195 us, since such rows have no sectors in common, one of 197 columns from 118
to 114, one of 1001 columns from 98 to 102, and a layer norm of 1001 columns with its weights from 134 to 116."""


def _rows_alike(loop: Loop, plan: KernelPlan, frame: Frame | None, r_block: int, units: int) -> tuple[int, int] | None:
    """Returns (rows, warps) of a program whose rows begin at the same lane of the frame; None where rows have no
    period, are short, long, few, or more than a thread can hold."""
    if frame is None or not frame.period or not SHORTEST_ALIKE <= r_block <= LONGEST_ALIKE:
        return None
    if r_block > FREE_ALIKE and not any(_is_shared(access, loop) for access in loop.accesses):
        return None
    if _live_values(loop) > 4 or len(loop.nodes) > FEW_NODES:
        return None
    warps = max(2, r_block // (256 if r_block <= 1024 else 512))
    rows = ALIKE * 32 * warps // r_block
    return (rows, warps) if plan.hint(loop.numel) >= rows * frame.period * units else None


def _is_shared(access: Access, loop: Loop) -> bool:
    """Does an access vary along rows and not from row to row?"""
    return access.inner and not access.is_store and access.symbols.isdisjoint(r.var for r in loop.ranges)


def _has_room(loop: Loop, frame: Frame, block: int | None) -> bool:
    """Is there a place for the lanes before a row? block: of rows that are held whole, else None."""
    if block is not None:
        return int(loop.reduction_numel) + frame.lanes - 1 <= block
    # Those count the values that each lane has seen, which lanes before the row have not.
    return not any(node.op == "reduce" and REDUCTIONS[node.attrs[0]].name == "welford" for node in loop.nodes)


def _is_aligned(accesses: Iterable[Access], rows: tuple[Range, ...]) -> bool:
    """Are rows contiguous, and read 16 bytes at a time? Then neighbours along them are one thread's."""
    return all(
        access.stride(rows[-1].var) == 1 and is_multiple(access.offset - rows[-1].var, VECTOR // access.itemsize)
        for access in accesses
        if not access.is_indirect
    )


def _live_values(loop: Loop) -> int:
    """How many values per element a row held in registers needs at a time, roughly."""
    return max(1, sum(1 for node in loop.loads if loop.levels[node]))


def longest_persistent(loop: Loop) -> int:
    """Returns the length, in elements, of the longest row that is worth holding in registers."""
    live, writes = _live_values(loop), _writes_rows(loop)
    inner = [access for access in distinct(loop.accesses) if access.inner]
    own = [access.itemsize for access in inner if not access.is_store and not _is_shared(access, loop)]
    if live == 1 and writes:
        return PERSISTENT_HALF if own == [2] and len(loop.nodes) <= PERSISTENT_NODES else PERSISTENT_ALONE
    longest = PERSISTENT if live <= 2 else PERSISTENT // 2 if live <= 4 else PERSISTENT // 4
    if live > 2 and writes and len(own) == 1 and _is_aligned(inner, loop.reduction_ranges):
        return min(longest, PERSISTENT_BYTES // own[0])
    return longest


TWO_LOADS = 16
"""Elements of a thread, two loads of 16 bytes in a half type, that keep the memory busy in rows of 256 to 1024. On an
H200 (2026-11-23) 16 in place of 8 took softmax of 1024 from 71.7 to 68.3 us, layer norm of 1024 from 74.4 to 69.5, and
layer norm of 256 from 73.7 to 69.3."""


def _row_warps(elements: int) -> int:
    return clamp(elements // (32 * (8 if elements <= 2048 else 16)), 1, 16 if elements <= PERSISTENT_ALONE else 32)


def _row_blocks(loop: Loop, rows: int, length: int, fixed: bool, width: int, mixed: bool, units: int) -> Blocks:
    """Rows are contiguous: a program takes one long row, or several short ones."""
    r_block = power_of_two(length)
    persistent = fixed and r_block <= longest_persistent(loop)
    warps = None
    if not persistent:
        r_block, warps = _pass(loop, r_block, width, fixed)
    floor = MIXED_ROWS if mixed else GATHERED_ROWS if _gathers_across(loop) and r_block <= 1024 else 1
    # A row of 1024 or more has a program of its own: values that all rows share then need no other layout. A row of 256
    # in a program of its own took 163 µs in place of 74 on an H200 (layer norm in bf16, 4 elements a thread).
    x_block = clamp(SHORT // r_block, floor, 256)
    while x_block > floor and rows < x_block * 2 * units:
        x_block //= 2
    x_block = min(x_block, power_of_two(rows))
    if mixed and x_block * r_block > 8192:
        persistent, r_block = False, max(16, 4096 // x_block)
    if floor == GATHERED_ROWS:
        warps = clamp(x_block * r_block // 256, 1, 16)
    elif warps is None or x_block > 1:
        warps = _row_warps(x_block * r_block)
        if persistent and width == 2 and 256 <= r_block <= 1024 and _live_values(loop) <= 4:
            warps = max(1, x_block * r_block // (32 * TWO_LOADS))
        if persistent and mixed:  # the tile meets itself, turned, in shared memory
            warps = clamp(x_block * r_block // 1024, 1, 16)
        elif persistent and rows <= x_block * units:
            warps = clamp(x_block * r_block // 64, warps, 16)  # nobody else is there to hide what a thread waits for
    return x_block, r_block, warps, persistent


def _writes_rows(loop: Loop) -> bool:
    """Is something stored for each element of a row?"""
    return any(loop.at_reduction_level(store) for store in loop.stores)


def _gathers_across(loop: Loop) -> bool:
    """Is there a gather whose neighbours along the row lie in different rows of what it reads?"""
    steps = (
        access.stride(r.var)
        for access in loop.accesses
        if access.is_indirect and access.inner and not access.is_store
        for r in loop.reduction_ranges
    )
    return any(step is not None and step.is_Integer and abs(int(step)) >= 16 for step in steps)


def _pass(loop: Loop, r_block: int, width: int, fixed: bool) -> tuple[int, int]:
    """(block, warps) of a pass over a long row. `r_block`: the row, as a power of two. `width`: bytes per element.
    `fixed`: the row's length is a constant.

    A row that is read again to be written is taken in large bites, 16 bytes a thread: more of it is then in flight, and
    the second pass finds it in the cache. One that is only reduced needs no more than keeps the memory busy. Measured
    on an H200 with layer norm, softmax, cross-entropy and batch-norm statistics on rows of 16384 and 32768.
    """
    if not _writes_rows(loop):
        block = min(r_block, 2048)
        return block, clamp(block // 256, 1, 8)
    if fixed and r_block <= PERSISTENT // 2 and _live_values(loop) <= 4:
        return r_block, clamp(r_block // 512, 1, 16)  # not held for its bytes alone (`PERSISTENT_BYTES`)
    block = clamp(r_block // 4, 2048, 8192) if r_block > 2048 else r_block
    return block, clamp(block * width // 512, 1, 32)


def combining_tiling(loop: Loop, plan: KernelPlan, columns: Axis, num_warps: int) -> Tiling:
    """Returns the tiling of a loop that reduces the partial results of others. columns: the axis of the outputs."""
    length = product(r.size for r in loop.reduction_ranges)
    loads = {access: moved for access, moved in find_traffic(loop, plan).items() if not access.is_store}
    ranges = _innermost_last(loop.reduction_ranges, loads)
    whole = power_of_two(plan.hint(length))
    # Each further block waits for the one before it: 448 partial results of a batch norm took 10.8 us in blocks of 128
    # and 7.0 of 512 on an H200 (2026-11-27). But the first loop has the same registers, and needs those that it has.
    lanes = min(_lanes(loop, loads), 16) if _writes_rows(plan.loops[0]) else 16
    block = min(whole, max(1, lanes * 32 * num_warps // columns.block))
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


def _widest(loop: Loop, plan: KernelPlan, mixed: bool) -> int:
    """Columns of a program, at most. Where pieces have programs of their own, the last block of a piece may be mostly
    empty."""
    run = plan.hint(product(r.size for r in loop.ranges if r not in plan.pieces)) if plan.pieces else 0
    spare = {block: -run % block for block in (32, 64)}
    return 32 if mixed or (spare[64] > spare[32] and 8 * spare[64] > run) else 64


def _column_blocks(
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
    persistent = fixed and r_block <= (64 if _live_values(loop) <= 4 else 32)
    lanes, writes = _lanes(loop, traffic), _writes_rows(loop)
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
        warps = clamp(x_block * r_block // (32 * max(lanes, VECTOR // width)), 1, warps)
    elif writes and not persistent and (found := _warps_at_work(lanes, columns, x_block * units)):
        warps = clamp(x_block * r_block // 256, 1, found)
    else:
        warps = min(warps, _row_warps(x_block * r_block))
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
        return x_block, min(power_of_two(length), 16 if columns >= 8 * x_block * units else 64), 4, False
    if length > FEW_ROWS:
        return None
    return x_block, min(power_of_two(length), 128 if lanes == 64 else 64), 4, False


def _warps_at_work(lanes: int, columns: int, beside: int) -> int | None:
    """Returns the warps of a program with which all programs are at work at once; None if no row of `AT_WORK` says.
    beside: columns of one program on each multiprocessor."""
    return next((warps for warps, programs in AT_WORK.get(lanes, ()) if columns <= programs * beside), None)
