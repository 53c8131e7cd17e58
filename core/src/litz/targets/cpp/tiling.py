"""How a loop runs: which loops the threads share, which one is vectorized, how often the reduction ranges are walked.

In: a `KernelPlan`. Out: a `Tiling`.

Four ways:

- `pointwise`: no reduction. The vector loop is the output range along which most accesses are contiguous. Where some
  are contiguous along another one (a transpose), both are tiled.
- `row`: the innermost reduction range is contiguous; it is the vector loop, once per stage and output point.
- `column`: the reduction's loads are contiguous along an output range; a tile of that range is the vector loop, inside
  of the reduction loops, with an accumulator per element of the tile.
- `small`: a reduction of a few elements; output points are the lanes and the reduction is unrolled. Rows pass through
  tiles, in which they are columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Literal

from litz.codegen.kernel_plan import KernelPlan
from litz.ir import Loop, Node, Range
from litz.ir.accesses import Access
from litz.ir.dtypes import FLOAT8, HALF
from litz.ir.index import (
    ONE,
    ZERO,
    Expr,
    FloorDiv,
    Mod,
    PythonMod,
    Symbol,
    floordiv,
    loop_var,
    mod,
    reduction_var,
    stride_of,
)
from litz.ir.node import intern, walk, with_args
from litz.ir.operation import Store, expressions
from litz.ir.ops import flops_of
from litz.ir.reductions import REDUCTIONS
from litz.ir.segments import decided
from litz.ir.stages import Stages, find_stages
from litz.ir.transform import collapse, map_stores, rename_loop

from .figures import CppFigures
from .jam import Jam, cost_of, find_jam

Mode = Literal["pointwise", "row", "column", "small"]

SMALL_REDUCTION = 32
"""A reduction of at most so many elements is unrolled inside of a loop over outputs."""
TINY = 8
"""A range shorter than a vector is no vector loop."""
TINY_SEVERAL = 16
"""Likewise where the states of lanes have several results, and have to be merged at the end of each row. Longer rows
are turned for scans alone, which have no vectors else: the unrolled loops take long to compile."""
EXPENSIVE = 8
"""A value that costs this many flops or more is kept for later stages rather than computed again."""
SHORT_ROW = 128
"""Rows of at most so many elements, many of which are reduced together, are lanes."""
TABLED_ROWS = 16
"""Rows from which on what they share is made once."""
USUAL = 64
"""The value that stands for an unknown size."""


@dataclass(frozen=True)
class Tiling:
    """`loop` is flat; its ranges are in order, outermost first. `vector` is the vectorized range.

    `scratch` are values at reduction level that are kept for later stages, `reread` those that a stage stores and a
    later one reads from there, with their stores. `swap` is the other range of a transpose, None if there is none.
    `work` is a number of element-operations, symbolic where sizes are. `jam` are outputs of a row's reduction that are
    made at a time. again: may a part of the loop run twice, as the loop writes over nothing that it reads? beside: does
    the vector loop share its outer loops with others? group: so many neighbouring lanes are one group.
    """

    loop: Loop
    mode: Mode
    vector: Range | None
    stages: Stages
    scratch: frozenset[Node] = frozenset()
    reread: Mapping[Node, Store] = field(default_factory=dict)
    swap: Range | None = None
    work: Expr = ZERO
    jam: Jam | None = None
    again: bool = False
    beside: bool = False
    group: int = 1


def tile_kernel(kernel: KernelPlan, limits: CppFigures) -> Tiling:
    """Returns the C++ tiling of a kernel: which loops are threads, which are vectors, and in what order."""
    (loop,) = kernel.loops
    counted = count_from(loop, kernel.starts)
    loop = counted if (split := split_divisions(counted)) is counted else collapse(split)
    return tile_loop(canonical(plain if (plain := decided(loop)).stores else loop), kernel, limits)


def tile_loop(loop: Loop, kernel: KernelPlan, limits: CppFigures) -> Tiling:
    """Returns the tiling of a loop of a kernel. The loop is flat, and its variables are canonical."""
    work = loop.numel * (loop.reduction_numel if loop.reduction_ranges else ONE) * max(1, cost_of(loop.nodes) // 2)
    has_reduction = any(node.op in ("reduce", "scan") for node in loop.nodes)
    if not has_reduction:
        # Stores at reduction level without a reduction: just more points. Those at output level would be repeated.
        if all(loop.at_reduction_level(store) for store in loop.stores) or not loop.reduction_ranges:
            loop = replace(loop, ranges=loop.all_ranges, reduction_ranges=())
            return _pointwise(loop, work)
    stages = kernel.stages(loop)
    mode, loop, vector = _reduction_mode(loop)
    again = not kernel.inplace and set(loop.reads).isdisjoint(loop.writes) and all(s.mode == "set" for s in loop.stores)
    jam = find_jam(loop, stages, limits.staged_outputs) if mode == "row" and not kernel.inplace else None
    if mode == "row" and jam is None and (grouped := _grouped(loop, kernel)) is not None:
        loop, group = grouped
        return Tiling(loop, "column", loop.ranges[-1], kernel.stages(loop), work=work, again=again, group=group)
    swap = loop.reduction_ranges[0] if mode == "small" and len(loop.reduction_ranges) == 1 else None
    tiling = Tiling(loop, mode, vector, stages, swap=swap, work=work, again=again)
    if mode != "row":
        return tiling
    tiling = replace(tiling, reread=_reread(tiling), jam=jam)
    return replace(tiling, scratch=_scratch(tiling, limits.row_bytes))


# ---------------------------------------------------------------------- ranges


def count_from(loop: Loop, starts: Mapping[str, int]) -> Loop:
    """Returns the loop with the positions in some buffers counted from the given starts.

    The steps of a loop in Python, and the pieces of a concatenation, then have one text: it is compiled once.
    """
    if not starts:
        return loop

    def counted(name: str, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return (index[0] - starts[name],) if name in starts else index

    def change(node: Node, args: tuple[Node, ...]) -> Node:
        if node.op == "load":
            return intern("load", node.dtype, args, (node.buffer, counted(node.buffer, node.index), node.attrs[2]))
        return with_args(node, args)

    stores = map_stores(loop.stores, change, lambda store: counted(store.buffer, store.index))
    return replace(loop, stores=stores)


def split_divisions(loop: Loop) -> Loop:
    """Returns the loop with ranges split so that `i // c` and `i % c`, where c divides the extent, become variables of
    their own.

    A division in the innermost loop costs more than all else there, and keeps it from being vectorized.
    """
    for _ in range(8):  # a chain of reshapes needs a split each; this bounds what a pathological one may cost
        found = _division(loop)
        if found is None:
            return loop
        r, divisor = found
        outer, inner = (
            Range(Symbol(f"{r.var.name}_{part}", integer=True, nonnegative=True), size)
            for part, size in (("h", floordiv(r.size, divisor)), ("l", divisor))
        )
        mapping = {r.var: outer.var * divisor + inner.var}

        def swap(ranges: tuple[Range, ...], r: Range = r, new: tuple[Range, ...] = (outer, inner)) -> tuple[Range, ...]:
            return tuple(each for old in ranges for each in (new if old == r else (old,)))

        loop = rename_loop(loop, mapping, swap(loop.ranges), swap(loop.reduction_ranges))
    return loop


def _division(loop: Loop) -> tuple[Range, Expr] | None:
    """A range and the divisor to split it by, if some index divides it."""
    scanned = loop.has_scan
    candidates = {r.var: r for r in (loop.ranges if scanned else loop.all_ranges)}
    for expr in loop.expressions:
        # A set's order differs from process to process, and equal kernels must have equal texts.
        for part in sorted(expr.atoms(FloorDiv, Mod, PythonMod), key=str):
            base, divisor = part.args
            for var in sorted(base.free_symbols & candidates.keys(), key=str):
                size = candidates[var].size
                step = stride_of(base, var)
                # var * step // divisor splits where step divides divisor, and that the extent.
                if step is None or not step.is_positive or mod(divisor, step) != ZERO:
                    continue
                inner = floordiv(divisor, step)
                if inner.is_Integer and int(inner) < TINY:
                    continue  # a loop that short costs more than a division by a constant, which vectorizes
                if inner != ONE and inner != size and mod(size, inner) == ZERO:
                    return candidates[var], inner
    return None


def canonical(loop: Loop) -> Loop:
    """Returns the loop with the variables i0, i1, ... and r0, r1, ... by position, so that equal kernels give equal
    text."""
    ranges = tuple(Range(loop_var(n), r.size) for n, r in enumerate(loop.ranges))
    inner = tuple(Range(reduction_var(n), r.size) for n, r in enumerate(loop.reduction_ranges))
    mapping = {old.var: new.var for old, new in zip(loop.all_ranges, (*ranges, *inner), strict=True)}
    if all(old == new for old, new in mapping.items()):
        return loop
    return rename_loop(loop, mapping, ranges, inner)


Traffic = Mapping[Access, float]
"""Bytes per iteration of some accesses."""


def traffic(loop: Loop, inner_only: bool = False) -> Traffic:
    """Returns how many elements each access touches; `inner_only`: for accesses at reduction level alone."""
    return {access: access.itemsize for access in loop.accesses if access.inner or not inner_only}


def contiguity(found: Traffic, var: Symbol) -> float:
    """Returns the bytes per iteration that are accessed with stride 1 along `var`; a store counts twice."""
    along = (access for access in found if access.stride(var) == 1)
    return sum(2 * found[access] if access.is_store else found[access] for access in along)


def _skipped(found: Traffic, var: Symbol) -> float:
    """Returns the bytes per iteration that are accessed with a known stride other than 0, 1 and -1 along `var`."""
    steps = ((size, access.stride(var)) for access, size in found.items() if not access.is_indirect)
    return sum(size for size, step in steps if step is not None and step not in (-1, 0, 1))


# ---------------------------------------------------------------------- pointwise


def _from_memory(loop: Loop) -> Traffic:
    """Returns the bytes that each access moves to or from memory. What a loop reads again (the weights of channels)
    comes from cache: its bytes are divided by how often it is read."""
    found: dict[Access, float] = {}
    for access in loop.accesses:
        again = prod(known(r.size, USUAL) for r in loop.ranges if r.var not in access.symbols)
        found[access] = access.itemsize / max(again, 1)
    return found


def _pointwise(loop: Loop, work: Expr) -> Tiling:
    if not loop.ranges:
        return Tiling(loop, "pointwise", None, find_stages(loop), work=work)
    found = _from_memory(loop)
    # The last of equals: the ranges come with the largest strides first.
    vector = max(reversed(loop.ranges), key=lambda r: contiguity(found, r.var))
    row = max((r for r in loop.ranges if r != vector), key=lambda r: known(r.size, USUAL), default=vector)
    side = _side(loop, vector, [row]) if row != vector and known(row.size, USUAL) >= TABLED_ROWS else None
    if side is not None and side.size != ONE:
        loop = _in_lanes(replace(loop, ranges=(*(r for r in loop.ranges if r != row), row)), vector, side)
        return Tiling(loop, "pointwise", loop.ranges[-1], find_stages(loop), work=work, group=int(vector.size))
    crossing = {access: size for access, size in found.items() if vector.var in access.symbols}
    across = {r: contiguity(crossing, r.var) for r in loop.ranges if r != vector and not is_tiny(r)}
    swap = max(across, key=lambda r: across[r], default=None)
    if swap is not None and (across[swap] == 0 or is_tiny(vector)):
        swap = None
    rest = tuple(r for r in loop.ranges if r not in (vector, swap))
    ranges = (*rest, *(() if swap is None else (swap,)), vector)
    return Tiling(replace(loop, ranges=ranges), "pointwise", vector, find_stages(loop), swap=swap, work=work)


def known(size: Expr, default: int) -> int:
    """Returns a size as an int, or the default if the size is symbolic."""
    return int(size) if size.is_Integer else default


def is_tiny(r: Range) -> bool:
    """Returns whether the range's size is a constant below `TINY`."""
    return r.size.is_Integer and int(r.size) < TINY


