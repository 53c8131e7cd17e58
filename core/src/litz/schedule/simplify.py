"""Program passes before fusion: what need not be done. In and out: a Program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from litz.ir import Collective, Extern, Loop, Operation, Program, Wait
from litz_plugins import PassContext


def remove_dead_operations(program: Program, context: PassContext) -> Program:
    """Returns the program without operations that have no effect and whose results are not used, and without stores
    that are not read."""
    roots = program.roots
    live = {roots.get(name, name) for name in program.output_buffers}
    needed_sizes = {s for item in program.outputs for s in getattr(item, "free_symbols", ())}
    kept: list[Operation] = []
    for operation in reversed(program.operations):
        if isinstance(operation, Loop):
            stores = tuple(store for store in operation.stores if _is_live(store.buffer, live, roots, program))
            if not stores:
                context.record(operation.name, "removed", "nothing reads what the loop stores")
                continue
            if len(stores) < len(operation.stores):
                operation = replace(operation, stores=stores)
        elif not _must_run(operation, live, roots, program, needed_sizes):
            context.record(operation.name, "removed", "nothing reads what the call returns")
            continue
        live.update(roots.get(name, name) for name in operation.reads)
        kept.append(operation)
    if len(kept) == len(program.operations) and all(a is b for a, b in zip(kept, reversed(program.operations))):
        return program
    return with_operations(program, tuple(reversed(kept)))


def with_operations(program: Program, operations: tuple[Operation, ...]) -> Program:
    """Returns the program with other operations, and without the temporaries that none of them reads or writes."""
    used = {name for operation in operations for name in (*operation.reads, *operation.writes)} | program.output_buffers
    kept = {name: buffer for name, buffer in program.buffers.items() if name in used or buffer.kind != "temporary"}
    return replace(program, operations=operations, buffers=kept)


def _is_live(name: str, live: set[str], roots: Mapping[str, str], program: Program) -> bool:
    root = roots.get(name, name)
    return root in live or program.buffers[name].kind != "temporary" or program.buffers[root].kind != "temporary"


def _must_run(
    extern: Extern, live: set[str], roots: Mapping[str, str], program: Program, needed_sizes: set[object]
) -> bool:
    if extern.effect or extern.mutates or extern.unbacked:
        return True
    # A communication that is started must be finished, on every rank alike.
    if isinstance(extern, (Collective, Wait)):
        return True
    return any(_is_live(name, live, roots, program) for name in extern.writes)
