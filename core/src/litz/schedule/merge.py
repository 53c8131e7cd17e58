"""Two loops into one. In: two loops, the first before the second in program order, and what else needs their buffers.
Out: one Loop over the common space, or the reason why there cannot be one.

The second loop's loads of what the first one stores become the values themselves; a store that nobody else needs goes.
Code is generated pass by pass and element by element, so one loop may only touch what it writes where the same
iteration writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from litz.ir import Loop, Node, Store, build
from litz.ir.complexity import excess
from litz.ir.index import ONE
from litz.ir.transform import replace_loads

from .iteration import NOT_ALIGNED, Alignment, align, into

SCATTERED = "reads a buffer that the other scatters into"
ELSEWHERE = "reads the other's result at another position than the one where it is written"
OVERWRITES = "would overwrite memory that the other still reads"
TWO_WRITERS = "both write one buffer"


def merge(
    first: Loop,
    second: Loop,
    needed: Callable[[str], bool],
    roots: Mapping[str, str],
    most_buffers: int,
    related: bool = True,
) -> Loop | str:
    """Returns `first` and `second` as one loop, or the reason why they cannot be one. needed: whether anyone but these
    two needs a buffer. roots: the memory that aliased buffers share. related: merges only loops of which some element
    is touched by the same iteration of both."""
    reason = _hazard(first, second, roots)
    if reason is not None:
        return reason
    if first.is_reduction and second.is_reduction and (first.has_scan or second.has_scan):
        return "a scan and a reduction in one kernel"
    alignment = align(first, second)
    if isinstance(alignment, str):
        return alignment
    a, b = alignment.placed(first, second)
    if related and not _meet(a, b):
        return NOT_ALIGNED
    merged = _joined(a, b, alignment, needed)
    if isinstance(merged, str):
        return merged
    pointwise = b if first.is_reduction else a
    return _misplaced_store(pointwise, alignment) or race(merged) or _too_large(merged, most_buffers) or merged


def merge_into(first: Loop, second: Loop, needed: Callable[[str], bool], roots: Mapping[str, str]) -> Loop | str:
    """Merges two pointwise loops in the space of the first, which cannot be changed (a template's tile); returns the
    loop, or why not."""
    reason = _hazard(first, second, roots)
    if reason is not None:
        return reason
    alignment = into(first, second)
    if alignment is None:
        return NOT_ALIGNED
    merged = _joined(*alignment.placed(first, second), alignment, needed)
    return merged if isinstance(merged, str) else race(merged) or merged


def _hazard(first: Loop, second: Loop, roots: Mapping[str, str]) -> str | None:
    """Returns what forbids a merge anywhere, or None. Positions in written memory of two names cannot be compared."""
    if first.device != second.device:
        return "on different devices"
    for name in (*second.reads, *second.writes):
        root = roots.get(name)
        if root is None:
            continue
        for other in (*first.reads, *first.writes):
            written = name in second.writes or other in first.writes
            if other != name and roots.get(other) == root and written:
                return "the two use one memory by two names"
    return None


def _meet(a: Loop, b: Loop) -> bool:
    """Returns whether an iteration of one loop touches an element that the same iteration of the other touches."""
    if not set(a.loads).isdisjoint(b.loads):
        return True
    touched = {(s.buffer, s.index) for s in a.stores} | {(n.buffer, n.index) for n in a.loads}
    return any((s.buffer, s.index) in touched for s in b.stores) or any((n.buffer, n.index) in touched for n in b.loads)


def _joined(a: Loop, b: Loop, alignment: Alignment, needed: Callable[[str], bool]) -> Loop | str:
    """Two loops over one space as one loop."""
    stores = _join(a, b, needed)
    if isinstance(stores, str):
        return stores
    if not stores:
        return "nothing reads what they store"
    origins = tuple(dict.fromkeys((*a.origins, *b.origins)))
    space = alignment.ranges, alignment.reduction_ranges
    return replace(a, ranges=space[0], reduction_ranges=space[1], stores=stores, origins=origins)


def _join(first: Loop, second: Loop, needed: Callable[[str], bool]) -> tuple[Store, ...] | str:
    """The stores of both, the second's loads of the first's results replaced."""
    made: dict[str, Store] = {}
    for store in first.stores:
        if store.buffer in made or not store.is_plain:
            made[store.buffer] = replace(store, mode="add")  # not one plain value per element: nobody may read it here
        else:
            made[store.buffer] = store
    stores = second.stores
    hits = [node for node in second.loads if node.buffer in made]
    for node in hits:
        store = made[node.buffer]
        if not store.is_plain:
            return SCATTERED
        if node.indirect or node.index != store.index:
            return ELSEWHERE
    if hits:
        stores = replace_loads(stores, lambda node: _value(node, made))
    later = _by_buffer(second)
    for node in first.loads:
        for store in later.get(node.buffer, ()):
            if store.mode != "set" or store.indirect or node.indirect or node.index != store.index:
                return OVERWRITES
    kept = []
    for store in first.stores:
        if store.buffer in later:
            if not store.is_plain or any(not s.is_plain or s.index != store.index for s in later[store.buffer]):
                return TWO_WRITERS
            continue  # overwritten at once, by the same iteration
        if needed(store.buffer):
            kept.append(store)
    return (*kept, *(store for store in stores if needed(store.buffer)))


def _value(node: Node, made: Mapping[str, Store]) -> Node | None:
    """Returns the value of a load of one of the first loop's results, known without reading it."""
    store = made.get(node.buffer)
    if store is None:
        return None
    if node.mask is None:
        return store.value
    return build.call("where", node.mask, store.value, build.const(0, node.dtype))


def _misplaced_store(pointwise: Loop, alignment: Alignment) -> str | None:
    """A pointwise loop that runs at every point of a reduction must store at every point too."""
    if alignment.level != "full" or all(r.size == ONE for r in alignment.reduction_ranges):
        return None
    if all(pointwise.at_reduction_level(store) for store in pointwise.stores):
        return None
    return "stores the same value from every point of the reduction"


def race(loop: Loop) -> str | None:
    """Returns whether the loop reads what it writes, other than each iteration its own element, once."""
    written = _by_buffer(loop)
    if written.keys().isdisjoint(loop.reads):
        return None
    passes = any(node.op in ("reduce", "scan") for node in loop.nodes)
    for node in loop.loads:
        for store in written.get(node.buffer, ()):
            if node.indirect or store.indirect or node.index != store.index:
                return OVERWRITES
            # A loop with a reduction in it goes over its points more than once: a later pass would see the new value.
            if passes and (loop.levels[node] or loop.at_reduction_level(store)):
                return "the store would overwrite values that a later pass over the reduction reads"
    return None


def _by_buffer(loop: Loop) -> dict[str, list[Store]]:
    found: dict[str, list[Store]] = {}
    for store in loop.stores:
        found.setdefault(store.buffer, []).append(store)
    return found


def _too_large(loop: Loop, most_buffers: int) -> str | None:
    if len(set(loop.reads) | set(loop.writes)) > most_buffers:
        return f"more than {most_buffers} buffers in one kernel"
    return excess(loop)
