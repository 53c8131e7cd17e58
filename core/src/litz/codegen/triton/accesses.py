"""How a flat loop walks through memory: for each load and store, its stride along every range and the bytes it moves.

The tiler decides from this which ranges must lie along the lanes of a warp for accesses to be coalesced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from litz.ir import Loop, Program
from litz.ir.index import Expr, Symbol, is_placeholder, stride_of


@dataclass(frozen=True)
class Access:
    """One load or store. `strides` has the ranges that its offset depends on; None where a stride is not the same
    everywhere. `bytes` is what it moves over the whole loop, each element counted once (for the hinted sizes)."""

    buffer: str
    offset: Expr
    strides: Mapping[Symbol, Expr | None]
    itemsize: int
    bytes: int
    is_store: bool
    is_indirect: bool

    def contiguous_along(self, var: Symbol) -> bool:
        return self.strides.get(var) == 1


def find_accesses(loop: Loop, program: Program) -> tuple[Access, ...]:
    """The accesses of a flat loop."""
    found: dict[tuple[str, Expr, bool], Access] = {}
    sites = [(node.buffer, node.index[0], False, bool(node.indirect)) for node in loop.loads]
    sites += [(store.buffer, store.index[0], True, bool(store.indirect)) for store in loop.stores]
    for name, offset, is_store, is_indirect in sites:
        strides: dict[Symbol, Expr | None] = {}
        moved = program.buffers[name].dtype.itemsize
        for r in loop.all_ranges:
            step = stride_of(offset, r.var)
            if step == 0:
                continue
            strides[r.var] = step
            moved *= program.hint(r.size)
        is_indirect = is_indirect or any(is_placeholder(s) for s in offset.free_symbols)
        itemsize = program.buffers[name].dtype.itemsize
        found.setdefault(
            (name, offset, is_store), Access(name, offset, strides, itemsize, moved, is_store, is_indirect)
        )
    return tuple(found.values())


def bytes_along(accesses: tuple[Access, ...], var: Symbol) -> int:
    """Bytes of the accesses that are contiguous along `var`."""
    return sum(access.bytes for access in accesses if access.contiguous_along(var))
