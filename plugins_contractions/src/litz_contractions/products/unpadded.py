"""Products that were padded for the library (litz-layout's `pad_contractions`), as they were before. In: a product and
where it stands. Out: the product of the operands without the padding, which writes what the cut result was copied to;
what it makes needless. None where there is no such padding.

cuBLAS is slow at rows that begin anywhere, so padding and copying pay there. A kernel writes such rows itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from litz.ir import Layout, Loop, Node, Program, Template, TensorRef
from litz.ir.index import ONE, Expr

from ..epilogue import stands


@dataclass(frozen=True)
class Unpadded:
    """A product without padding. template: the product. absorbs: the operations that it makes needless."""

    template: Template
    absorbs: tuple[str, ...]


def unpadded_product(template: Template, program: Program) -> Unpadded | None:
    """Returns an `mm` or `addmm` without the columns that are added to its weight and its bias and cut off its result;
    None for any other."""
    if template.kind not in ("mm", "addmm") or template.kwargs:
        return None
    if not all(isinstance(argument, TensorRef) for argument in template.args):
        return None
    *biases, left, right = template.args
    (result,) = template.outputs
    readers = program.readers.get(result, ()) if result is not None else ()
    if result is None or len(readers) != 1 or result in program.output_buffers:
        return None
    cut = _copied(readers[0], result)
    padded = [(ref, _unpadded_ref(ref, program)) for ref in (*biases, right) if ref.layout.size[-1] != ONE]
    sources = {ref.buffer: source for ref, source in padded if source is not None}
    source = sources.get(right.buffer)
    if cut is None or source is None or len(sources) < len(padded):
        return None
    target, (rows, columns) = program.buffers[cut], program.buffers[cut].layout.size
    if any(each.layout.size[-1] != columns for each in sources.values()) or left.layout.size[0] != rows:
        return None
    if target.dtype != program.buffers[result].dtype or not target.layout.is_contiguous():
        return None
    alone = [name for name in sources if len(program.readers[name]) == 1 and name not in program.output_buffers]
    absorbs = (*(program.writers[name][0].name for name in alone), readers[0].name)
    if not stands(program, template, absorbs):
        return None
    args = (*(sources.get(ref.buffer, ref) for ref in biases), left, source)
    return Unpadded(replace(template, args=args, outputs=(cut,)), absorbs)


def _copied(loop: object, source: str) -> str | None:
    """The matrix that a loop copies the beginning of each row of `source` to, and does nothing else."""
    if not isinstance(loop, Loop) or loop.is_reduction or len(loop.stores) != 1 or len(loop.ranges) != 2:
        return None
    (store,) = loop.stores
    value, place = store.value, tuple(r.var for r in loop.ranges)
    if store.mode != "set" or store.mask is not None or store.indirect or store.index != place:
        return None
    if value.op != "load" or value.buffer != source or value.mask is not None or value.indirect:
        return None
    return store.buffer if value.index == place else None


def _unpadded_ref(ref: TensorRef, program: Program) -> TensorRef | None:
    """What a vector, a matrix, or its transpose was before zeros were put after the end of one dimension."""
    writers, buffer = program.writers.get(ref.buffer, ()), program.buffers[ref.buffer]
    if len(writers) != 1 or not isinstance(writers[0], Loop) or buffer.kind != "temporary":
        return None
    loop: Loop = writers[0]
    if loop.is_reduction or len(loop.stores) != 1 or len(loop.ranges) > 2 or ref.layout.offset != 0:
        return None
    (store,) = loop.stores
    value, place = store.value, tuple(r.var for r in loop.ranges)
    if value.op != "load" or value.index != place or store.index != place or value.indirect or value.mask is None:
        return None
    own = program.buffers[value.buffer]
    if own.dtype != buffer.dtype or len(own.layout.size) != len(place) or store.mask is not None or store.mode != "set":
        return None
    limits = dict(zip(place, own.layout.size, strict=True))
    if not _within(value.mask, limits, {r.var: r.size for r in loop.ranges}):
        return None
    if buffer.layout.size == ref.layout.size and buffer.layout.stride == ref.layout.stride:
        return TensorRef(value.buffer, own.layout)
    turned = Layout(own.layout.size[::-1], own.layout.stride[::-1], own.layout.offset)
    if buffer.layout.size == ref.layout.size[::-1] and buffer.layout.stride == ref.layout.stride[::-1]:
        return TensorRef(value.buffer, turned)
    return None


def _within(mask: Node, limits: dict[Expr, Expr], extents: dict[Expr, Expr]) -> bool:
    """Does the mask say that one variable is below its limit, and have the others no more values than that?"""
    if mask.op != "lt" or [arg.op for arg in mask.args] != ["index", "const"]:
        return False
    var, size = mask.args[0].attrs[0], mask.args[1].attrs[0]
    return limits.get(var) == size and all(extents[v] == limit for v, limit in limits.items() if v != var)


__all__ = ["Unpadded", "unpadded_product"]