def reads_conditionally(nodes: Iterable[Node], unrolled: Iterable[Range]) -> bool:
    """Returns whether some load among the nodes reads under a mask that differs between copies of a loop whose body is
    the unrolled ranges: one that does not follow from their variables alone.

    g++ 12 makes masked vector loads of such loads, where the copies' elements lie side by side, and gives each vector
    the mask of the first; it also forgets the order of elements that are read backwards (docs/compilers.md). So a loop
    with such loads is not unrolled within a vector loop.
    """
    variables = {r.var for r in unrolled}
    return any(node.op == "load" and node.mask is not None and not _follows(node.mask, variables) for node in nodes)


def _follows(value: Node, variables: set[Symbol]) -> bool:
    """Returns whether a value is known once the variables are."""
    nodes = list(walk(value))
    exprs = (expr for node in nodes for expr in expressions(node))
    return all(node.op != "load" for node in nodes) and all(expr.free_symbols <= variables for expr in exprs)


# ---------------------------------------------------------------------- reductions


def _reduction_mode(loop: Loop) -> tuple[Mode, Loop, Range | None]:
    found = traffic(loop, inner_only=True)
    points = loop.reduction_numel
    many = not loop.numel.is_Integer or int(loop.numel) >= 64
    if points.is_Integer and int(points) <= SMALL_REDUCTION and many and loop.ranges:
        vector = max(reversed(loop.ranges), key=lambda r: contiguity(traffic(loop), r.var))
        stores = any(loop.at_reduction_level(store) for store in loop.stores)
        apart = stores and reads_conditionally(loop.nodes, loop.reduction_ranges)
        if not is_tiny(vector) and not apart and not _are_rows(loop, vector):
            return "small", _vector_last(loop, vector), vector
    long = [r for r in loop.reduction_ranges if not is_tiny(r)] or loop.reduction_ranges
    by_row = {r: contiguity(found, r.var) for r in long}
    by_column = {r: contiguity(found, r.var) for r in loop.ranges if not is_tiny(r)}
    inner = max(reversed(long), key=lambda r: by_row[r])
    column = max(reversed(loop.ranges), key=lambda r: by_column.get(r, -1)) if by_column else None
    if column is not None and by_column[column] > 0:
        # A load that skips elements costs more than a contiguous one gains; one that stays in its place costs nothing.
        skipped_by_row, skipped_by_column = (_skipped(found, r.var) for r in (inner, column))
        if (skipped_by_column, by_row[inner]) < (skipped_by_row, by_column[column]):
            return "column", _vector_last(loop, column), column
    if not loop.ordered:
        order = (*(r for r in loop.reduction_ranges if r != inner), inner)
        loop = replace(loop, reduction_ranges=order)
    return "row", loop, loop.reduction_ranges[-1]


