"""What a loop moves, and what its threads hold: the facts that tilings are chosen by."""

from __future__ import annotations

from collections.abc import Mapping

from litz.codegen.kernel_plan import KernelPlan
from litz.ir import Loop, Range
from litz.ir.accesses import Access, bytes_moved, distinct
from litz.ir.index import Symbol

Traffic = Mapping[Access, int]
"""The distinct accesses of a flat loop, and the bytes that each moves in all, each element counted once."""


def find_traffic(loop: Loop, plan: KernelPlan) -> Traffic:
    """Returns the bytes that each access moves, for the hinted sizes."""
    return {
        access: bytes_moved(loop, access, plan.hint, plan.hint(plan.buffers[access.buffer].nbytes))
        for access in distinct(loop.accesses)
    }


def bytes_along(traffic: Traffic, var: Symbol) -> int:
    """Returns the bytes of the accesses that are contiguous along `var`."""
    return sum(moved for access, moved in traffic.items() if access.stride(var) == 1)


def innermost_last(ranges: tuple[Range, ...], traffic: Traffic) -> tuple[Range, ...]:
    """The ranges with the one along which most bytes are contiguous as the last; the others keep their order."""
    if len(ranges) < 2:
        return ranges
    votes = {r.var: bytes_along(traffic, r.var) for r in ranges}
    best = max(reversed(ranges), key=lambda r: votes[r.var])
    return (*(r for r in ranges if r.var != best.var), best)


def live_values(loop: Loop) -> int:
    """Returns how many values per element a row held in registers needs at a time, roughly."""
    return max(1, sum(1 for node in loop.loads if loop.levels[node]))


def writes_rows(loop: Loop) -> bool:
    """Returns whether something is stored for each element of a row."""
    return any(loop.at_reduction_level(store) for store in loop.stores)
