"""Questions to plugins about the time of loops, remembered by structure.

In: what asks the plugins. Out: the same, which asks once for all loops that differ in names only: thousands of loops
are compared in a compile, and a model repeats its layers.
"""

from __future__ import annotations

from typing import Any

from litz.ir import Loop, Program
from litz_plugins import Ask, Estimate, Target


class Asked:
    """An `Ask` that remembers the answers about loops."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._answers: dict[Any, tuple[str, Estimate] | None] = {}

    def __call__(self, operation: Any, target: Target, program: Program) -> tuple[str, Estimate] | None:
        if not isinstance(operation, Loop):
            return self._ask(operation, target, program)
        if not self._answers:
            found = self._ask(operation, target, program)
            # As long as all decline, asking takes less time than looking up.
            if found is not None:
                self._answers[structure(operation, target, program)] = found
            return found
        key = structure(operation, target, program)
        if key not in self._answers:
            self._answers[key] = self._ask(operation, target, program)
        return self._answers[key]


def structure(loop: Loop, target: Target, program: Program) -> Any:
    """What two loops have in common that differ in names only, as something hashable: ranges, body, layouts and types
    of the buffers, likely sizes, target."""
    names = {name: number for number, name in enumerate(dict.fromkeys((*loop.reads, *loop.writes)))}
    places = {node: number for number, node in enumerate(loop.nodes)}
    body = tuple(
        (
            node.op,
            node.dtype,
            (names[node.buffer], *node.attrs[1:]) if node.op == "load" else node.attrs,
            tuple(places[arg] for arg in node.args),
        )
        for node in loop.nodes
    )
    stores = tuple(
        (names[store.buffer], store.index, store.mode, tuple(places[root] for root in store.roots), store.mask is None)
        for store in loop.stores
    )
    buffers = tuple((b.layout, b.dtype, b.device, b.kind) for b in (program.buffers[name] for name in names))
    sizes = {s for b in buffers for e in (*b[0].size, *b[0].stride) for s in e.free_symbols} | loop.free_symbols
    hints = tuple(sorted((str(symbol), program.hint(symbol)) for symbol in sizes))
    return target, loop.ranges, loop.reduction_ranges, body, stores, buffers, hints
