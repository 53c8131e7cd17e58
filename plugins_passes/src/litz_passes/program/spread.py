"""Sums of many values at few computed positions: several copies of the positions, added up at the end.

In and out: a Program. The gradient of a table with 32 rows that 147456 pairs of positions look up, a count of classes:
each addition is atomic, and additions at one address wait for each other. A loop that adds into zeros of shape [n] adds
into zeros of shape [n, copies] or [copies, n] instead, each iteration into the copy that its own position says, and a
loop after it sums the copies. Neighbouring iterations, which run at the same time, get different copies.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from litz.ir import Buffer, Layout, Loop, Operation, Program, Range, Store, build
from litz.ir.index import (
    ZERO,
    Expr,
    Symbol,
    floordiv,
    is_placeholder,
    loop_var,
    mod,
    reduction_var,
    symbols_in,
    to_expr,
)
from litz.ir.pattern import Pattern, Value, find
from litz.schedule.estimate import CostModel, deciding
from litz.target import Room, figures_of
from litz_plugins import PassContext


@dataclass(frozen=True)
class SpreadFigures(Room):
    """Figures of copies of a scatter's positions, which `figures/any/spread.toml` explains."""

    table = "spread"
    copies_rows: int
    meeting_us: float
    together_elements: int


ZEROS = Pattern("temporary unshared", "pointwise plain", Value("const", attr=0))


def spread_scatters(program: Program, context: PassContext) -> Program:
    """Gives scatters that add many values at few positions several copies of the positions (a pass)."""
    costs = CostModel(program, context.target_of, context.ask)
    after: dict[str, tuple[Operation, ...]] = {}
    buffers = dict(program.buffers)
    for loop in program.loops:
        found = _spread(loop, program, costs)
        if found is None:
            continue
        apart, together = found.us
        pays, why = context.weigh(loop.name, together < apart, apart, together)
        reason = why or (
            f"additions at {found.meeting} positions would wait for each other"
            if pays
            else f"additions at {found.meeting} positions wait less than the copies would take"
        )
        chosen = f"{found.count} copies of {found.zeros.stores[0].buffer}" if pays else "one copy"
        considered = (("one copy", apart), (f"{found.count} copies", together))
        context.record(f"scatter {loop.name}", chosen, reason, considered, "" if why else found.by, loop.name)
        if pays:
            after[found.filled] = (found.zeros,)
            after[loop.name] = (found.scatter, found.total)
            buffers[found.copies.name] = found.copies
    if not after:
        return program
    operations = tuple(new for old in program.operations for new in after.get(old.name, (old,)))
    return replace(program, operations=operations, buffers=buffers)


@dataclass(frozen=True)
class _Spread:
    """count: of copies. filled: the loop that writes the zeros; in its place `zeros` fills the `copies`, and `scatter`
    and `total` are in the place of the scatter. meeting: positions that are added to at a time. us: without and with
    copies."""

    count: int
    filled: str
    copies: Buffer
    zeros: Loop
    scatter: Loop
    total: Loop
    meeting: int
    us: tuple[float, float]
    by: str


def _spread(loop: Loop, program: Program, costs: CostModel) -> _Spread | None:
    """Returns what a scatter becomes; None for other loops."""
    if len(loop.stores) != 1 or loop.reduction_ranges or loop.stores[0].mode != "add" or not loop.stores[0].indirect:
        return None
    (store,), target = loop.stores, costs.target(loop.device)
    filled = _zeros_of(store.buffer, loop, program)
    if "blocks" not in target.abilities or filled is None:
        return None
    buffer, fast = program.buffers[store.buffer], costs.fast_variable(loop)
    sizes = (*buffer.layout.size, *(r.size for r in loop.ranges))
    if not all(size.is_Integer and int(size) > 0 for size in sizes):
        return None
    own = symbols_in(store.index)
    # Lanes beside each other that go to elements beside each other should still do so.
    last = fast not in own
    limits = figures_of(target, SpreadFigures)
    count = limits.copies_rows
    at = _copy(loop, [r for r in loop.ranges if r.var not in own], fast, limits)
    if at is None:
        return None
    meeting = prod(int(size) for size, expr in zip(buffer.layout.size, store.index, strict=True) if _varies(expr, fast))
    copies = replace(
        buffer,
        name=f"{buffer.name}_copies",
        layout=Layout.contiguous(_with(buffer.layout.size, count, last)),
    )
    places = tuple(loop_var(n) for n in range(len(buffer.layout.size)))
    ranges = tuple(Range(var, size) for var, size in zip(places, buffer.layout.size, strict=True))
    every = loop_var(len(places))
    zeros = replace(
        filled,
        ranges=(*ranges, Range(every, to_expr(count))),
        stores=(Store(copies.name, _with(places, every, last), filled.stores[0].value),),
    )
    scatter = replace(loop, stores=(replace(store, buffer=copies.name, index=_with(store.index, at, last)),))
    one = build.load(copies.name, _with(places, reduction_var(0), last), buffer.dtype)
    total = Loop(
        f"{loop.name}_total",
        loop.device,
        ranges,
        (Range(reduction_var(0), to_expr(count)),),
        (Store(buffer.name, places, build.cast(build.reduce("sum", one), buffer.dtype)),),
        loop.origins,
    )
    grown = CostModel(replace(program, buffers={**program.buffers, copies.name: copies}), costs.target_of, costs.ask)
    before, after = costs.cost(loop), grown.cost(scatter)
    waits = limits.meeting_us * prod(int(r.size) for r in loop.ranges) / meeting
    apart = max(before.us, waits + target.launch_us) + costs.cost(filled).us
    together = max(after.us, waits / count + target.launch_us) + grown.cost(zeros).us + grown.cost(total).us
    return _Spread(
        count, filled.name, copies, zeros, scatter, total, meeting, (apart, together), deciding(before, after)
    )


def _zeros_of(name: str, scatter: Loop, program: Program) -> Loop | None:
    """The loop that fills a temporary with zeros, where the scatter is the only other one to write it, and nothing
    reads it before that."""
    layout, writers, place = program.buffers[name].layout, program.writers[name], program.positions
    if not layout.is_contiguous() or layout.offset != 0 or len(writers) != 2 or writers[1] is not scatter:
        return None
    if any(place[reader.name] < place[scatter.name] for reader in program.readers[name]):
        return None
    filled = find(ZEROS, writers[0], program)
    return None if filled is None else filled.loop


def _copy(loop: Loop, walked: list[Range], fast: Symbol | None, limits: SpreadFigures) -> Expr | None:
    """Returns the copy for an iteration, by the variables that its position does not name, `fast` as the fastest; None
    if there are none."""
    position, step = ZERO, 1
    for r in sorted(reversed(walked), key=lambda r: r.var != fast):
        position, step = position + r.var * step, step * int(r.size)
    if step == 1:
        return None
    position = position + floordiv(position, to_expr(limits.together_elements), loop.extents)
    return mod(position, to_expr(limits.copies_rows), loop.extents)


def _varies(expr: Expr, fast: Symbol | None) -> bool:
    """Returns whether additions that run at a time go to several places along this dimension."""
    return any(is_placeholder(symbol) or symbol == fast for symbol in expr.free_symbols)


def _with(items: tuple[Expr, ...], one: int | Expr, last: bool) -> tuple[Expr, ...]:
    return (*items, to_expr(one)) if last else (to_expr(one), *items)