def turns(loop: Loop, of: Node | Store, row: Range, lane: Range) -> bool:
    """Returns whether an access of a loop passes through a tile: one that is contiguous along `row`, and not along
    `lane`. Elements of 8 bytes gain nothing where little is computed: few share a line of cache. Rows of 2 or 3 gain
    nothing either: compilers know such loads."""
    node, place, plain = (of, of.args, True) if isinstance(of, Node) else (of.value, of.roots[1:], of.mode == "set")
    most, step = 8 if loop.reduction_ranges and not loop.has_scan else 4, stride_of(of.index[0], lane.var)
    fits = node.dtype.itemsize <= most and known(row.size, USUAL) >= 4 and not place and plain
    return fits and stride_of(of.index[0], row.var) == ONE and step not in (None, ZERO, ONE)


def _are_rows(loop: Loop, vector: Range) -> bool:
    """Returns whether a reduction of a few elements is better walked along than unrolled across outputs, where loads
    gather what lies side by side and no tile turns: softmax over 31 took 4.5 times as long, and a kernel that
    normalizes looked-up rows of 32 8 times, and eight seconds in the compiler."""
    several = any(node.op == "reduce" and REDUCTIONS[node.attrs[0]].several for node in loop.nodes)
    if int(loop.reduction_numel) <= (TINY_SEVERAL if several else TINY):
        return False
    *others, row = loop.reduction_ranges
    most = SMALL_REDUCTION if loop.has_scan else TINY_SEVERAL
    walked = bool(others) or int(loop.reduction_numel) > most
    accesses = traffic(loop, inner_only=True).items()
    found = {access: size for access, size in accesses if walked or not turns(loop, access.site, row, vector)}
    return max(contiguity(found, r.var) for r in loop.reduction_ranges) > contiguity(found, vector.var)


