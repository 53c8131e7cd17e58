"""Accesses: what a loop loads and stores, and how each access walks through its buffer.

Every `Loop` has them, as `loop.accesses`. Fusion, costs and code generation each add up what they ask about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING

from .index import ZERO, Expr, Mod, PythonMod, Ranges, Symbol, bounds, is_placeholder, stride_of, symbols_in, to_expr
from .node import Node

if TYPE_CHECKING:
    from .buffer import Layout
    from .operation import Loop, Store, StoreMode


@dataclass(frozen=True, eq=False)
class Access:
    """One load or store of a loop.

    site: the load's node, or the store. index: an expression per dimension of the buffer; in a flat loop one, the
    offset in elements. symbols: those of the index, placeholders among them. itemsize: bytes of an element. inner: is
    the access made at every point of the reduction ranges, rather than of the output ranges alone? mode: of a store;
    None for a load. is_indirect: does the position come from data?
    """

    site: Node | Store
    buffer: str
    index: tuple[Expr, ...]
    symbols: frozenset[Symbol]
    itemsize: int
    inner: bool
    mode: StoreMode | None
    is_indirect: bool

    @property
    def is_store(self) -> bool:
        """Returns whether the access is a store. Only stores have a mode."""
        return self.mode is not None

    @property
    def offset(self) -> Expr:
        """Returns the offset in elements of an access of a flat loop."""
        (offset,) = self.index
        return offset

    def stride(self, var: Symbol) -> Expr | None:
        """Returns how many elements an access of a flat loop moves when `var` grows by one; None if that varies."""
        return stride_of(self.offset, var)

    def unit_variable(self, layout: Layout, extents: Ranges) -> Symbol | None:
        """Returns the variable along which neighbouring iterations touch neighbouring elements of a buffer of this
        layout; None if there is none. extents: of the loop's variables."""
        steps = zip(self.index, layout.stride, strict=True)
        found = (_unit(expr, extents) for expr, step in steps if step == 1)
        return next((var for var in found if var is not None), None)

    def __str__(self) -> str:
        verb = "load" if self.mode is None else "store" if self.mode == "set" else self.mode
        return f"{verb} {self.buffer}[{', '.join(map(str, self.index))}]"


def _unit(expr: Expr, extents: Ranges) -> Symbol | None:
    """Returns the loop variable that has coefficient 1 in an index expression; None if there is none."""
    if expr.is_Symbol:
        return expr if expr in extents else None
    if expr.is_Add:
        found = (_unit(term, extents) for term in expr.args if not term.is_Mul)
        return next((var for var in found if var is not None), None)
    return _unit(expr.args[0], extents) if isinstance(expr, (Mod, PythonMod)) else None


def mean_stride(expr: Expr, var: Symbol, loop: Loop, size: int, hint: Callable[[Expr], int]) -> float:
    """Returns how much an index expression of a loop grows on average when `var`, whose extent is `size`, grows by one.
    hint: a likely value of an expression of sizes."""
    slope = stride_of(expr, var)
    if slope is not None:
        return hint(slope)
    # Sizes stay: positions may be divided by them.
    others = {s for s in expr.free_symbols if s in loop.extents or is_placeholder(s)} - {var}
    last = max(size - 1, 1)
    at_end, at_start = (expr.xreplace({**dict.fromkeys(others, ZERO), var: to_expr(n)}) for n in (last, 0))
    return hint(at_end - at_start) / last


def bytes_moved(loop: Loop, access: Access, hint: Callable[[Expr], int], whole: int) -> int:
    """Returns the bytes of a buffer that an access moves over a whole loop, each element counted once. hint: a likely
    value of a size. whole: bytes of the buffer."""
    return min(access.itemsize * prod(hint(loop.extents[var]) for var in loop.positions_by(access)), whole)


def are_apart(a: Access, b: Access, extents: Ranges) -> bool:
    """Returns whether two accesses of one buffer walk through different parts of it, as through the halves of a row:
    along some dimension they are a constant apart that neither gets past. extents: of the loop's variables."""
    for left, right in zip(a.index, b.index, strict=True):
        if left == right or left.is_Integer:
            continue
        (first, rest), (second, other) = left.as_coeff_Add(), right.as_coeff_Add()
        if rest != other or not (first - second).is_Integer:
            continue
        low, high = bounds(rest, extents)
        if low is not None and high is not None and (high - low).is_Integer and abs(first - second) > high - low:
            return True
    return False


def find_accesses(loop: Loop) -> Iterator[Access]:
    """Returns the loads of a loop, then its stores."""
    for node in loop.loads:
        yield _load(node, loop.levels[node])
    for store in loop.stores:
        inner, itemsize, indirect = loop.at_reduction_level(store), store.value.dtype.itemsize, bool(store.indirect)
        symbols = symbols_in(store.index)
        yield Access(store, store.buffer, store.index, symbols, itemsize, inner, store.mode, indirect)


@lru_cache(maxsize=1 << 14)
def _load(node: Node, inner: bool) -> Access:
    """Makes the Access of a load; the result is remembered, as fusion puts one load into many loops."""
    symbols, indirect = symbols_in(node.index), bool(node.indirect)
    return Access(node, node.buffer, node.index, symbols, node.dtype.itemsize, inner, None, indirect)


def distinct(accesses: Iterable[Access]) -> tuple[Access, ...]:
    """Returns the accesses without those that touch the same elements in the same way as an earlier one."""
    found: dict[tuple[object, ...], Access] = {}
    for access in accesses:
        found.setdefault((access.buffer, access.index, access.is_store), access)
    return tuple(found.values())
