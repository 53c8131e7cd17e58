"""What a loop is expected to take, in microseconds, for comparing it with what it might be fused to or split into.

In: the targets of a compile, and a Program for sizes and hints. Out: a time per loop, from the bytes that it moves,
its arithmetic, how many units it keeps busy and the cost of one launch. The formula is cruder and quicker than that
of `litz.cost`, which gives an ExecutionPlan its times.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from math import inf, prod

from litz.ir import Loop, Node, Program, Range
from litz.ir.accesses import Access, are_apart, bytes_moved, mean_stride
from litz.ir.index import Ranges, Symbol
from litz.ir.ops import flops_of
from litz.ir.reductions import REDUCTIONS
from litz.ir.stages import walks_loading
from litz.ir.structure import structure_of
from litz.target import Room, figures_of, target_of
from litz_plugins import Ask, Target, TargetOf

from .instructions import instructions
from .segments import joined_segments, parted_segments

ALIKE = 64
"""Nodes of the largest loop whose cost is looked up by its structure: the key of a larger one takes as long."""


@dataclass(frozen=True)
class EstimateFigures(Room):
    """Figures of the estimate, which `target/figures/any/estimate.toml` explains."""

    table = "estimate"
    block_columns: int
    busy_columns: int
    row_values: int
    runs_outputs: int
    mixed_rows: int
    turned_times: float
    turned_rows_times: float
    again_share: float
    shared_share: float


@dataclass(frozen=True)
class Cost:
    """The expected cost of a loop: microseconds (launch included), and the bytes and flops behind them. by: who gave
    the estimate, "core" or a plugin's name."""

    us: float
    bytes: float
    flops: float
    by: str = "core"


@dataclass(frozen=True)
class Form:
    """A form of a loop over a concatenation, by the range that has the segments: one loop, which writes the same
    position of every segment in one iteration, or a loop for each segment, in one launch."""

    range: Range
    loops: tuple[Loop, ...]


def deciding(*costs: Cost) -> str:
    """Returns who decides where these costs are compared: the plugins that gave some of them, else core."""
    return " and ".join(sorted({cost.by for cost in costs} - {"core"})) or "core"


