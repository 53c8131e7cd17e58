"""Attention in float32 on operands of a half type, as torch computes it where it has no fused kernel.

In: an `Attention` whose operands were widened to float32, and perhaps scaled, and whose result is rounded to what they
were. Out: the same on the operands as they were; None where it is no such attention. A product of two half numbers is
exact in float32, so the scores are what they were; weights are multiplied as two numbers of the half type, which keeps
16 bits of them, more than the result has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from litz.ir import Layout, Loop, Program
from litz.ir.index import ONE, ZERO, flat_index, stride_of
from litz.ir.pattern import Pattern, Value, find, fits

from .in_place import widened
from .operation import Attention

ROUNDING = Pattern(
    "temporary unshared", "pointwise plain", Value("cast", (Value(words="plain", name="read"),), words="half")
)


@dataclass(frozen=True)
class Narrow:
    """attention: whose result is the rounded one. out: how that lies as (batch, head, query, element). rounding: the
    name of the loop that rounded it."""

    attention: Attention
    out: Layout
    rounding: str


def narrowed(attention: Attention, out: Layout, program: Program) -> Narrow | None:
    """Returns the attention in the narrow dtype that its operands were widened from; None where there is none. out: how
    the result lies, as (batch, head, query, element)."""
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
    return Narrow(changed, layout, loop.name)


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


__all__ = ["Narrow", "narrowed"]
