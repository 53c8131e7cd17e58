"""Splitting reductions: a few outputs of many values each, as many partial results first and then those combined.

In and out: a Program. A loop (x | r) becomes (s, x | r') into temporaries of shape [s, x], and (x | s), which combines
them and goes on as the loop did. Without it one SM, or one thread, would walk through all the values of an output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import ceil, sqrt
from typing import TypeAlias

import torch

from litz.ir import Buffer, Layout, Loop, Node, Operation, Program, Range, Store, build
from litz.ir.dtypes import compute_dtype
from litz.ir.index import ONE, Expr, Symbol, floordiv, loop_var, product, reduction_var, to_expr
from litz.ir.node import with_args
from litz.ir.reductions import REDUCTIONS, Reduction, State
from litz.ir.transform import map_stores, rename_nodes
from litz.target import Room, figures_of
from litz_plugins import PassContext, Target

from .estimate import Cost, CostModel, deciding


@dataclass(frozen=True)
class SplitFigures(Room):
    """Figures of a split, which `target/figures/any/split.toml` explains."""

    table = "split"
    waves_pieces: int
    enough_blocks: int
    gpu_chunk_values: int
    cpu_chunk_values: int
    column_chunk_values: int
    least_row_values: int


Buffers: TypeAlias = Mapping[str, Buffer]
PartsOf: TypeAlias = "Callable[[Loop, CostModel], Mapping[str, tuple[Part, ...]]]"

WHOLE, SPLIT = "whole", "split"
OTHERS = {"half as many pieces": 0.5, "twice as many pieces": 2.0}
"""Further ways, where it is measured which is best."""


def split_reductions(program: Program, context: PassContext) -> Program:
    """Splits reductions of few outputs and many values into partial results and their combination (a pass)."""

    def parts_of(loop: Loop, costs: CostModel) -> dict[str, tuple[Part, ...]]:
        found = {SPLIT: _parts(loop, costs, context)}
        if context.tries and found[SPLIT]:
            found |= {other: _parts(loop, costs, context, factor) for other, factor in OTHERS.items()}
        return found

    return split_where_cheaper(program, context, parts_of, "few outputs would keep too few units of the device busy")


def split_where_cheaper(program: Program, context: PassContext, parts_of: PartsOf, reason: str) -> Program:
    """Splits the loops of a program where the cost model has less time for it. parts_of: of each way to split a loop,
    by name, the usual way first; () for none. reason: why, for the record."""
    costs = CostModel(program, context.target_of, context.ask)
    operations: list[Operation] = []
    buffers = dict(program.buffers)
    for operation in program.operations:
        found = parts_of(operation, costs) if isinstance(operation, Loop) else {}
        if isinstance(operation, Loop) and any(found.values()):
            way = _considered(operation, found, costs, context, buffers, reason)
            operations += way.loops
            buffers.update(way.buffers)
        else:
            operations.append(operation)
    if len(operations) == len(program.operations):
        return program
    return replace(program, operations=tuple(operations), buffers=buffers)


def _considered(
    loop: Loop,
    parts: Mapping[str, tuple[Part, ...]],
    costs: CostModel,
    context: PassContext,
    buffers: Buffers,
    why: str,
) -> _Way:
    """Returns the way chosen for a loop. parts: of each way, the first of which is usual."""
    whole, name, usual = _Way((loop,), {}, (costs.cost(loop),), WHOLE), loop.name, next(iter(parts))
    ways = {usual: _way(loop, parts[usual], costs, context, buffers)}
    for other, pieces in parts.items():
        if pieces and pieces != parts[usual]:
            ways[other] = _way(loop, pieces, costs, context, buffers)
    considered = ((WHOLE, whole.us), *((other, way.us) for other, way in ways.items()))
    by = deciding(*whole.costs, *ways[usual].costs)
    chosen, told = context.choose(name, considered, usual if ways[usual].us < whole.us else WHOLE, WHOLE)
    way, what = (whole, WHOLE) if chosen == WHOLE else (ways[chosen], f"split into {ways[chosen].how}")
    reason = told or ("one kernel more would cost more than it gains" if way is whole else why)
    context.record(f"reduction {name}", what, reason, considered, "" if told else by, name)
    return way


@dataclass(frozen=True)
class _Way:
    """A loop cut in two, or in three where the first half is of columns: the buffers between, what the loops take, and
    how it reads."""

    loops: tuple[Loop, ...]
    buffers: Mapping[str, Buffer]
    costs: tuple[Cost, ...]
    how: str

    @property
    def us(self) -> float:
        return sum(cost.us for cost in self.costs)


def _way(loop: Loop, parts: tuple[Part, ...], costs: CostModel, context: PassContext, buffers: Buffers) -> _Way:
    grown = dict(buffers)
    first, second = _split(loop, parts, grown)
    own = CostModel(replace(costs.program, buffers=grown), costs.target_of, costs.ask)
    how = " x ".join(f"{part.pieces} of {part.chunk}" for part in parts)
    halves = _Way((first, second), grown, (own.cost(first), own.cost(second)), how)
    again = () if costs.reduces_columns(loop) else _parts(first, own, context)
    if not again or not own.reduces_columns(first):
        return halves
    way = _way(first, again, own, context, grown)
    thirds = _Way((*way.loops, second), way.buffers, (*way.costs, halves.costs[1]), f"{how}, then {way.how}")
    return min(halves, thirds, key=lambda each: each.us)


@dataclass(frozen=True)
class Part:
    """One reduction range cut into `pieces` of `chunk` values; the last piece is short unless `exact`."""

    range: Range
    pieces: Expr
    chunk: Expr
    exact: bool


# ------------------------------------------------------------------------------------------------------- deciding


def _parts(loop: Loop, costs: CostModel, context: PassContext, factor: float = 1.0) -> tuple[Part, ...]:
    """Returns the parts to split a loop into; () if it stays whole. factor: of the pieces that there are usually."""
    reduces = [node for node in loop.nodes if node.op == "reduce"]
    if not reduces:
        return ()
    target = costs.target(loop.device)
    outputs, values = costs.hint(loop.numel), costs.hint(loop.reduction_numel)
    wanted = factor * _pieces(loop, target, outputs, values, costs)
    if ceil(wanted) < 2:
        return ()
    reason = obstacle(loop, reduces)
    parts = () if reason else tuple(_cut(loop, costs, wanted))
    if not parts and factor == 1:
        why = f"{outputs} outputs of {values} values; {reason or 'no range can be cut'}"
        context.record(f"reduction {loop.name}", "whole", why)
    return parts


def _pieces(loop: Loop, target: Target, outputs: int, values: int, costs: CostModel) -> float:
    """Into how many partial results per output to split; at most 1 for "not at all". Not a whole number: see `_cut`."""
    if outputs == 0 or values == 0:
        return 0
    limits = figures_of(target, SplitFigures)
    if "blocks" not in target.abilities:
        # Two outputs per thread balance well enough.
        if target.units < 2 or outputs >= 2 * target.units:
            return 0
        return min(4 * target.units / outputs, values // limits.cpu_chunk_values)
    blocks, most, least = outputs, float(limits.waves_pieces * target.units), limits.gpu_chunk_values
    if costs.reduces_columns(loop):
        # A block of neighbouring outputs goes to one SM, so that whole cache lines are read.
        blocks, least = -(-outputs // costs.limits(loop).block_columns), limits.column_chunk_values
        # One program walks a piece, then one walks the pieces: neither should be much longer than the other.
        most = min(most, max(target.units, blocks * sqrt(values)))
    elif values < limits.least_row_values:
        return 0
    if blocks >= limits.enough_blocks * target.units:
        return 0
    return min(most / blocks, values // least)


def obstacle(loop: Loop, reduces: list[Node]) -> str | None:
    """Returns why a loop with these reductions cannot be split; None if it can."""
    rows = {node.attrs[0]: REDUCTIONS[node.attrs[0]] for node in reduces}
    whole = sorted(kind for kind, row in rows.items() if row.ordered or row.takes_states)
    if whole:
        return f"{', '.join(whole)} cannot be split"
    if loop.has_scan:
        return "the loop has a scan"
    if any(loop.at_reduction_level(store) for store in loop.stores):
        return "the loop stores values before they are reduced"
    above = set(reduces)
    for node in loop.nodes:
        if any(arg in above for arg in node.args):
            if node.op == "reduce" or loop.levels[node]:
                return "one reduction of the loop needs the result of another"
            above.add(node)
    if not set(loop.writes).isdisjoint(node.buffer for node in loop.loads):
        return "the loop writes over its input"
    return None


def _cut(loop: Loop, costs: CostModel, wanted: float) -> Iterable[Part]:
    """Cuts of the outermost reduction ranges (by stride in memory) that make about `wanted` pieces together.

    Only the pieces of the last of them are rounded: loops over the same elements are then cut alike, whichever of their
    ranges are outputs, and may be one kernel. On an H200 the gradients of a gate, sums over the tokens of an image and
    over all images, took 36.1 us so in place of 43.3 in bf16, 47.3 in place of 68.8 in float32 (2026-11-26).
    """
    made = 1
    for r in _outermost_first(loop, costs):
        left = ceil(wanted / made)
        if left < 2:
            return
        extent = costs.hint(r.size)
        if extent < 2:
            continue
        if extent <= left:
            yield Part(r, r.size, ONE, True)
            made *= extent
            continue
        even = _divisor_near(extent, left) if r.size.is_Integer else None
        chunk = -(-extent // left) if even is None else extent // even
        # The chunk is fixed and the number of pieces follows the size, so that no piece is empty.
        yield Part(r, floordiv(r.size + chunk - 1, to_expr(chunk)), to_expr(chunk), even is not None)
        return


def _divisor_near(extent: int, pieces: int) -> int | None:
    """The divisor of `extent` nearest to `pieces` from 0.5 to 1.5 times it."""
    fitting = [n for n in range(max(2, -(-pieces // 2)), pieces * 3 // 2 + 1) if extent % n == 0]
    return min(fitting, key=lambda n: abs(n - pieces)) if fitting else None


def _outermost_first(loop: Loop, costs: CostModel) -> list[Range]:
    """Reduction ranges by the greatest stride that a load has along them, descending."""
    sizes = {r.var: costs.hint(r.size) for r in loop.reduction_ranges}
    loads = [access for access in loop.accesses if not access.is_store]
    weights = {
        var: max((costs.stride(loop, access, var, size) for access in loads if var in access.symbols), default=0.0)
        for var, size in sizes.items()
    }
    return sorted(loop.reduction_ranges, key=lambda r: -weights[r.var])


# ------------------------------------------------------------------------------------------------------ splitting


def _split(loop: Loop, parts: tuple[Part, ...], buffers: dict[str, Buffer]) -> tuple[Loop, Loop]:
    """The loop of partial results, and the one that combines them. New buffers go into `buffers`."""
    count = len(parts)
    pieces = tuple(Range(loop_var(n), part.pieces) for n, part in enumerate(parts))
    outer = tuple(Range(loop_var(n + count), r.size) for n, r in enumerate(loop.ranges))
    mapping: dict[Symbol, Expr] = {old.var: new.var for old, new in zip(loop.ranges, outer, strict=True)}
    inner, mask = _inner_ranges(loop, parts, pieces, mapping)
    extents = {r.var: r.size for r in (*pieces, *outer, *inner)}
    partial = _Partial(loop, (*pieces, *outer), count, buffers)
    combined: dict[Node, Node] = {}
    for node in loop.nodes:
        if node.op == "reduce":
            values = rename_nodes(node.args, mapping, extents)
            row = REDUCTIONS[node.attrs[0]]
            state = _merged(row, values[0].dtype, _state(row, values, mask, inner, partial))
            combined[node] = build.cast(row.results[node.attrs[0]].finish(state), node.dtype)
    first = replace(
        loop, name=f"{loop.name}_parts", ranges=(*pieces, *outer), reduction_ranges=inner, stores=tuple(partial.stores)
    )
    second = replace(
        loop,
        reduction_ranges=tuple(Range(reduction_var(n), part.pieces) for n, part in enumerate(parts)),
        stores=map_stores(loop.stores, lambda node, args: combined.get(node) or with_args(node, args)),
    )
    return first, second


def _merged(row: Reduction, dtype: torch.dtype, partial: State) -> State:
    """The state that partial ones make together, a part by a reduction of its own where it does not need the rest."""
    alone = [row.alone(number, dtype) for number in range(len(partial))]
    together = row.of_states.results
    return tuple(
        build.reduce(kind, part) if kind else build.reduce(joint, *partial)
        for kind, joint, part in zip(alone, together, partial, strict=True)
    )


def _state(row: Reduction, values: State, mask: Node | None, inner: tuple[Range, ...], partial: _Partial) -> State:
    """The state of each piece, as the combining loop loads it. Values that are masked off change nothing."""
    dtype = values[0].dtype
    form = row.form(dtype)
    direct = {finish: kind for kind, finish in form.finish.items()}
    if mask is not None and row.neutral is not None:
        nothing = build.const(row.neutral(dtype), dtype)
        values = tuple(build.call("where", mask, build.guard(value, mask), nothing) for value in values)
        mask = None
    lifted = values
    if row.lift is not None:
        lifted = row.lift(tuple(build.cast(value, compute_dtype(dtype)) for value in values), build.index(0))
    if mask is not None:
        lifted = tuple(_masked(part, mask, nothing) for part, nothing in zip(lifted, form.identity, strict=True))
    state = []
    for number, (part, joint) in enumerate(zip(form.state, row.of_states.results, strict=True)):
        alone = row.alone(number, dtype)
        if mask is None and part in direct:
            state.append(partial.stored(build.reduce(direct[part], *values)))
        elif alone == "sum" and lifted[number] is build.const(1, part.dtype):
            state.append(build.cast(build.index(product(r.size for r in inner)), part.dtype))
        elif alone is not None:
            state.append(partial.stored(build.reduce(alone, lifted[number])))
        else:
            state.append(partial.stored(build.reduce(joint, *lifted)))
    return tuple(state)


def _masked(part: Node, mask: Node, nothing: Node) -> Node:
    """A part of the state of a value: that of no value where the mask is False."""
    zero, one = build.const(0, part.dtype), build.const(1, part.dtype)
    if part is one and nothing is zero:
        return build.cast(mask, part.dtype)
    return build.call("where", mask, build.guard(part, mask), nothing)


class _Partial:
    """The stores of partial results, each into a buffer of its own, pieces outermost."""

    def __init__(self, loop: Loop, ranges: tuple[Range, ...], count: int, buffers: dict[str, Buffer]) -> None:
        self.loop, self.ranges, self.buffers = loop, ranges, buffers
        self.stores: list[Store] = []
        self.position = (*(reduction_var(n) for n in range(count)), *(r.var for r in loop.ranges))

    def stored(self, value: Node) -> Node:
        """The value as the combining loop loads it. A half type is kept in the type that it is computed in."""
        value = build.cast(value, compute_dtype(value.dtype))
        store = next((store for store in self.stores if store.value is value), None)
        if store is None:
            name = f"{self.loop.name}_part{len(self.stores)}"
            shape = Layout.contiguous(tuple(r.size for r in self.ranges))
            self.buffers[name] = Buffer(name, value.dtype, self.loop.device, shape)
            store = Store(name, tuple(r.var for r in self.ranges), value)
            self.stores.append(store)
        return build.load(store.buffer, self.position, value.dtype)


def _inner_ranges(
    loop: Loop, parts: tuple[Part, ...], pieces: tuple[Range, ...], mapping: dict[Symbol, Expr]
) -> tuple[tuple[Range, ...], Node | None]:
    """The reduction ranges of one piece, and the mask of what a short last piece lacks. The old reduction variables
    go into `mapping`."""
    cuts = {part.range.var: (part, piece) for part, piece in zip(parts, pieces, strict=True)}
    inner: list[Range] = []
    mask: Node | None = None
    for r in loop.reduction_ranges:
        part, piece = cuts.get(r.var, (None, None))
        if part is None or piece is None:
            inner.append(Range(reduction_var(len(inner)), r.size))
            mapping[r.var] = inner[-1].var
        elif part.chunk == ONE:
            mapping[r.var] = piece.var
        else:
            inner.append(Range(reduction_var(len(inner)), part.chunk))
            mapping[r.var] = piece.var * part.chunk + inner[-1].var
        if part is not None and not part.exact:
            within = build.call("lt", build.index(mapping[r.var]), build.index(r.size))
            mask = build.logical_and(mask, within)
    if not inner:  # every range is cut into pieces of one
        inner.append(Range(reduction_var(0), ONE))
    return tuple(inner), mask
