"""Activations that lie interleaved, as for products over the even and the odd places of a depth. In: products that
are walked together. Out: one load of neighbours, and the lines that take it apart, in place of strided loads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import sympy

from litz.ir import Loop, Node, Range
from litz.ir.build import load
from litz.ir.index import Expr, stride_of
from litz.ir.node import rewrite, with_args
from litz.ir.operation import expressions

from .gemm import Product

WIDE = sympy.Symbol("wide", integer=True, nonnegative=True)
"""The depth of all products together."""


def wide_position(products: Sequence[Product], turned: bool = False) -> Expr | None:
    """Returns where the element at `WIDE` lies, if product j takes every n-th element from the j-th on, n a power of
    two; else None. The elements are those of the left operands, of turned products the right ones."""
    count, operands = len(products), [p.right if turned else p.left for p in products]
    if count == 1 or count & (count - 1) or any(o.inside for o in operands):
        return None
    if any(o.prologue is not None for o in operands) and wide_prologue(products, turned) is None:
        return None
    inner, first = products[0].depth[-1].var, operands[0].position
    unit = stride_of(first, inner)
    steps = [sympy.expand(o.position - first) for o in operands]
    if unit is None or any(sympy.expand(count * step - lane * unit) != 0 for lane, step in enumerate(steps)):
        return None
    return sympy.expand(first.subs(inner, WIDE / count))


def wide_prologue(products: Sequence[Product], turned: bool) -> Loop | None:
    """Returns what makes the element at `WIDE` where the operands are made on their way; None where they are not, or
    where those of some product are not every n-th element."""
    count, inner = len(products), products[0].depth[-1]
    loops = [(p.right if turned else p.left).prologue for p in products]
    found: list[Node] = []
    for lane, loop in enumerate(loops):
        if loop is None or any(node.op != "load" and expressions(node) for node in loop.nodes):
            return None
        found.append(_at(loop, inner, (WIDE - lane) / count))
    if any(value is not found[0] for value in found):
        return None
    assert loops[0] is not None
    ranges = (*products[0].depth[:-1], Range(WIDE, count * inner.size))
    return replace(loops[0], ranges=ranges, stores=(replace(loops[0].stores[0], value=found[0]),))


def _at(loop: Loop, inner: Range, place: Expr) -> Node:
    """What a prologue makes at another place of the depth."""

    def change(node: Node, args: tuple[Node, ...]) -> Node:
        if node.op != "load":
            return with_args(node, args)
        return load(node.buffer, tuple(sympy.expand(e.subs(inner.var, place)) for e in node.index), node.dtype)

    (value,) = rewrite((loop.stores[0].value,), change)
    return value


def split_lines(tile: str, block: str, count: int, turned: bool) -> Iterator[str]:
    """Yields lines that split the tile named `tile` into `lane0`, ... The tile is (block, count * KBLOCK) and lanes are
    (block, KBLOCK); turned, both are transposed."""
    bits = count.bit_length() - 1
    twos = ["2"] * bits
    if turned:
        # A split is along the last dimension, so the depth's places have to stand there.
        order = ", ".join(map(str, (0, bits + 1, *range(1, bits + 1))))
        yield f"{tile} = tl.permute(tl.reshape({tile}, [{', '.join(['KBLOCK', *twos, block])}]), [{order}])"
    else:
        yield f"{tile} = tl.reshape({tile}, [{', '.join([block, 'KBLOCK', *twos])}])"
    parts = {tile: 0}
    for bit in range(bits):
        # The lowest bit of the lane's number that is left.
        halves: dict[str, int] = {}
        for part, lane in parts.items():
            numbers = (lane, lane + (1 << bit))
            even, odd = (f"lane{n}" if bit == bits - 1 else f"{part}_{half}" for half, n in enumerate(numbers))
            yield f"{even}, {odd} = tl.split({part})"
            halves |= {even: lane, odd: lane + (1 << bit)}
        parts = halves


__all__ = ["WIDE", "split_lines", "wide_position", "wide_prologue"]
