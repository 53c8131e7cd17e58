"""Packed operands: several values of the depth in one element of storage, as two of 4 bits in a byte.

In: a product whose operand is computed from a buffer at `depth // n` and `depth % n`. Out: n products, walked together,
over the depth's n-ths: value j of each element is a value of its own, so no element is loaded twice, and which bits of
it count is known when compiling. Bytes that are neighbours are taken two at a time, so that there are twice as many
products. Scales of blocks of the depth become scales of a range of their own, which are loaded once a block. The other
operands of these products lie interleaved: one load of neighbours brings them all, in place of strided loads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import sympy
import torch

from litz.ir import Loop, Node, Range, Store
from litz.ir.build import cast, load
from litz.ir.dtypes import FLOAT8, HALF
from litz.ir.index import ZERO, Expr, FloorDiv, Mod, PythonMod, Symbol, substitute
from litz.ir.node import rewrite, with_args
from litz.ir.operation import expressions
from litz.ir.transform import map_stores, rename
from litz.schedule.bodies import simplify

from .gemm import SCALE, Gemm, Operand, Product, depth_var
from .half_tile import words_of
from .prologue import OPERAND

MOST_LANES = 8
"""Values of one bit in a byte."""
LEAST_PLACES = 16
"""Steps along the depth that tensor cores take at once."""
LEAST_BLOCK = 32
"""Blocks of the depth that share a scale have at least so many values: of fewer, a tile holds several."""


def unpacked(gemm: Gemm, words: bool = False) -> Gemm:
    """Returns the product with the depth split as its operands are packed; unchanged where they are not. words: for a
    kernel that takes neighbouring bytes two at a time, and multiplies a block's sum by its scale."""
    if len(gemm.products) != 1 or len(gemm.products[0].depth) != 1:
        return gemm
    (product,) = gemm.products
    (depth,) = product.depth
    divisors = sorted(set(_divisors(product, depth.var)))
    if not depth.size.is_Integer or depth.size == 0:
        return gemm
    length = int(depth.size)
    lanes = next((n for n in divisors if n <= MOST_LANES and length % n == 0), 1)
    blocks = [n for n in divisors if n >= LEAST_BLOCK * lanes and length % n == 0 and n % lanes == 0 and n < length]
    block = blocks[0] if blocks else length
    split = _split(gemm, lanes, length, block)
    first, twice = split.products[0], 2 * lanes
    fits = twice <= MOST_LANES and block % twice == 0 and block // twice >= LEAST_PLACES
    if words and fits and words_of(first.right.prologue, first.depth[-1].var):
        pairs = _split(gemm, twice, length, block).products
        split = replace(gemm, products=tuple(replace(p, right=replace(p.right, words=True)) for p in pairs))
    elif not divisors:
        return gemm
    steps = words and blocks and int(split.products[0].depth[-1].size) % LEAST_PLACES == 0  # whole steps in a block
    return replace(split, products=_scaled(split.products)) if steps else split


def _scaled(products: tuple[Product, ...]) -> tuple[Product, ...]:
    """Returns the products with a factor of the right operand, if it does not vary within a block, applied to the
    block's sum: once for all values, and without rounding each."""
    factors = [_factor(product.right, product.depth[-1].var) for product in products]
    first = factors[0]
    if first is None or any(other is None or other[1] != first[1] for other in factors):
        return products
    made = []
    for product, found in zip(products, factors, strict=True):
        prologue = product.right.prologue
        assert found is not None and prologue is not None
        (store,) = prologue.stores
        rest = replace(prologue, stores=(replace(store, value=found[0]),))
        ranges = tuple(r for r in prologue.ranges if r != product.depth[-1])
        factor = Store(SCALE, (ZERO,), cast(found[1], torch.float32))
        scale = replace(prologue, name=SCALE, ranges=ranges, stores=(factor,))
        made.append(replace(product, right=replace(product.right, prologue=rest), scale=scale))
    return tuple(made)


def _factor(right: Operand, place: Symbol) -> tuple[Node, Node] | None:
    """(what a right operand is, but for a factor that does not vary with `place`; the factor); None where there is
    none."""
    if right.prologue is None:
        return None
    (store,) = right.prologue.stores
    value = store.value
    if value.op != "mul" or value.dtype not in HALF:
        return None
    varies = [place in right.prologue.variables[arg] for arg in value.args]
    if varies == [True, False]:
        return value.args[0], value.args[1]
    return (value.args[1], value.args[0]) if varies == [False, True] else None


