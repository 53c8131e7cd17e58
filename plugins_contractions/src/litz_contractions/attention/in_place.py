"""Operands of attention read where they come from: what a copy would write out is looked up in what was copied.

In: an `Attention` of a program. Out: the same on other operands, and the operations that nobody needs any more. Keys
and values that were repeated for the heads that share them (repeat_interleave, expand and reshape), moved or converted
are read from before that; what computes a bias or a mask becomes a part of the body that adds it.

Attention in float32 on operands of a half type, as torch computes it where it has no fused kernel, becomes the same on
the operands as they were, where its result is rounded to what they were (`narrowed`). A product of two half numbers is
exact in float32, so the scores are what they were; weights are multiplied as two numbers of the half type, which keeps
16 bits of them, more than the result has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import sympy
import torch

from litz.ir import Layout, Loop, Node, Program, Range, Template, TensorRef
from litz.ir.build import load
from litz.ir.dtypes import FLOAT8, STORED, survives
from litz.ir.index import ONE, ZERO, Expr, FloorDiv, Symbol, flat_index, floordiv, loop_var, stride_of, substitute
from litz.ir.pattern import Pattern, Value, bind, find, fits
from litz.ir.views import position_in
from litz.schedule.inline import Body, TooComplex

from ..epilogue import stands
from .operation import SCORE, Attention

MOST_NODES = 60
MOST_LOADS = 6
"""Beyond so many values or loads a body takes longer than the bytes that it saves."""

PLAIN = Value(words="plain real")

_HEAD, _MEMBER = (sympy.Symbol(name, integer=True, nonnegative=True) for name in ("head", "member"))


@dataclass(frozen=True)
class InPlace:
    """attention: on operands as they were before the copies. Key and value may be of another dtype than the library
    takes them in: a kernel converts what it loads to the query's. absorbs: names of operations that only it needed."""

    attention: Attention
    absorbs: tuple[str, ...] = ()


def read_in_place(attention: Attention, program: Program) -> InPlace:
    """Returns the attention with all that can be read in place. The call and its arguments are left as they are."""
    changed = with_sources(attention, program)
    made = [ref.buffer for ref in attention.refs]
    return InPlace(changed, unneeded(changed, attention, (), made, program))


def with_sources(attention: Attention, program: Program, exact: bool = False) -> Attention:
    """Returns the attention with keys and values as they were before they were copied, and with the loops that make a
    bias or a mask as part of the body. exact: only of the same dtype."""
    key, value = (behind(ref, attention, program) for ref in (attention.key, attention.value))
    pairs = ((key, attention.key), (value, attention.value))
    if exact and not all(same_type(*pair, program) for pair in pairs):
        key, value = attention.key, attention.value
    if key.layout.size[1] != value.layout.size[1]:  # one of them was repeated otherwise
        key, value = attention.key, attention.value
    score, mask = (inlined(body, attention, program) for body in (attention.score, attention.mask))
    return replace(attention, key=key, value=value, score=score, mask=mask)


def same_type(one: TensorRef, other: TensorRef, program: Program) -> bool:
    """Returns whether two references are to elements of one dtype."""
    return program.buffers[one.buffer].dtype == program.buffers[other.buffer].dtype


def operand_buffers(attention: Attention) -> tuple[str, ...]:
    """Returns the names of the buffers that a kernel reads, each once: query, key, value, then what the bodies load."""
    own = (ref.buffer for ref in (attention.query, attention.key, attention.value))
    loaded = (name for body in (attention.score, attention.mask) if body is not None for name in body.reads)
    return tuple(dict.fromkeys((*own, *(name for name in loaded if name != SCORE))))


# Keys and values.


def behind(ref: TensorRef, attention: Attention, program: Program) -> TensorRef:
    """Returns the tensor that keys or values were copied from, by head of the key; `ref` itself without such a copy."""
    while True:
        found = _source(ref, attention, program)
        if found is None:
            return ref
        ref = found


def _source(ref: TensorRef, attention: Attention, program: Program) -> TensorRef | None:
    found = _expanded(ref, attention, program)
    if found is None:
        return None
    value, buffer = found, program.buffers[ref.buffer]
    while value.op == "cast" and value.dtype.is_floating_point and value.args[0].dtype.is_floating_point:
        stored = value.args[0].dtype
        exact = stored in FLOAT8 and survives(stored, buffer.dtype)
        if value.dtype.itemsize > stored.itemsize and not exact:
            break  # it was widened: a kernel that multiplies the narrow type rounds what the library does not
        value = value.args[0]
    return _loaded(value, ref, program)


