"""What loops have in common that differ in the names of their buffers only.

A model repeats its layers: what is worked out about one layer's loops (an estimate, a kernel's text) holds for those of
all others. In: loops and their program. Out: a key that is equal for equal structure. `buffers_of` names the buffers in
an order that is the same for equal keys, so that what was said of one loop's buffers can be said of another's.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from .index import Symbol, symbols_in
from .node import attr_key
from .operation import Loop
from .program import Program


def buffers_of(loops: Sequence[Loop]) -> tuple[str, ...]:
    """Returns the buffers that loops touch, loop after loop: those that are read, then those that are written, in order
    of first use."""
    return tuple(dict.fromkeys(name for loop in loops for name in (*loop.reads, *loop.writes)))


def structure_of(loops: Sequence[Loop], program: Program) -> Hashable:
    """Returns the loops without names: ranges, bodies, the buffers' layouts, dtypes and kinds, and likely sizes."""
    names = {name: number for number, name in enumerate(buffers_of(loops))}
    buffers = tuple((b.layout, b.dtype, b.device, b.kind) for b in (program.buffers[name] for name in names))
    layouts = (symbols_in(sizes) for layout, *_ in buffers for sizes in (layout.size, layout.stride))
    symbols = frozenset[Symbol]().union(*layouts, *(loop.free_symbols for loop in loops))
    hints = tuple(sorted((str(symbol), program.hint(symbol)) for symbol in symbols))
    return tuple(_loop(loop, names) for loop in loops), buffers, hints


def _loop(loop: Loop, names: Mapping[str, int]) -> Hashable:
    places = {node: number for number, node in enumerate(loop.nodes)}
    body = tuple(
        (
            node.op,
            node.dtype,
            (names[node.buffer], *node.attrs[1:]) if node.op == "load" else tuple(map(attr_key, node.attrs)),
            tuple(places[arg] for arg in node.args),
        )
        for node in loop.nodes
    )
    stores = tuple(
        (names[store.buffer], store.index, store.mode, tuple(places[root] for root in store.roots), store.mask is None)
        for store in loop.stores
    )
    return loop.device, loop.ranges, loop.reduction_ranges, body, stores
