"""Kernels that work in place: they write over a dying buffer that they read at the same positions. So does a product
that is added to a matrix.

In: steps in their order and the lifetimes of their memory. Out: the steps, `Kernel.inplace` filled in. What a forward
saved for a backward alone is such a buffer of the backward's: the gradient of the scores takes over their memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import sympy
import torch

from litz.ir import Buffer, Extern, Loop, Node, Program, Store, TensorRef
from litz.ir.index import ZERO, Expr
from litz.schedule.lifetimes import Lifetimes
from litz.schedule.schedule import Kernel, Step

LEAST_BYTES = 1 << 20
"""The fewest bytes of an input that is written over, as a call that keeps what was saved has to copy it."""


def work_in_place(program: Program, steps: Sequence[Step], lifetimes: Lifetimes) -> tuple[Step, ...]:
    """Returns the steps, with `inplace` set for kernels that may write a result over a buffer that they read last."""
    found: list[Step] = []
    called = frozenset(name for step in steps if isinstance(step, Extern) for name in step.writes)
    for number, step in enumerate(steps):
        # Where a `finish` runs, other programs may still be in the first; what runs beside may read what dies here.
        if isinstance(step, Kernel) and not step.finish and not step.beside:
            pairs = _in_place_pairs(step, number, program, lifetimes, called)
            step = replace(step, inplace=pairs) if pairs else step
        found.append(step)
    return tuple(found)


def _in_place_pairs(
    kernel: Kernel, number: int, program: Program, lifetimes: Lifetimes, called: frozenset[str]
) -> dict[str, str]:
    """called: what library calls made. An output takes over its memory or an input's, and no other: that of kernels may
    lie in an arena."""
    loop = kernel.loop
    pairs: dict[str, str] = {}
    dying = [
        name
        for name in kernel.reads
        if name not in kernel.writes and lifetimes.last.get(name) == number
        if lifetimes.may_be_taken(name) or is_owned(program, name, lifetimes)
    ]
    for new in kernel.writes:
        owned = program.buffers[new].kind == "temporary" and new not in lifetimes.roots
        if not owned or lifetimes.first.get(new) != number:
            continue
        if new in kernel.reads:  # combined into: it has a value before
            continue
        given = called | program.owned_inputs
        for old in dying if new not in lifetimes.fixed else [name for name in dying if name in given]:
            if old not in pairs.values() and same_memory(old, new, program) and same_positions(loop, old, new, program):
                pairs[new] = old
                break
    return pairs


def summed_into(call: Step, program: Program) -> tuple[str, str] | None:
    """Returns the names of the result and of the matrix that the product is added to, for an `addmm` whose library call
    can write the result over that matrix; None for any other step."""
    if not isinstance(call, Extern) or call.target != torch.ops.aten.addmm.default or call.kwargs:
        return None
    new, old = call.outputs[0], call.args[0]
    if new is None or call.aliases or not isinstance(old, TensorRef) or old.buffer in _others(call):
        return None
    a, b = program.buffers[old.buffer], program.buffers[new]
    plain = old.is_all_of(a) and a.layout == b.layout and a.dtype == b.dtype and a.device == b.device and _is_plain(a)
    return (new, old.buffer) if plain else None


def _others(call: Extern) -> set[str]:
    """Returns the matrices that an `addmm` multiplies."""
    return {ref.buffer for ref in call.refs[1:]}


def is_owned(program: Program, name: str, lifetimes: Lifetimes) -> bool:
    """Returns whether the buffer is an input whose memory may be written after its last use, and is worth reusing."""
    if name not in program.owned_inputs or name in lifetimes.roots or name in program.output_buffers:
        return False
    buffer = program.buffers[name]
    return buffer.layout.offset == 0 and program.hint(buffer.nbytes) >= LEAST_BYTES


def same_memory(old: str, new: str, program: Program) -> bool:
    """Returns whether the buffer `new` can take over the memory of `old`: both have the same device and size of
    elements, and the same layout or both are plain and of the same size in bytes."""
    a, b = program.buffers[old], program.buffers[new]
    if a.device != b.device or a.dtype.itemsize != b.dtype.itemsize:
        return False
    return a.layout == b.layout or (_is_plain(a) and _is_plain(b) and a.nbytes == b.nbytes)


def _is_plain(buffer: Buffer) -> bool:
    """Row-major from the start of its memory: another such buffer of other sizes has the same places."""
    return buffer.layout.offset == 0 and buffer.layout.is_contiguous()


def same_positions(loop: Loop, old: str, new: str, program: Program) -> bool:
    """Returns whether each element of `old` is read only by the iteration that writes it in `new`, in no later pass."""
    stores = [store for store in loop.stores if store.buffer == new]
    loads = [node for node in loop.loads if node.buffer == old]
    if len(stores) != 1 or not stores[0].is_plain:
        return False
    store = stores[0]
    if any(node.indirect or not _same_place(node, store, program) for node in loads):
        return False
    if not any(node.op in ("reduce", "scan") for node in loop.nodes):
        return True
    if loop.has_scan:
        return False
    depth = loop.depths
    at = max(depth[root] for root in store.roots)
    return all(_last_pass(loop, node, depth) <= at for node in loads)


def _same_place(load: Node, store: Store, program: Program) -> bool:
    """Returns whether the indices mean the same place of two buffers that share memory."""
    old, new = program.buffers[load.buffer], program.buffers[store.buffer]
    if old.layout == new.layout:
        return bool(load.index == store.index)
    return bool(sympy.expand(_flat(load.index, old) - _flat(store.index, new)) == 0)


def _flat(index: Sequence[Expr], buffer: Buffer) -> Expr:
    return sum((at * step for at, step in zip(index, buffer.layout.stride, strict=True)), start=ZERO)


def _last_pass(loop: Loop, load: Node, depth: Mapping[Node, int]) -> int:
    """The last pass over the reduction ranges in which the value of a load is needed."""
    last = 0
    varying = {load}
    for node in loop.nodes:
        if any(arg in varying for arg in node.args):
            last = max(last, max(depth[arg] for arg in node.args))
            if node.op != "reduce":
                varying.add(node)
                last = max(last, depth[node])
    for store in loop.stores:
        if any(root in varying for root in store.roots):
            last = max(last, max(depth[root] for root in store.roots))
    return last