def widened(ref: TensorRef, attention: Attention, program: Program) -> tuple[TensorRef, float] | None:
    """Returns the tensor of a half type that was widened to float32, and multiplied by a number, to make an operand;
    and that number. None where the operand is made otherwise."""
    value, factor = _expanded(ref, attention, program), 1.0
    if value is None or value.dtype != torch.float32:
        return None
    while value.op in ("mul", "cast") and value.dtype == torch.float32:
        if value.op == "mul":
            left, right = value.args
            number, value = (left, right) if left.op == "const" else (right, left)
            if number.op != "const":
                return None
            factor *= float(number.attrs[0])
        else:
            value = value.args[0]
    if value.dtype not in (torch.bfloat16, torch.float16):
        return None
    found = _loaded(value, ref, program)
    return None if found is None else (found, factor)


def _expanded(ref: TensorRef, attention: Attention, program: Program) -> Node | None:
    """Returns an element of a reference, over the four loop variables; None where several loops make it."""
    buffer = program.buffers[ref.buffer]
    body = _body(buffer.name, attention, program)
    ranges = _ranges(ref)
    index = position_in(ref.layout, buffer.layout, ranges)
    if body is None or index is None:
        return None
    return body.at(load(ref.buffer, index, buffer.dtype), {r.var: r.size for r in ranges})


def _ranges(ref: TensorRef) -> list[Range]:
    return [Range(loop_var(dim), size) for dim, size in enumerate(ref.layout.size)]


def _loaded(value: Node, ref: TensorRef, program: Program) -> TensorRef | None:
    """The reference to what a value loads at every position of another reference; None where it is no plain load."""
    if bind(PLAIN, value) is None:
        return None
    ranges = _ranges(ref)
    flat = flat_index(value.index, program.buffers[value.buffer].layout.stride, ZERO)
    layout = _strided(flat, ref.layout.size, [r.var for r in ranges], {r.var: r.size for r in ranges})
    return None if layout is None else TensorRef(value.buffer, layout)


def _strided(
    flat: Expr, size: tuple[Expr, ...], variables: Sequence[Symbol], extents: Mapping[Symbol, Expr]
) -> Layout | None:
    """The layout (batch, heads of the key, keys, width) of what lies at `flat`, an expression over (b, h, k, d) in
    which neighbouring heads may share what they read."""
    batch, head, *inner = variables
    group = ONE
    for division in sorted(flat.atoms(FloorDiv), key=str):
        if head in division.free_symbols:
            if division.args[0] != head or group not in (ONE, division.args[1]):
                return None
            group = division.args[1]
    heads = floordiv(size[1], group)
    if group != ONE:
        if heads * group != size[1]:
            return None
        own = {**extents, _HEAD: heads, _MEMBER: group}
        flat = sympy.expand(substitute(flat, {head: group * _HEAD + _MEMBER}, own))
        head = _HEAD
    steps = [stride_of(flat, var) for var in (batch, head, *inner)]
    offset = flat.subs(dict.fromkeys((batch, head, *inner), ZERO))
    if any(step is None for step in steps) or _MEMBER in flat.free_symbols or offset.free_symbols & extents.keys():
        return None
    return Layout((size[0], heads, *size[2:]), tuple(step for step in steps if step is not None), offset)


# Bodies.


def inlined(loop: Loop | None, attention: Attention, program: Program) -> Loop | None:
    """Returns a body that computes small pointwise buffers itself, within `MOST_NODES` and `MOST_LOADS`."""
    kept: set[str] = set()

    def size(name: str) -> int:
        return program.hint(program.buffers[name].nbytes)

    while loop is not None:
        name = next((name for name in loop.reads if name in program.buffers and name not in kept), None)
        if name is None:
            break
        kept.add(name)
        body = _body(name, attention, program)
        if body is None or sum(map(size, body.loop.reads)) > size(name):  # it reads more bytes than it writes
            continue
        try:
            wider = body.into(loop)
        except TooComplex:
            continue
        if len(wider.nodes) <= MOST_NODES and len(wider.loads) <= MOST_LOADS:
            loop = wider
    return loop


