"""Writes into an input where it lies, of what functionalization made a copy, writes into the copy and a copy back.

In and out: a Program. `cache.index_copy_(2, position, key)` becomes, as AOTAutograd has it, a new tensor with all of
the cache and the new keys, and at the end all of it is copied to the cache: twice the cache is read and written for one
row. Where nobody wants the old values any more once the new ones are written, the copy is the input. Where inputs lie,
and that they share no memory but as they were traced, is looked at on each call (`litz.capture.aliasing`).

A kernel of the user's writes a copy too, and so does a scatter. Where what was copied is a temporary that nobody reads
afterwards, it is made in the copy's place.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from litz.ir import Extern, KernelCall, Loop, Node, Operation, Part, Program, TensorRef
from litz.ir.arguments import rebuild
from litz.ir.node import intern, with_args
from litz.ir.pattern import copy_source, fits
from litz.ir.transform import map_stores
from litz_plugins import KernelSource, PassContext


def write_in_place(program: Program, context: PassContext) -> Program:
    """Writes into an input itself, not into a copy that is copied back (a pass), where nothing reads the old values
    once the first new one is written."""
    if not getattr(context.options, "memory_planning", True):
        return program
    for name in list(program.input_buffers):
        copy = _copy_of(name, program)
        if copy is None or _may_fail(copy, program, context) or not context.allows(name):
            continue
        first, last = program.writers[copy][0].name, program.writers[name][0].name
        reason = f"nobody reads the original that {first} copied after the copy is written"
        context.record(name, "written in place", reason, about=name)
        operations = (renamed(op, copy, name) for op in program.operations if op.name not in (first, last))
        buffers = {each: buffer for each, buffer in program.buffers.items() if each != copy}
        program = replace(program, operations=tuple(operations), buffers=buffers)
    written = [name for op in program.operations for name in _written_into(op)]
    for name in dict.fromkeys(written):
        if name in program.buffers:
            program = _made_in_place(name, program, context)
    return program


def _written_into(operation: Operation) -> tuple[str, ...]:
    """The buffers of which an operation may change a part."""
    if isinstance(operation, Loop):
        return tuple(store.buffer for store in operation.stores if not store.is_plain)
    return operation.mutates if isinstance(operation, KernelCall) else ()


def _made_in_place(copy: str, program: Program, context: PassContext) -> Program:
    """The program without the loop that copies a temporary to `copy`, where nobody reads the temporary after that."""
    at = program.positions
    first, *others = program.writers[copy]
    old = copy_source(first, copy, program)
    if old is None or not others or not fits("unshared", copy, program) or not _lies_as(old, copy, program):
        return program
    begin = min(at[op.name] for op in others)
    if any(at[op.name] >= begin for op in program.readers[old]) or any(
        at[op.name] > at[first.name] for op in program.writers[old]
    ):
        return program
    if not context.allows(copy):
        return program
    reason = f"nobody reads the original that {first.name} copied after the copy is written"
    context.record(copy, "made in place", reason, about=copy)
    operations = tuple(renamed(op, old, copy) for op in program.operations if op.name != first.name)
    return replace(program, operations=operations, buffers={n: b for n, b in program.buffers.items() if n != old})


def _copy_of(name: str, program: Program) -> str | None:
    """The temporary that all of an input is copied to, and that is copied back to it at the end; None if there is none,
    or the two are needed at the same time."""
    last = program.maker(name)
    copy = None if last is None else copy_source(last, name, program)
    if last is None or copy is None or not fits("unshared", name, program) or not _lies_as(copy, name, program):
        return None
    first, *others = program.writers[copy]
    if copy_source(first, copy, program) != name:
        return None
    if any(isinstance(op, Extern) and copy in op.outputs for op in others):
        return None  # the call makes a tensor of its own
    at = program.positions
    begin, end = (at[op.name] for op in ((*others, last)[0], last))
    if any(at[op.name] > end for op in others):
        return None
    olds = (op for op in program.readers[name] if op is not first)
    return copy if all(at[op.name] < begin for op in olds) else None


def _may_fail(copy: str, program: Program, context: PassContext) -> bool:
    """Returns whether an index out of range may be an error that one survives, on a device that the host waits for. The
    input has its old values then, as in eager."""
    writers = [op for op in program.writers[copy] if isinstance(op, Loop)]
    checks = any(node.op == "bounded" for op in writers for node in op.nodes)
    return checks and not context.target_of(program.buffers[copy].device).asynchronous


def _lies_as(name: str, other: str, program: Program) -> bool:
    """Returns whether a buffer is a temporary of its own that lies in memory as another buffer does."""
    mine, own = program.buffers[name], program.buffers[other]
    alike = mine.layout == own.layout and mine.dtype == own.dtype and mine.device == own.device
    return alike and fits("temporary unshared unreturned", name, program)


def renamed(value: Any, old: str, new: str) -> Any:
    """Returns an operation, or a part of one, with a buffer's name replaced."""
    if isinstance(value, TensorRef):
        return replace(value, buffer=new) if value.buffer == old else value
    if isinstance(value, KernelSource):
        return replace(value, arguments=tuple(new if item == old else item for item in value.arguments))
    if isinstance(value, Loop):
        return _renamed_loop(value, old, new)
    if isinstance(value, Extern):
        found = _renamed_fields(value, old, new)
        own = {each: tuple(new if n == old else n for n in getattr(found, each)) for each in ("mutates", "outputs")}
        return replace(found, **own)
    if isinstance(value, (tuple, list, dict)):
        return rebuild(value, lambda leaf: renamed(leaf, old, new))
    return _renamed_fields(value, old, new) if isinstance(value, Part) else value


def _renamed_fields(value: Any, old: str, new: str) -> Any:
    return replace(value, **{each.name: renamed(getattr(value, each.name), old, new) for each in fields(value)})


def _renamed_loop(loop: Loop, old: str, new: str) -> Loop:
    if old not in loop.reads and old not in loop.writes:
        return loop

    def change(node: Node, args: tuple[Node, ...]) -> Node:
        if node.op != "load" or node.buffer != old:
            return with_args(node, args)
        return intern("load", node.dtype, args, (new, *node.attrs[1:]))

    stores = map_stores(loop.stores, change)
    return replace(loop, stores=tuple(replace(s, buffer=new if s.buffer == old else s.buffer) for s in stores))


__all__ = ["renamed", "write_in_place"]