class CostModel:
    """Times of the loops of one program on its targets. Remembers what it has worked out about sizes and accesses.

    ask: what plugins say of a loop, which goes before core's own formula (`PassContext.ask`).
    """

    def __init__(self, program: Program, target_of: TargetOf = target_of, ask: Ask | None = None) -> None:
        self.program, self.target_of, self.ask = program, target_of, ask
        self.target = cache(target_of)
        self._limits = cache(lambda device: figures_of(self.target(device), EstimateFigures))
        self.hint = cache(lambda expr: max(program.hint(expr), 0))
        self.nbytes = cache(lambda name: self.hint(program.buffers[name].nbytes))
        self._alike: dict[Hashable, Cost] = {}
        """Costs of loops as they are, by structure: a model repeats its layers."""
        self._known: dict[int, tuple[Loop, Cost, Form | None]] = {}
        """By the loop's id: the loop, so that no other object gets its id, its cost, and its cheaper form."""

    def cost(self, loop: Loop) -> Cost:
        """Returns the cost of one loop, in the cheapest of its forms (`form`)."""
        return self._cheapest(loop)[1]

    def form(self, loop: Loop) -> Form | None:
        """Returns the form of a loop over a concatenation that is cheaper than the loop, the cheapest of several; None
        if the loop is as cheap."""
        return self._cheapest(loop)[2]

    def _cheapest(self, loop: Loop) -> tuple[Loop, Cost, Form | None]:
        known = self._known.get(id(loop))
        if known is None:
            cost, form = min(((self.as_it_is(loop), None), *self._forms(loop)), key=lambda each: each[0].us)
            known = self._known[id(loop)] = loop, cost, form
        return known

    def _forms(self, loop: Loop) -> Iterator[tuple[Cost, Form]]:
        """Yields the forms of a loop over a concatenation, with their costs."""
        target, least = self.target(loop.device), inf
        if "beside" in target.abilities:
            for r, loops in parted_segments(loop, self.program, target):
                cost = self.in_one_launch(loops)
                least = min(least, cost.us - target.launch_us)
                yield cost, Form(r, loops)
        for r, joined in joined_segments(loop, self.program, target):
            cost = self.as_it_is(joined)
            if cost.us - target.launch_us < self.limits(loop).shared_share * least:
                yield cost, Form(r, (joined,))

    def as_it_is(self, loop: Loop) -> Cost:
        """Returns the cost of one loop in its present form: a plugin's estimate if there is one, else the
        roofline."""
        if len(loop.nodes) > ALIKE:
            return self.in_one_launch((loop,))
        key = structure_of((loop,), self.program)
        found = self._alike.get(key)
        if found is None:
            found = self._alike[key] = self.in_one_launch((loop,))
        return found

    def in_one_launch(self, loops: Sequence[Loop]) -> Cost:
        """Returns the cost of loops of one device that run at the same time, in their present forms: each adds its time
        on a busy device, and together they keep more of the device busy than each alone."""
        target = self.target(loops[0].device)
        moved = flops = us = busy = 0.0
        by = "core"
        for loop in loops:
            sizes = self._sizes(loop)
            outer, inner = (prod(sizes[r.var] for r in ranges) for ranges in (loop.ranges, loop.reduction_ranges))
            traffic = self._traffic(loop, sizes)
            fast = _fast_variable(traffic)
            own = self._moved(loop, traffic, fast, target, sizes, outer), _flops(loop, outer, inner, target)
            share = _busy(loop, traffic, fast, target, sizes, inner)
            whole = max(own[0] / target.usual_bandwidth, own[1] / target.usual_flops)
            found = None if self.ask is None else self.ask(loop, target, self.program)
            if found is not None:
                by, whole = found[0], (found[1].us - target.launch_us) * share
            moved, flops, us, busy = moved + own[0], flops + own[1], us + whole, busy + share
        return Cost(us / min(1.0, busy) + target.launch_us, moved, flops, by)

    def limits(self, loop: Loop) -> EstimateFigures:
        """Returns what the estimate of a loop goes by."""
        return self._limits(loop.device)

    def _sizes(self, loop: Loop) -> Mapping[Symbol, int]:
        """Returns the extent of each loop variable."""
        return {r.var: self.hint(r.size) for r in loop.all_ranges}

    def reduces_columns(self, loop: Loop) -> bool:
        """Returns whether neighbouring outputs, rather than neighbouring values of one output, are neighbours in
        memory."""
        fast = self.fast_variable(loop)
        return any(r.var == fast for r in loop.ranges)

    def fast_variable(self, loop: Loop) -> Symbol | None:
        """Returns the variable that most of what a loop reads is contiguous along; None if there is none."""
        traffic = self._traffic(loop, self._sizes(loop))
        return _fast_variable([each for each in traffic if not each.access.is_store])

    def _traffic(self, loop: Loop, sizes: Mapping[Symbol, int]) -> list[_Traffic]:
        """Returns the bytes that each access of a loop moves."""
        one_walk = "one_walk" in self.target(loop.device).abilities
        walks = walks_loading(loop, one_walk) if loop.reduction_ranges else {}
        found = []
        for access in loop.accesses:
            buffer = self.program.buffers[access.buffer]
            whole = self.nbytes(access.buffer)
            amount = bytes_moved(loop, access, self.hint, whole)
            times = walks.get(access.site, 1) if access.mode in (None, "set") else 2
            unit = access.unit_variable(buffer.layout, loop.extents)
            found.append(_Traffic(access, amount, whole, unit, times, self._waste(loop, access, unit, sizes)))
        return found

    def stride(self, loop: Loop, access: Access, var: Symbol, size: int) -> float:
        """Returns how many elements lie between neighbours along a variable of the loop, of this extent, on average."""
        strides = self.program.buffers[access.buffer].layout.stride
        total = sum(
            mean_stride(expr, var, loop, size, self.program.hint) * self.hint(step)
            for expr, step in zip(access.index, strides, strict=True)
        )
        return abs(total)

    def _moved(
        self,
        loop: Loop,
        traffic: Sequence[_Traffic],
        fast: Symbol | None,
        target: Target,
        sizes: Mapping[Symbol, int],
        outer: int,
    ) -> float:
        """Bytes to and from memory: a buffer once per pass over it, as far as the cache does not have it from the pass
        before; more if it is walked against its grain."""
        row = sum(each.bytes for each in traffic if each.access.inner and each.access.mode is None) / max(outer, 1)
        # The rows of all units share the cache. A softmax of 2670 x 50257 in float32 on an H100 (0.51 of the cache)
        # takes 223 us, where two passes would take 181 and three 272 (2026-11-25).
        again = min(1.0, row * target.units / target.cache_bytes) if row > target.row_bytes else 0.0
        found: dict[tuple[str, bool], list[tuple[_Traffic, float]]] = {}
        for each in traffic:
            access = each.access
            later = 1.0 if access.is_store or not access.inner else again if loop.reduction_ranges else 0.0
            factor = each.waste * (1 + (each.times - 1) * later)
            if fast is not None and not access.is_indirect and each.unit != fast and fast in access.symbols:
                factor *= self._against_the_grain(loop, each, fast, sizes)
            found.setdefault((access.buffer, access.is_store), []).append((each, factor))
        return sum(_of_buffer(each, loop.extents, self.limits(loop).again_share) for each in found.values())

    def _against_the_grain(self, loop: Loop, each: _Traffic, fast: Symbol, sizes: Mapping[Symbol, int]) -> float:
        """Returns how often its bytes an access moves that has a stride along `fast`, where others have none."""
        if not loop.reduction_ranges:
            return self.limits(loop).turned_times
        access, target = each.access, self.target(loop.device)
        apart = self.stride(loop, access, fast, sizes[fast]) * access.itemsize
        # Axes of a tile are turned in shared memory. Along one axis a warp walks on and leaves the rest of a
        # sector for later.
        row = {fast, each.unit} <= {r.var for r in loop.reduction_ranges}
        run = target.warp // max(sizes[fast], 1) * access.itemsize if row else target.sector_bytes
        whole = each.unit is not None and run >= target.sector_bytes
        if whole or apart < target.sector_bytes or "blocks" not in target.abilities:
            return self.limits(loop).turned_rows_times
        return target.sector_bytes / access.itemsize

    def _waste(self, loop: Loop, access: Access, unit: Symbol | None, sizes: Mapping[Symbol, int]) -> float:
        """Returns the factor by which whole sectors exceed the bytes of an access. The factor is above 1 where the
        values of one output lie in many short runs: the rest of a sector belongs to outputs of other units."""
        inner = {r.var for r in loop.reduction_ranges}
        values = prod(sizes[var] for var in inner)
        target = self.target(loop.device)
        alone = "blocks" in target.abilities and values >= self.limits(loop).row_values
        if not alone or not access.inner or access.is_indirect or unit not in inner:
            return 1.0
        steps = {var: self.stride(loop, access, var, sizes[var]) for var in inner & access.symbols}
        run = 1
        for var in sorted(steps, key=lambda var: (steps[var], var.name)):
            if steps[var] > run:
                break
            run = max(run, round(steps[var] * (sizes[var] - 1)) + run)
        size = run * access.itemsize
        if run >= values or size % target.sector_bytes == 0:
            return 1.0
        return 1 + (target.sector_bytes - access.itemsize) / size  # on average, wherever a run begins