def _body(name: str, attention: Attention, program: Program) -> Body | None:
    """Returns what is stored in a buffer, where it is one loop that stores it and the same would be read again at the
    attention's place."""
    loop = program.maker(name)
    if loop is None or not fits("temporary unshared", name, program) or len(loop.nodes) > MOST_NODES:
        return None
    if any(node.op == "bounded" or (node.op == "load" and node.indirect) for node in loop.nodes):
        return None
    if any(program.buffers[each].dtype not in STORED for each in loop.reads):
        return None
    # Does nothing between the loop and the attention write what the loop reads?
    between = program.operations[program.positions[loop.name] + 1 : program.positions[attention.name]]
    roots = program.roots
    written = {roots.get(each, each) for operation in between for each in operation.writes}
    return Body.of(loop) if written.isdisjoint(roots.get(each, each) for each in loop.reads) else None


def unneeded(
    attention: Attention, first: Template, gone: Sequence[str], made: Sequence[str], program: Program
) -> tuple[str, ...]:
    """Returns the names of operations that a kernel of the attention leaves nobody in need of: `gone`, and the loops
    that made what the kernel does not read and nobody else does either. first: the operation in whose place the kernel
    stands. made: what those read."""
    still, found, waiting = set(operand_buffers(attention)), list(gone), list(made)
    for name in waiting:
        loop = program.maker(name)
        if name in still or loop is None or loop.name in found or still & set(loop.writes):
            continue
        alone = all(fits("temporary unreturned", each, program, {first.name, *found}) for each in loop.writes)
        if alone and stands(program, first, (*found, loop.name)):
            found.append(loop.name)
            waiting += loop.reads
    return tuple(sorted(found, key=program.positions.__getitem__))


ROUNDING = Pattern(
    "temporary unshared", "pointwise plain", Value("cast", (Value(words="plain", name="read"),), words="half")
)


def narrowed(attention: Attention, out: Layout, program: Program) -> tuple[Attention, Layout, str] | None:
    """Returns the attention in the narrow dtype that its operands were widened from, how its result lies, as (batch,
    head, query, element), and the name of the loop that rounded it; None where there is none. out: how the result lies
    as it is."""
    found = [widened(ref, attention, program) for ref in (attention.query, attention.key, attention.value)]
    if any(each is None for each in found):
        return None
    (query, query_factor), (key, key_factor), (value, value_factor) = (each for each in found if each is not None)
    dtypes = {program.buffers[ref.buffer].dtype for ref in (query, key, value)}
    rounded = _rounded(attention, out, program)
    if len(dtypes) != 1 or value_factor != 1.0 or rounded is None:
        return None
    name, layout, loop = rounded
    if program.buffers[name].dtype != dtypes.pop():
        return None
    scale = float(attention.scale) * query_factor * key_factor
    changed = replace(attention, query=query, key=key, value=value, scale=scale, outputs=(name,), doubled=True)
    return changed, layout, loop.name


def _rounded(attention: Attention, out: Layout, program: Program) -> tuple[str, Layout, Loop] | None:
    """The buffer that the result is rounded into by the only loop that reads it, how that lies, and the loop."""
    (name,) = (output for output in attention.outputs if output is not None)
    if not fits("unreturned read_once", name, program):
        return None
    found = find(ROUNDING, program.readers[name][0], program)
    # The kernel would have to leave what others write, or a caller's tensor, as it is.
    if found is None or program.maker(found.store.buffer) is None or found["read"].buffer != name:
        return None
    loop, store, read = found.loop, found.store, found["read"]
    source = flat_index(read.index, program.buffers[name].layout.stride, ZERO)
    target = flat_index(store.index, program.buffers[store.buffer].layout.stride, ZERO)
    if source.subs(dict.fromkeys(loop.extents, ZERO)) != 0 or target.subs(dict.fromkeys(loop.extents, ZERO)) != 0:
        return None
    steps = {}
    for r in loop.ranges:
        step, own = stride_of(source, r.var), stride_of(target, r.var)
        if step is None or own is None or step in steps:
            return None
        steps[step] = (r.size, own)
    strides = []
    for size, step in zip(out.size, out.stride, strict=True):
        if size == ONE:
            strides.append(ZERO)
            continue
        if step not in steps or steps[step][0] != size:
            return None
        strides.append(steps.pop(step)[1])
    if any(size != ONE for size, _ in steps.values()):
        return None
    return store.buffer, Layout(out.size, tuple(strides), ZERO), loop
