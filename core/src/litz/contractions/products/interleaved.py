"""Left operands that lie interleaved, as for products over the even and the odd places of a depth. In: products that
are walked together. Out: one load of neighbours, and the lines that take it apart, in place of strided loads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import sympy

from litz.ir.index import Expr, stride_of

from .gemm import Product

WIDE = sympy.Symbol("wide", integer=True, nonnegative=True)
"""The depth of all products together."""


def wide_position(products: Sequence[Product]) -> Expr | None:
    """Returns where the element at `WIDE` lies, if product j takes every n-th element from the j-th on, n a power of
    two; else None."""
    count, operands = len(products), [p.left for p in products]
    if count == 1 or count & (count - 1) or any(o.prologue is not None or o.inside for o in operands):
        return None
    inner, first = products[0].depth[-1].var, operands[0].position
    unit = stride_of(first, inner)
    steps = [sympy.expand(o.position - first) for o in operands]
    if unit is None or any(sympy.expand(count * step - lane * unit) != 0 for lane, step in enumerate(steps)):
        return None
    return sympy.expand(first.subs(inner, WIDE / count))


def split_lines(tile: str, row_block: str, count: int) -> Iterator[str]:
    """Yields lines that split the tile named `tile`, (rows, count * KBLOCK), into `lane0`, ... of (rows, KBLOCK)."""
    bits = count.bit_length() - 1
    yield f"{tile} = tl.reshape({tile}, [{', '.join([row_block, 'KBLOCK', *['2'] * bits])}])"
    parts = {tile: 0}
    for bit in range(bits):
        # A split is along the last dimension: the lowest bit of the lane's number that is left.
        halves: dict[str, int] = {}
        for part, lane in parts.items():
            numbers = (lane, lane + (1 << bit))
            even, odd = (f"lane{n}" if bit == bits - 1 else f"{part}_{half}" for half, n in enumerate(numbers))
            yield f"{even}, {odd} = tl.split({part})"
            halves |= {even: lane, odd: lane + (1 << bit)}
        parts = halves


__all__ = ["WIDE", "split_lines", "wide_position"]
