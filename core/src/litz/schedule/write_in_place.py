"""Writes into a part of a tensor, done where the tensor lies.

In and out: a Program. `cache.index_copy_(...)` arrives as a copy of the input, a scatter into the copy, and the copy
written back at the end. Where the input is not looked at in between except through the copy, the scatter writes the
input itself and both copies go: a decoding step moves a row of its cache and not all of it.
"""

from __future__ import annotations

from dataclasses import replace

from litz.ir import Loop, Operation, Program
from litz.ir.index import ONE, ZERO
from litz.ir.transform import rename_buffers
from litz_plugins import PassContext


def write_in_place(program: Program, context: PassContext) -> Program:
    """The pass."""
    while (found := _next(program, context)) is not None:
        copy, back, old, new = found
        kept = [op for op in program.operations if op.name not in (copy.name, back.name)]
        names = {new: old}
        buffers = {name: buffer for name, buffer in program.buffers.items() if name != new}
        program = replace(program, operations=tuple(rename_buffers(op, names) for op in kept), buffers=buffers)
        context.record(copy.name, "in place", f"{new} is {old} from here on, and nothing reads what {old} was")
    return program


def _next(program: Program, context: PassContext) -> tuple[Loop, Loop, str, str] | None:
    """A copy of an input, its way back, the input's name and the copy's."""
    inputs = frozenset(program.input_buffers)
    for operation in program.operations:
        pair = _copied(operation, program)
        if pair is None or pair[0] not in inputs:
            continue
        old, new = pair
        back = _way_back(program, old, new)
        if back is not None and _may_be_one(program, operation, back, old, new, context):
            assert isinstance(operation, Loop)
            return operation, back, old, new
    return None


def _copied(operation: Operation, program: Program) -> tuple[str, str] | None:
    """(source, copy) where an operation does nothing but store each element of one buffer at its place in another that
    lies likewise."""
    if not isinstance(operation, Loop) or len(operation.stores) != 1 or operation.is_reduction:
        return None
    (store,) = operation.stores
    value = store.value
    if not store.is_plain or value.op != "load" or value.indirect or value.mask is not None:
        return None
    source, copy = program.buffers[value.buffer], program.buffers[store.buffer]
    if source.layout != copy.layout or source.dtype != copy.dtype or source.device != copy.device:
        return None
    sizes = {r.var: r.size for r in operation.ranges}
    whole = len(set(store.index) - {ZERO}) == sum(size != ONE for size in copy.layout.size) and all(
        size == ONE if at == ZERO else sizes.get(at) == size
        for at, size in zip(store.index, copy.layout.size, strict=True)
    )
    return (value.buffer, store.buffer) if whole and value.index == store.index else None


def _way_back(program: Program, old: str, new: str) -> Loop | None:
    """The copy of `new` to `old`, the only write of it."""
    writers = program.writers[old]
    if len(writers) != 1 or not isinstance(writers[0], Loop) or _copied(writers[0], program) != (new, old):
        return None
    return writers[0]


def _may_be_one(program: Program, copy: Operation, back: Loop, old: str, new: str, context: PassContext) -> bool:
    """May a copy and its original be one buffer? Whoever else reads the original comes before the copy is changed,
    whoever changes it before the way back, and nobody knows either by another name."""
    if new in program.output_buffers or program.buffers[new].kind != "temporary" or _shared(program, old, new):
        return False
    place = program.positions
    changes = [op for op in program.writers[new] if op.name != copy.name]
    if not changes or any(not _only_stores(op, old, new, program, context) for op in changes):
        return False
    first, last = place[changes[0].name], place[changes[-1].name]
    others = [op for op in program.readers[old] if op.name != copy.name]
    return all(place[op.name] < first for op in others) and place[copy.name] < first and last < place[back.name]


def _shared(program: Program, *names: str) -> bool:
    return any(name in names or base in names for name, base in program.roots.items() if name != base)


def _only_stores(operation: Operation, old: str, new: str, program: Program, context: PassContext) -> bool:
    """Does a loop that changes the copy read neither, and is no check of a position left to fail while it runs? Where
    the host waits for the loop, a failed check is an error that a program may catch, and the input must be whole."""
    if not isinstance(operation, Loop) or {old, new} & {node.buffer for node in operation.loads}:
        return False
    checked = any(node.op == "bounded" for node in operation.nodes)
    return not checked or context.target_of(operation.device).asynchronous


__all__ = ["write_in_place"]
