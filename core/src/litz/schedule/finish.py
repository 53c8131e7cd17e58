"""What the last programs of a kernel may run: the loops of a `Kernel`'s `finish`.

In: a kernel's loop, and the loops that are to finish the kernel. Out: why they may not. A kernel of partial results
with a `finish` also combines them: its programs count, per block of outputs, how many of them have stored their part,
and the last one combines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from litz.ir import Loop, Store
from litz.ir.accesses import Access, are_apart
from litz.ir.index import Symbol, known_nonnegative


def why_not_finish(first: Loop, before: Sequence[Loop], finish: Loop, roots: Mapping[str, str]) -> str | None:
    """Returns why `finish` cannot be run by the last programs of `first`; None if it can. before: the loops that the
    last programs run before it. roots: memory that buffers share."""
    if first.device != finish.device:
        return "is on another device"
    if not first.is_reduction or not finish.is_reduction:
        return "is not a reduction of partial results"
    outer = {r.var: r.size for r in first.ranges}
    own = {r.var: r.size for r in finish.ranges}
    if any(outer.get(var) != size for var, size in own.items()):
        return "has other outputs"
    if any(set(other.ranges) != set(finish.ranges) for other in before):
        return "has other outputs than the loop before it, so other programs would share them"
    if not all(r.size.is_Integer and int(r.size) > 0 for r in finish.ranges):
        return "the number of its outputs is symbolic"
    pieces = [size for var, size in outer.items() if var not in own]
    if not all(known_nonnegative(size - 1) for size in pieces):
        return "there may be no partial result to combine"
    wrong = _reads_elsewhere(first, finish, set(outer))
    if wrong is not None:
        return wrong
    touched = _memory((first, *before), roots, "reads", "writes")
    if touched & _memory((finish,), roots, "writes"):
        return "writes memory that other programs or threads may still use"
    if _memory(before, roots, "writes") & _memory((finish,), roots, "reads"):
        return "reads memory that other threads have just written"
    return None


def may_finish(first: Loop, finish: Sequence[Loop], roots: Mapping[str, str]) -> bool:
    """Returns whether the last programs of `first` can run all of these loops, in their order."""
    return not any(why_not_finish(first, finish[:n], other, roots) for n, other in enumerate(finish))


def _memory(loops: Iterable[Loop], roots: Mapping[str, str], *uses: str) -> set[str]:
    """Returns the memory that loops read or write, by its root buffers."""
    return {roots.get(name, name) for loop in loops for use in uses for name in getattr(loop, use)}


def _reads_elsewhere(first: Loop, finish: Loop, outer: set[Symbol]) -> str | None:
    """A complaint if `finish` reads of `first` anything but its own outputs' pieces, plainly stored once per output."""
    inner = {r.var for r in finish.reduction_ranges}
    stored: dict[str, list[tuple[Store, Access]]] = {}
    for store, access in zip(first.stores, (each for each in first.accesses if each.is_store), strict=True):
        stored.setdefault(store.buffer, []).append((store, access))
    shared = [node for node in finish.loads if node.buffer in stored]
    if not shared:
        return "reads no result of the first kernel"
    for node in shared:
        parts = stored[node.buffer]
        once = all(store.is_plain and not first.at_reduction_level(store) for store, _ in parts)
        once &= all(are_apart(a, b, first.extents) for (_, a), (_, b) in combinations(parts, 2))
        if not once or node.indirect:
            return f"reads {node.buffer}, which is not stored once per output"
        for store, _ in parts:
            if len(store.index) != len(outer) or {at.as_coeff_Add()[1] for at in store.index} != outer:
                return f"reads {node.buffer}, which not every program stores a part of"
        pairs = (zip(node.index, store.index, strict=True) for store, _ in parts)
        if not any(all(own == theirs or own in inner for own, theirs in each) for each in pairs):
            return f"reads {node.buffer} at other outputs than its own"
    return None
