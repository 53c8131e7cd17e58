"""An outer product as a Loop. In: a contraction and where it stands. Out: at most one choice."""

from __future__ import annotations

from litz.ir import Loop, Range, Store
from litz.ir.build import call, load
from litz.ir.index import loop_var, to_expr
from litz.ir.views import position_in
from litz_plugins import Choice


def offer_outer(operation, context):
    """Offers a loop for an mm of [n, 1] by [1, m]: result[i, j] = a[i, 0] * b[0, j]."""
    a, b = operation.args  # litz.ir.TensorRef: a strided view of a buffer
    (n, depth), (_, m) = a.layout.size, b.layout.size
    if depth != 1:
        context.verdict("outer product as a loop", f"{depth} products to each result, not 1")
        return []
    buffers, output = context.program.buffers, operation.outputs[0]
    ranges = (Range(loop_var(0), n), Range(loop_var(1), m))
    # Where the element of each view lies in its buffer. A dimension of size 1 needs no variable.
    places = [position_in(view.layout, buffers[view.buffer].layout, ranges) for view in (a, b)]
    if None in places:
        context.verdict("outer product as a loop", "an operand is a view that crosses its buffer's dimensions")
        return []
    left, right = (load(view.buffer, place, buffers[view.buffer].dtype) for view, place in zip((a, b), places))
    # A loop over a range of size 1 fuses with no other: the range is left out, and its index is 0.
    at = tuple(to_expr(0) if r.size == 1 else r.var for r in ranges)
    store = Store(output, at, call("mul", left, right))
    kept = tuple(r for r in ranges if r.size != 1)
    loop = Loop(operation.name, operation.device, kept, (), (store,), operation.origins)
    return [Choice("outer product as a loop", "template", loop)]