@dataclass(frozen=True)
class _Traffic:
    """An access's traffic: bytes over the whole loop, in each of so many walks. whole: bytes of the buffer. unit: the
    variable that neighbouring elements belong to. waste: as `CostModel._waste` says."""

    access: Access
    bytes: float
    whole: float
    unit: Symbol | None
    times: int
    waste: float


def _fast_variable(traffic: Sequence[_Traffic]) -> Symbol | None:
    """The variable that most bytes are contiguous along: what code generation will make the innermost."""
    weights: dict[Symbol, float] = {}
    for each in traffic:
        if each.unit is not None:
            weights[each.unit] = weights.get(each.unit, 0.0) + each.bytes
    return max(weights, key=lambda var: (weights[var], var.name)) if weights else None


def _of_buffer(traffic: Sequence[tuple[_Traffic, float]], extents: Ranges, again: float) -> float:
    """Bytes that accesses of one buffer move, each so many times: parts of the buffer that are apart from each other,
    and a share of each further access to a part."""
    parts: list[tuple[Access, float]] = []
    more = 0.0
    for each, factor in traffic:
        amount = each.bytes * factor
        for n, (first, before) in enumerate(parts):
            if not are_apart(first, each.access, extents):
                parts[n] = first, max(before, amount)
                more += again * min(before, amount)
                break
        else:
            parts.append((each.access, amount))
    return min(sum(amount for _, amount in parts), max(each.whole * factor for each, factor in traffic)) + more