def _grouped(loop: Loop, kernel: KernelPlan) -> tuple[Loop, int] | None:
    """Returns a loop with a short innermost reduction range, and the output range that it lies side by side in, as one
    range of lanes, and how many neighbouring lanes have one result: channels last, groups of channels of many pixels.
    None if there is no such range. Whatever varies along the output range alone is the same for these lanes."""
    *others, inner = sorted(loop.reduction_ranges, key=lambda r: contiguity(traffic(loop, True), r.var))
    stored = {store.buffer for store in loop.stores if not loop.at_reduction_level(store)}
    if not others or loop.ordered or stored & {*loop.reads, *kernel.inplace}:
        return None
    side = _side(loop, inner, others)
    if side is None or (side.size == ONE and is_tiny(inner)) or any(store.mode != "set" for store in loop.stores):
        return None
    return _in_lanes(loop, inner, side), int(inner.size)


def _side(loop: Loop, inner: Range, rows: Sequence[Range]) -> Range | None:
    """Returns the output range that goes on where a short range of neighbours ends, in all that varies along some rows;
    a range of one where none does. None if the range is no such one."""
    along = {r.var for r in rows}
    steps = {access: access.stride(inner.var) for access in loop.accesses if not along.isdisjoint(access.symbols)}
    short = inner.size.is_Integer and 1 < int(inner.size) <= SHORT_ROW
    if not short or ONE not in steps.values() or None in steps.values() or any(a.is_indirect for a in loop.accesses):
        return None
    others = () if any(node.op == "index" for node in loop.nodes) else (r for r in loop.ranges if r not in rows)
    found = (r for r in others if all(a.stride(r.var) == step * inner.size for a, step in steps.items()))
    return next(found, Range(reduction_var(len(loop.all_ranges)), ONE))


