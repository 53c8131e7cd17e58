"""Packed operands: several values of the depth in one element of storage, as two of 4 bits in a byte.

In: a product whose operand is computed from a buffer at `depth // n` and `depth % n`. Out: n products, walked together,
over the depth's n-ths: value j of each element is a value of its own, so no element is loaded twice, and which bits of
it count is known when compiling. Scales of blocks of the depth become scales of a range of their own, which are loaded
once a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import sympy
import torch

from litz.ir import Loop, Node, Range
from litz.ir.build import const, load
from litz.ir.index import Expr, FloorDiv, Mod, PythonMod, Symbol, substitute
from litz.ir.node import with_args
from litz.ir.operation import expressions
from litz.ir.transform import map_stores, rename

from .gemm import Gemm, Operand, Product, depth_var

MOST_LANES = 8
"""Values of one bit in a byte."""
LEAST_BLOCK = 32
"""Blocks of the depth that share a scale have at least so many values: of fewer, a tile holds several."""


def unpacked(gemm: Gemm) -> Gemm:
    """The same product with the depth split as its operands are packed; as it is where they are not."""
    if len(gemm.products) != 1 or len(gemm.products[0].depth) != 1:
        return gemm
    (product,) = gemm.products
    (depth,) = product.depth
    divisors = sorted(set(_divisors(product, depth.var)))
    if not depth.size.is_Integer or not divisors:
        return gemm
    length = int(depth.size)
    lanes = next((n for n in divisors if n <= MOST_LANES and length % n == 0), 1)
    blocks = [n for n in divisors if n >= LEAST_BLOCK * lanes and length % n == 0 and n % lanes == 0 and n < length]
    block = blocks[0] if blocks else length
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
    """By what the positions of computed operands divide the depth."""
    for operand in (product.left, product.right):
        for node in () if operand.prologue is None else operand.prologue.nodes:
            for expr in expressions(node):
                for term in expr.atoms(FloorDiv, Mod, PythonMod):
                    if term.args[0] == var and term.args[1].is_Integer:
                        yield int(term.args[1])


def _at(
    operand: Operand, depth: tuple[Range, ...], mapping: dict[Symbol, Expr], extents: dict[Symbol, Expr]
) -> Operand:
    """The operand at other places of the depth."""
    position = substitute(operand.position, mapping, extents)
    inside = tuple((substitute(expr, mapping, extents), size) for expr, size in operand.inside)
    prologue = operand.prologue and _loop_at(operand.prologue, depth, mapping, extents)
    return replace(operand, position=position, inside=inside, prologue=prologue)


def _loop_at(loop: Loop, depth: tuple[Range, ...], mapping: dict[Symbol, Expr], extents: dict[Symbol, Expr]) -> Loop:
    ranges = (*(r for r in loop.ranges if r.var not in mapping), *depth)

    def change(node: Node, args: tuple[Node, ...]) -> Node:
        return _folded(rename(node, args, mapping, extents))

    stores = map_stores(loop.stores, change, lambda s: tuple(substitute(e, mapping, extents) for e in s.index))
    return replace(loop, ranges=ranges, stores=stores)


def _folded(node: Node) -> Node:
    """A node whose arguments say what it is: comparisons of known positions, and what they select."""
    known = [_number(arg) for arg in node.args]
    if node.op in _COMPARE and None not in known:
        return const(_COMPARE[node.op](*known), torch.bool)
    if node.op == "bitwise_and" and node.dtype == torch.bool and known != [None, None]:
        first, second = node.args
        chosen, other = (first, second) if known[0] is not None else (second, first)
        return other if _number(chosen) else const(False, torch.bool)
    if node.op == "where" and known[0] is not None:
        return node.args[1] if known[0] else node.args[2]
    if node.op == "load" and node.mask is not None and _number(node.mask) is not None:
        if not _number(node.mask):
            return const(0, node.dtype)
        return load(node.buffer, node.index, node.dtype, node.indirect)
    return with_args(node, node.args)


def _number(node: Node) -> int | None:
    """The value of a known integer or bool."""
    if node.op == "const" and isinstance(node.attrs[0], (bool, int)):
        return int(node.attrs[0])
    return int(node.attrs[0]) if node.op == "index" and node.attrs[0].is_Integer else None


_COMPARE = {
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
}

__all__ = ["unpacked"]