def _flops(loop: Loop, outer: int, inner: int, target: Target) -> float:
    """Operations of the whole loop; on a GPU, instructions."""
    count = partial(instructions, target=target) if "blocks" in target.abilities else _operations
    if not loop.reduction_ranges:
        return float(outer) * sum(map(count, loop.nodes))
    small = large = 0
    for node in loop.nodes:
        if node.op != "reduce" and not loop.levels[node]:
            small += count(node)
        else:
            large += count(node)
    return float(outer) * (small + large * inner)


def _operations(node: Node) -> int:
    """Returns the FLOPs of one value, by the tables of ops and reductions."""
    if node.op == "reduce":
        return 4 if REDUCTIONS[node.attrs[0]].several else 1
    return flops_of(node, otherwise=int(node.op in ("load", "cast", "index", "scan")))


def _busy(
    loop: Loop,
    traffic: Sequence[_Traffic],
    fast: Symbol | None,
    target: Target,
    sizes: Mapping[Symbol, int],
    inner: int,
) -> float:
    """Returns the share of the device that the loop keeps busy, in (0, 1]."""
    if not loop.reduction_ranges:
        return 1.0
    parallel, least = float(prod(sizes[r.var] for r in loop.ranges)), 1.0
    limits = figures_of(target, EstimateFigures)
    if "blocks" in target.abilities:
        if fast is not None and any(r.var == fast for r in loop.ranges):
            # A unit takes blocks of contiguous outputs, for whole cache lines; no block goes beyond a piece.
            columns, least = max(sizes[fast], 1), limits.block_columns / limits.busy_columns
            parallel = parallel / columns * max(columns / limits.busy_columns, least)
        elif inner < limits.row_values:
            # A unit takes several short rows at a time.
            parallel = parallel * inner / limits.row_values
        elif _is_mixed(loop, traffic):
            parallel /= limits.mixed_rows
        elif any(each.waste > 1 for each in traffic):
            parallel /= limits.runs_outputs
    return min(1.0, max(parallel, least) / target.units)


def _is_mixed(loop: Loop, traffic: Sequence[_Traffic]) -> bool:
    """Returns whether a quarter as many bytes are contiguous across the rows of a reduction as along them, or more."""
    inner = {r.var for r in loop.reduction_ranges}
    along: dict[Symbol, float] = {}
    for each in traffic:
        if each.unit is not None and not each.access.symbols.isdisjoint(inner):
            along[each.unit] = along.get(each.unit, 0.0) + each.bytes
    rows = sum(along.get(var, 0.0) for var in inner)
    return 4 * max((along.get(r.var, 0.0) for r in loop.ranges), default=0.0) > rows > 0
