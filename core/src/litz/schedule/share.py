"""Half values that several operations read: each of these sees what memory would hold, fused or not. In and out: a
Program.

A value that one reader alone sees may stay as it was computed, in float32. Where there are several, one may read memory
and another compute the value again: a maximum of the values before rounding is smaller than one of them after it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from litz.ir import Loop, Operation, Program, Store
from litz.ir.build import rounded
from litz_plugins import PassContext


def round_shared(program: Program, context: PassContext) -> Program:
    """Returns the program with half values rounded where they are computed, if two operations read them, or if one does
    and the program returns them (a pass). `round_inlined` is the same for what inlining has several operations read."""
    roots = program.roots
    users = [*(operation.reads for operation in program.operations), program.output_buffers]
    counts = Counter(root for names in users for root in {roots.get(name, name) for name in names})

    def once(store: Store) -> Store:
        shared = store.mode == "set" and counts[roots.get(store.buffer, store.buffer)] > 1
        value = rounded(store.value) if shared and store.value.op != "load" else store.value
        return store if value is store.value else replace(store, value=value)

    def changed(operation: Operation) -> Operation:
        if not isinstance(operation, Loop):
            return operation
        stores = tuple(map(once, operation.stores))
        return operation if stores == operation.stores else replace(operation, stores=stores)

    operations = tuple(map(changed, program.operations))
    return program if operations == program.operations else replace(program, operations=operations)