def _in_lanes(loop: Loop, inner: Range, side: Range) -> Loop:
    """Returns the loop with a short range, and the range that goes on where it ends, as the last output range."""
    lane = Range(loop_var(len(loop.all_ranges)), side.size * inner.size)
    extents = {lane.var: lane.size}
    mapping = {inner.var: mod(lane.var, inner.size, extents), side.var: floordiv(lane.var, inner.size, extents)}
    ranges = (*(r for r in loop.ranges if r not in (side, inner)), lane)
    left = tuple(r for r in loop.reduction_ranges if r != inner)
    return canonical(rename_loop(loop, mapping, ranges, left))


def _vector_last(loop: Loop, vector: Range) -> Loop:
    return replace(loop, ranges=(*(r for r in loop.ranges if r != vector), vector))


def _reread(tiling: Tiling) -> dict[Node, Store]:
    """Values that are stored side by side, with their stores: a later walk reads one rather than compute it again. A
    value that is the same in several places is not: what it goes into may be computed outside the loop over these."""
    loop = tiling.loop
    inner, buffers = loop.reduction_ranges[-1].var, [store.buffer for store in loop.stores]
    return {
        store.value: store
        for stage in tiling.stages.walks[:-1]
        for store in stage.stores
        if store.mode == "set" and store.mask is None and not store.indirect and buffers.count(store.buffer) == 1
        if stride_of(store.index[0], inner) == 1 and store.value.op not in ("load", "const", "index")
        if store.index[0].free_symbols & loop.extents.keys() <= loop.variables[store.value]
        if is_kept(store.value)
    }


def is_kept(value: Node) -> bool:
    """Returns whether a value is the same where it was stored: a half that is rounded, and no float8 (bits of NaN)."""
    return value.dtype not in FLOAT8 and (value.dtype not in HALF or value.op == "cast")


def _scratch(tiling: Tiling, most_bytes: int) -> frozenset[Node]:
    """Values at reduction level that cost something and are needed in a later stage than the first that computes them.

    Of a chain of such values, only those that something else needs. What is the same along the innermost range is
    computed again, once per walk along that range: an array of the row has an element for each of its positions.
    """
    loop = tiling.loop
    if not loop.reduction_numel.is_Integer or len(tiling.stages.walks) < 2:
        return frozenset()
    # What each walk computes at reduction level.
    needed: list[set[Node]] = []
    stored: set[Node] = set()

    def computed(node: Node) -> bool:
        return bool(loop.levels[node]) and node.op != "reduce" and node not in stored

    for stage in tiling.stages.walks:
        needed.append(set(walk(*stage.roots, into=computed)))
        stored |= tiling.reread.keys() & {store.value for store in stage.stores}
    again = {node for later, nodes in enumerate(needed) for node in nodes if any(node in e for e in needed[:later])}
    costly: dict[Node, bool] = {}
    inner = loop.reduction_ranges[-1].var
    for node in loop.nodes:
        gathers = node.op == "load" and bool(node.indirect)
        inside = any(costly[arg] for arg in node.args if loop.levels[arg])
        costly[node] = (
            inner in loop.variables[node]
            and node.op != "reduce"
            and (flops_of(node, otherwise=1) >= EXPENSIVE or gathers or node.op == "scan" or inside)
        )
    chosen = {node for node in again if costly[node]}
    # A value that only other kept values need, need not be kept itself.
    used: set[Node] = set()
    for later, nodes in enumerate(needed):
        direct = set(tiling.stages.walks[later].roots)
        for node in nodes:
            if node not in chosen or not any(node in e for e in needed[:later]):
                direct.update(node.args)
        if later:
            used |= direct & chosen & set().union(*needed[:later])
    kept = [node for node in loop.nodes if node in used]
    size = sum(max(node.dtype.itemsize, 4) for node in kept) * int(loop.reduction_numel)
    return frozenset(kept) if size <= most_bytes else frozenset()