def _split(gemm: Gemm, lanes: int, length: int, block: int) -> Gemm:
    """Returns `lanes` products, each over one part of the depth, which is (blocks, place in a block) where it has
    several blocks."""
    (product,) = gemm.products
    (depth,) = product.depth
    blocks = block < length
    outer, inner = (
        Range(depth_var(number), sympy.Integer(size)) for number, size in enumerate((length // block, block // lanes))
    )
    kept = (outer, inner) if blocks else (replace(inner, var=depth_var(0)),)
    extents = {r.var: r.size for r in (*gemm.batch, *gemm.rows, *gemm.columns, *kept)}
    products = []
    for lane in range(lanes):
        place = lanes * kept[-1].var + lane + (block * kept[0].var if blocks else 0)
        ranges = (kept, {depth.var: place}, extents)
        left, right = (_at(operand, *ranges) for operand in (product.left, product.right))
        products.append(Product(left, right, kept, joins=lane > 0))
    return replace(gemm, products=tuple(products))


def _divisors(product: Product, var: Symbol) -> Iterator[int]:
    """Yields the numbers by which the positions of computed operands divide the depth."""
    for operand in (product.left, product.right):
        for node in () if operand.prologue is None else operand.prologue.nodes:
            for expr in expressions(node):
                for term in expr.atoms(FloorDiv, Mod, PythonMod):
                    if term.args[0] == var and term.args[1].is_Integer:
                        yield int(term.args[1])


def _at(
    operand: Operand, depth: tuple[Range, ...], mapping: dict[Symbol, Expr], extents: dict[Symbol, Expr]
) -> Operand:
    """Returns the operand at other places of the depth."""
    moved, loop = operand.at(mapping, extents), operand.prologue
    if loop is None:
        return moved

    def change(node: Node, args: tuple[Node, ...]) -> Node:
        return simplify(rename(node, args, mapping, extents))

    ranges = (*(r for r in loop.ranges if r.var not in mapping), *depth)
    stores = map_stores(loop.stores, change, lambda s: tuple(substitute(e, mapping, extents) for e in s.index))
    return replace(moved, prologue=replace(loop, ranges=ranges, stores=stores))


WIDE = sympy.Symbol("wide", integer=True, nonnegative=True)
"""The depth of all products together."""


def wide_operand(gemm: Gemm, products: Sequence[Product]) -> Loop | None:
    """Returns what makes the element at `WIDE` of the operands that products share, the left ones, or of turned
    products the right ones; None unless product j takes every n-th element from the j-th on, n a power of two."""
    count, (*outer, inner) = len(products), products[0].depth
    operands = [p.right if gemm.turned else p.left for p in products]
    if count == 1 or count & (count - 1) or any(o.inside or o.dtype in FLOAT8 for o in operands):
        return None
    loops = [_loaded(o, gemm, products[0].depth) if o.prologue is None else o.prologue for o in operands]
    if any(node.op != "load" and expressions(node) for loop in loops for node in loop.nodes):
        return None
    first, *others = (_made_at(loop, inner, (WIDE - lane) / count) for lane, loop in enumerate(loops))
    if any(value is not first for value in others):
        return None
    kept = [r for r in loops[0].ranges if r not in products[0].depth]
    ranges = (*kept, *outer, Range(WIDE, count * inner.size))
    return replace(loops[0], ranges=ranges, stores=(replace(loops[0].stores[0], value=first),))


def _loaded(operand: Operand, gemm: Gemm, depth: Sequence[Range]) -> Loop:
    """Returns the loop that makes the elements of an operand that lies in memory."""
    ranges = (*gemm.batch, *(gemm.columns if gemm.turned else gemm.rows), *depth)
    store = Store(OPERAND, (ZERO,), load(operand.buffer, (operand.position,), operand.dtype))
    return Loop(OPERAND, gemm.epilogue.loop.device, ranges, (), (store,))


def _made_at(loop: Loop, inner: Range, place: Expr) -> Node:
    """Returns what a prologue makes at another place of the depth."""

    def change(node: Node, args: tuple[Node, ...]) -> Node:
        if node.op != "load":
            return with_args(node, args)
        return load(node.buffer, tuple(sympy.expand(e.subs(inner.var, place)) for e in node.index), node.dtype)

    (value,) = rewrite((loop.stores[0].value,), change)
    return value
