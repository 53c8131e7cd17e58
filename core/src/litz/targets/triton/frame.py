"""Rows that begin anywhere: blocks along a row that begin where 16-byte accesses may, however the row lies.

A row of 50257 elements of two bytes begins at any even address, and no access to it may be wider than an element. So a
block begins at the last multiple of `lanes` elements that is not behind the row's first one: `lead` lanes before the
row, and those behind its end, belong to other rows. What they load is not used; the element that a thread needs and the
rest of the 16 bytes around it are read together, never more than that. Stores may not touch them: groups of lanes that
lie in the row are stored 16 bytes at a time, and what is left of it at both ends an element at a time.

Rows of 1001 elements begin at lane 0, 1, ... 7 of 8, and then at 0 again: a program whose rows are 8 apart needs one
`lead` for all, one mask, and one load of what all rows share (`Frame.period`).

In: a flat loop whose rows are contiguous. Out: a `Frame`, or None where rows are aligned or it does not fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gcd

from litz.codegen.kernel_plan import KernelPlan
from litz.ir import Loop, Node, Range, Store
from litz.ir.accesses import Access
from litz.ir.index import ZERO, Expr, Symbol, product, stride_of

VECTOR = 16
"""Bytes of the widest access of a thread."""


@dataclass(frozen=True)
class Frame:
    """start: the offset of a row's first element, by the output ranges' variables. var: that of the row. lanes: a power
    of two, to whose multiples blocks are aligned. buffers: those whose memory begins at a multiple of 16 bytes. slope,
    first: row n, numbered along the loop's ranges, begins at `slope * n + first` modulo `lanes`; slope is None where it
    does not."""

    start: Expr
    var: Symbol
    lanes: int
    buffers: frozenset[str]
    slope: int | None = None
    first: int = 0

    @property
    def period(self) -> int:
        """Returns how many rows further a row begins at the same lane; 0 if not known."""
        return 0 if self.slope is None else self.lanes // gcd(self.slope, self.lanes)

    def __str__(self) -> str:
        return f"from multiples of {self.lanes} below {self.start}"

    def rest(self, buffer: str, offset: Expr) -> Expr | None:
        """Returns how far an access lies from the row, a multiple of `lanes`. None if the distance is no such multiple,
        or if the buffer's memory may begin elsewhere than at a multiple of 16 bytes."""
        rest = offset - self.var - self.start
        return rest if buffer in self.buffers and is_multiple(rest, self.lanes) else None

    def holds(self, site: Node | Store, buffer: str, offset: Expr, masked: bool) -> bool:
        """Returns whether the access is made in whole groups of lanes."""
        return not masked and not site.indirect and self.rest(buffer, offset) is not None


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
    if is_multiple(start, lanes) or not _is_positive(start) or _overwrites(loop, plan):
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


def _terms(expr: Expr) -> Iterator[tuple[int, Expr]]:
    """The coefficients of a sum, and what they are coefficients of; 0 for what is no integer's multiple."""
    for term in expr.expand().as_ordered_terms() if expr != 0 else ():
        coefficient, rest = term.as_coeff_Mul()
        yield (int(coefficient) if coefficient.is_Integer else 0), rest


def is_multiple(expr: Expr, of: int) -> bool:
    """Returns whether a sum is a multiple of a number, term by term."""
    return all(coefficient and coefficient % of == 0 for coefficient, _ in _terms(expr))


def _is_positive(expr: Expr) -> bool:
    """Is the expression a sum of loop variables with positive coefficients only?"""
    return all(coefficient > 0 and (rest.is_Symbol or rest == 1) for coefficient, rest in _terms(expr))


def _overwrites(loop: Loop, plan: KernelPlan) -> bool:
    """Is memory stored to that is read at another place? What is computed again reads it late."""
    stored = {plan.inplace.get(store.buffer, store.buffer): store.index for store in loop.stores}
    loaded = [(plan.inplace.get(node.buffer, node.buffer), node) for node in loop.loads]
    return any(name in stored and (node.index != stored[name] or bool(node.indirect)) for name, node in loaded)


__all__ = ["VECTOR", "Frame", "find_frame", "is_multiple"]
