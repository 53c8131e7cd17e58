"""Finds the `Frame` of rows that begin anywhere."""

from __future__ import annotations

from collections.abc import Sequence

from litz.codegen.kernel_plan import KernelPlan
from litz.ir import Loop, Range
from litz.ir.accesses import Access
from litz.ir.index import ZERO, Expr, Symbol, product, stride_of
from litz.tiles.shape import VECTOR, Frame, is_multiple, terms


def find_frame(loop: Loop, plan: KernelPlan, rows: tuple[Range, ...]) -> Frame | None:
    """Returns the frame of rows along one range; None for sizes that are not constants and for rows that are
    scanned."""
    if len(rows) != 1 or not rows[0].size.is_Integer or loop.has_scan:
        return None
    (row,) = rows
    fitting = [access for access in loop.accesses if _fits(access, row.var, plan)]
    if not fitting:
        return None
    lanes = VECTOR // min(access.itemsize for access in fitting)
    moved: dict[Expr, int] = {}
    for access in fitting:
        start = access.offset - row.var
        same = next((other for other in moved if is_multiple(start - other, lanes)), start)
        moved[same] = moved.get(same, 0) + access.itemsize
    start = max(moved, key=lambda start: moved[start])
    positive = all(coefficient > 0 and (rest.is_Symbol or rest == 1) for coefficient, rest in terms(start))
    if is_multiple(start, lanes) or not positive or _overwrites(loop, plan):
        return None
    outer = {r.var for r in loop.ranges}
    if not start.free_symbols <= outer or bool(outer) > bool(start.free_symbols):
        return None  # its rows are not those of the outputs
    slope, first = _progression(start, loop.ranges, lanes)
    return Frame(start, row.var, lanes, frozenset(access.buffer for access in fitting), slope, first)


def _progression(start: Expr, outputs: Sequence[Range], lanes: int) -> tuple[int | None, int]:
    """(slope, first), where rows numbered along the outputs begin at `slope * number + first` modulo `lanes`."""
    first = start.xreplace({r.var: ZERO for r in outputs})
    slope = stride_of(start, outputs[-1].var) if outputs else None
    if slope is None or not slope.is_Integer or not first.is_Integer:
        return None, 0
    for number, r in enumerate(outputs):
        step = stride_of(start, r.var)
        if step is None or not is_multiple(step - slope * product(each.size for each in outputs[number + 1 :]), lanes):
            return None, 0
    return int(slope) % lanes, int(first) % lanes


def _fits(access: Access, var: Symbol, plan: KernelPlan) -> bool:
    site = access.site
    return (
        access.inner
        and not access.is_indirect
        and site.mask is None
        and access.mode in (None, "set")
        and access.itemsize <= VECTOR // 2
        and plan.inplace.get(access.buffer, access.buffer) not in plan.unaligned
        and plan.buffers[access.buffer].device.type == plan.device.type
        and bool(plan.buffers[access.buffer].layout.span.is_Integer)
        and access.stride(var) == 1
    )


def _overwrites(loop: Loop, plan: KernelPlan) -> bool:
    """Returns whether a loop stores to memory that it reads at another place. What is computed again reads it late."""
    stored = {plan.inplace.get(store.buffer, store.buffer): store.index for store in loop.stores}
    loaded = [(plan.inplace.get(node.buffer, node.buffer), node) for node in loop.loads]
    return any(name in stored and (node.index != stored[name] or bool(node.indirect)) for name, node in loaded)
