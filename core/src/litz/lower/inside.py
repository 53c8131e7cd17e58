"""What has to hold of sizes that only a run tells for a loop to stay inside of its buffers.

torch's fake tensors decide or assert how most sizes compare, not all: `index_add` of a source of 47 rows into a result
of `nonzero` is traced without a word. In: a Loop as a lowering made it. Out: conditions, for `Promises.require`.
Positions that are computed from data are limited by their nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import sympy

from litz.ir import Buffer, Loop, Node
from litz.ir.index import Expr, bounds, fits, is_placeholder, known_nonnegative, stride_of
from litz.ir.intervals import conditions as conditions_of
from litz.ir.node import walk
from litz.ir.operation import expressions


def conditions(loop: Loop, buffers: Mapping[str, Buffer]) -> Iterator[tuple[Any, str]]:
    """Yields a condition, and what is wrong without it, for each dimension of a buffer whose end the loop may pass."""
    accesses = [(node.buffer, node.index, node.mask) for node in loop.loads]
    accesses += [(store.buffer, store.index, store.mask) for store in loop.stores]
    for name, index, mask in dict.fromkeys(accesses):
        for dim, (position, size) in enumerate(zip(index, buffers[name].layout.size, strict=True)):
            last = None if fits(position, size, loop.extents) else _last(position, mask, loop)
            if last is None:
                continue
            extents = [extent for r in loop.all_ranges for extent in (r.size,) if not known_nonnegative(extent - 1)]
            nothing = [sympy.Eq(extent, 0) for extent in extents]  # a loop of no points reads and writes nothing
            yield (
                sympy.Or(sympy.Lt(last, size), *nothing),
                f"sizes do not match: {last + 1} elements are taken along dimension {dim} of a tensor that has {size}",
            )


def _last(position: Expr, mask: Node | None, loop: Loop) -> Expr | None:
    """The greatest position that a loop reaches where a mask holds; None where that takes more than the ends of its
    ranges to say."""
    variables = [var for var in loop.extents if var in position.free_symbols]
    if not variables or any(map(is_placeholder, position.free_symbols)):
        return None
    held = tuple(conditions_of(mask))
    masked = {symbol for node in walk(*held) for expr in expressions(node) for symbol in expr.free_symbols}
    steps = [stride_of(position, var) for var in variables]
    if not masked.isdisjoint(variables) or any(step is None or not step.is_Integer for step in steps):
        return None
    start = sympy.Add(*(term for term in sympy.Add.make_args(position) if term.free_symbols.isdisjoint(variables)))
    end = bounds(position - start, loop.extents)[1]
    return None if end is None else start + end  # the start as it is: the ranges' extents may have the same terms
