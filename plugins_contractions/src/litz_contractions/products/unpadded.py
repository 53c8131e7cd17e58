"""Products that were padded for the library (litz-layout's `pad_contractions`), as they were before. In: a product and
where it stands. Out: the product of the operands without the padding, which writes what the cut result was copied to;
what it makes needless. None where there is no such padding.

cuBLAS is slow at rows that begin anywhere, so padding and copying pay there. A kernel writes such rows itself.
"""

from __future__ import annotations

from dataclasses import replace

from litz.ir import Layout, Node, Program, Template, TensorRef
from litz.ir.index import ONE, Expr
from litz.ir.pattern import Pattern, Value, find, fits

from ..epilogue import stands

CUT = Pattern(loop="pointwise plain in_order", value=Value(words="plain", name="value"))
PADDED = Pattern("temporary", "pointwise plain in_order", Value("load", name="value"))


def unpadded_product(template: Template, program: Program) -> tuple[Template, tuple[str, ...]] | None:
    """Returns an `mm` or `addmm` without the columns that are added to its weight and its bias and cut off its result,
    and the operations that it makes needless; None for any other."""
    if template.kind not in ("mm", "addmm") or template.kwargs:
        return None
    if not all(isinstance(argument, TensorRef) for argument in template.args):
        return None
    *biases, left, right = template.args
    (result,) = template.outputs
    if result is None or not fits("unreturned read_once", result, program):
        return None
    (reader,) = program.readers[result]
    # The matrix that a loop copies the beginning of each row to, and does nothing else.
    found = find(CUT, reader, program)
    copies = found is not None and found["value"].buffer == result and found["value"].index == found.store.index
    cut = found.store.buffer if found is not None and copies and len(found.loop.ranges) == 2 else None
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
    alone = [name for name in sources if fits("unreturned read_once", name, program)]
    absorbs = (*(program.writers[name][0].name for name in alone), reader.name)
    if not stands(program, template, absorbs):
        return None
    args = (*(sources.get(ref.buffer, ref) for ref in biases), left, source)
    return replace(template, args=args, outputs=(cut,)), absorbs


def _unpadded_ref(ref: TensorRef, program: Program) -> TensorRef | None:
    """Returns what a vector, a matrix, or its transpose was before zeros were put after the end of one dimension."""
    found, buffer = find(PADDED, ref.buffer, program), program.buffers[ref.buffer]
    if found is None or len(found.loop.ranges) > 2 or ref.layout.offset != 0:
        return None
    loop, value, place = found.loop, found["value"], found.store.index
    own = program.buffers[value.buffer]
    if value.index != place or value.indirect or value.mask is None:
        return None
    if own.dtype != buffer.dtype or len(own.layout.size) != len(place):
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
    """Returns whether the mask holds one variable below its limit, and the others have no more values than theirs."""
    if mask.op != "lt" or [arg.op for arg in mask.args] != ["index", "const"]:
        return False
    var, size = mask.args[0].attrs[0], mask.args[1].attrs[0]
    return limits.get(var) == size and all(extents[v] == limit for v, limit in limits.items() if v != var)
