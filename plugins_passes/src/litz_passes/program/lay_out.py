"""Layouts of temporaries that loops alone use: in the order in which those loops walk, where the estimate is lower.

In and out: a Program. Eager's strides decide in which order a loop stores a tensor's dimensions. A residual stream that
a model adds up in channels first and normalizes in channels last, or scores whose heads a product mixes, would be
stored with a stride at each step. Only loops see such a tensor, and any dense order is right for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from litz.ir import Buffer, Layout, Loop, Program
from litz.ir.index import ONE, Symbol
from litz.ir.pattern import fits
from litz.ir.strides import dense_order
from litz.schedule.estimate import CostModel
from litz.target import Room, figures_of
from litz_plugins import VETOED, PassContext


@dataclass(frozen=True)
class LayoutFigures(Room):
    """Figures of the order of a buffer, which `figures/any/lay_out.toml` explains."""

    table = "lay_out"
    least_gain_share: float


def lay_out_temporaries(program: Program, context: PassContext) -> Program:
    """Gives temporaries that loops alone use the order of dimensions that the estimate finds fastest (a pass)."""
    costs = CostModel(program, context.target_of, context.ask)
    for name, buffer in program.buffers.items():
        if not fits("temporary unshared unreturned", name, program):
            continue
        loops = _users(name, program)
        if len(loops) < 2 or len(buffer.layout.size) < 2:
            continue
        found = _fastest(buffer, loops, costs, context)
        if found is not None:
            program = replace(program, buffers={**program.buffers, name: found})
            costs = CostModel(program, context.target_of, context.ask)
    return program


def _users(name: str, program: Program) -> tuple[Loop, ...]:
    """The loop that writes a buffer, plainly and alone, and the loops that read it; none if there are other users."""
    maker, readers = program.maker(name), program.readers[name]
    loops = tuple(reader for reader in readers if isinstance(reader, Loop) and reader is not maker)
    if maker is None or len(loops) < len(readers):
        return ()
    return (maker, *loops) if all(store.is_plain for store in maker.stores if store.buffer == name) else ()


def _fastest(buffer: Buffer, loops: Sequence[Loop], costs: CostModel, context: PassContext) -> Buffer | None:
    """Returns the buffer in the order that takes its loops the least time; None if its own order takes the least."""
    program = costs.program
    own = _order(buffer.layout, program)
    if own is None:
        return None
    orders = dict.fromkeys(order for loop in loops for order in _walked(buffer, loop, costs))
    orders.pop(own, None)
    if not orders:
        return None
    before = _price(loops, costs)
    prices: dict[Layout, tuple[float, float]] = {}
    for order in orders:
        layout = Layout.in_order(buffer.layout.size, order)
        changed = replace(program, buffers={**program.buffers, buffer.name: replace(buffer, layout=layout)})
        prices[layout] = _price(loops, CostModel(changed, context.target_of, context.ask))
    best = min(prices, key=lambda layout: prices[layout])
    least = figures_of(costs.target(loops[0].device), LayoutFigures).least_gain_share
    faster, as_fast = (prices[best][0] <= share * before[0] for share in (1 - least, 1))
    if not faster and not (as_fast and prices[best][1] <= (1 - least) * before[1]):
        return None
    allowed = context.allows(buffer.name)
    ways = (("as in eager", before[0]), (str(best), prices[best][0]))
    reason = "loops alone use the buffer, and this order costs them less" if allowed else VETOED
    chosen = str(best) if allowed else "as in eager"
    context.record(f"layout of {buffer.name}", chosen, reason, ways, about=loops[0].name)
    return replace(buffer, layout=best) if allowed else None


def _price(loops: Sequence[Loop], costs: CostModel) -> tuple[float, float]:
    """Microseconds of loops by the estimate, and the bytes that they move."""
    found = [costs.cost(loop) for loop in loops]
    return sum(cost.us for cost in found), sum(cost.bytes for cost in found)


def _order(layout: Layout, program: Program) -> tuple[int, ...] | None:
    """Returns a dense layout's dimensions, the outermost first; None for a layout with gaps or without elements."""
    if layout.offset != 0 or any(program.hint(extent) == 0 for extent in layout.size):
        return None
    return dense_order(layout.size, layout.stride, program.hint)


def _walked(buffer: Buffer, loop: Loop, costs: CostModel) -> Iterator[tuple[int, ...]]:
    """Yields the orders in which a loop walks through the buffer. The variable along which the loop reads most of its
    memory comes last."""
    fast = costs.fast_variable(loop)
    variables = [r.var for r in loop.all_ranges if r.var != fast] + ([fast] if fast is not None else [])
    place: dict[Symbol, int] = {var: number for number, var in enumerate(variables)}
    size = buffer.layout.size
    for access in loop.accesses:
        if access.buffer != buffer.name or access.is_indirect:
            continue
        last = [max((place.get(var, -1) for var in expr.free_symbols), default=-1) for expr in access.index]
        order = sorted(range(len(size)), key=lambda dim: (size[dim] != ONE, last[dim], dim))
        yield tuple(order)
