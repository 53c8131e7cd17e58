"""Which product of matrices a Loop's sum is: `(a[:, :, None] * b[None]).sum(1)`, or a `dot` of two loads.

In: a Loop of a Program. Out: a `Product`, or why the Loop is none. A sum of products in which each of two groups of
factors varies along axes that the other does not is a product of matrices:

    sum over k of a[b, m, k] * c[b, n, k]  =  bmm(a, c.transpose(1, 2))[b, m, n]

Factors are followed through the multiplications and copies that make them, whatever loops those are in. A rounding
that a program asks for between the factors and the sum is none of a library's, so such a sum is no product.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from math import prod

import torch

from litz.ir import Loop, Node, Program
from litz.ir.build import call
from litz.ir.dtypes import survives
from litz.ir.index import ONE, Symbol, symbols_in
from litz.ir.node import uncast, walk
from litz.ir.operation import expressions
from litz.ir.pattern import fits
from litz.schedule.inline import Body

from ..module import Unsuitable

TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SUMS = ("sum", "dot")
"""The reductions that are sums of products."""
MOST_FACTORS = 8
"""The factors of a sum's term, at most: each way to divide them in two groups is looked at."""
MOST_NODES = 200
"""The operations on a sum's term, at most."""

Variables = frozenset[Symbol]


@dataclass(frozen=True)
class Product:
    """A sum as a product of matrices: the factors of each operand, and the type that holds every factor. batch, rows,
    columns, depth: its axes, as variables of the loop: those of both operands that stay, those of the left alone, of
    the right alone, and those that are summed. origins: names of the graph's nodes that it computes."""

    left: tuple[Node, ...]
    right: tuple[Node, ...]
    batch: tuple[Symbol, ...]
    rows: tuple[Symbol, ...]
    columns: tuple[Symbol, ...]
    depth: tuple[Symbol, ...]
    dtype: torch.dtype
    origins: tuple[str, ...]


def sum_in(loop: Loop) -> Node | None:
    """Returns the loop's sum, where that is all that it reduces, of real numbers, into one tensor; None for others."""
    if len(loop.stores) != 1 or not loop.stores[0].is_plain or loop.at_reduction_level(loop.stores[0]):
        return None
    if not any(r.size != ONE for r in loop.reduction_ranges):
        return None
    found = [node for node in loop.nodes if node.op in ("reduce", "scan")]
    if len(found) != 1 or found[0].op != "reduce" or found[0].attrs[0] not in SUMS or found[0].dtype not in TYPES:
        return None
    return found[0]


def find_product(loop: Loop, total: Node, program: Program) -> Product:
    """Returns the product of matrices that a sum of products is. loop: what sums, with one store. total: the sum among
    its nodes. Raises Unsuitable: its message says why the sum is none, or is "" for a sum that is not like one."""
    found = _Factors(loop, program)
    factors = found.of(call("mul", *total.args) if len(total.args) > 1 else total.args[0])
    if not 2 <= len(factors) <= MOST_FACTORS:
        raise Unsuitable("" if len(factors) < 2 else f"its terms have {len(factors)} factors")
    known = [found.variables(factor) for factor in factors]
    sizes = {var: program.hint(size) for var, size in loop.extents.items()}
    summed = frozenset(r.var for r in loop.reduction_ranges) & found.whole
    best: tuple[int, int, Variables, Variables] | None = None
    for chosen in range(1, 1 << (len(factors) - 1)):  # the last factor is always of the right operand
        left, right = (
            frozenset[Symbol]().union(*(own for n, own in enumerate(known) if bool(chosen >> n & 1) is side))
            for side in (True, False)
        )
        if not (summed <= left and summed <= right) or left <= right or right <= left:
            continue
        elements = sum(prod(sizes[var] for var in side) for side in (left, right))
        if best is None or elements < best[0]:
            best = elements, chosen, left, right
    if best is None:
        raise Unsuitable("")
    _, chosen, left, right = best
    own = tuple(r.var for r in loop.ranges)
    axes = (
        tuple(var for var in own if var in left and var in right),
        tuple(var for var in own if var in left and var not in right),
        tuple(var for var in own if var in right and var not in left),
        tuple(r.var for r in loop.reduction_ranges if r.var in summed),
    )
    first, second = (tuple(f for n, f in enumerate(factors) if bool(chosen >> n & 1) is side) for side in (True, False))
    dtype = reduce(torch.promote_types, (factor.dtype for factor in factors), total.dtype)
    return Product(first, second, *axes, dtype, tuple(dict.fromkeys((*found.origins, *loop.origins))))


class _Factors:
    """Takes the terms of a loop's sum apart, through the loops that multiply and copy."""

    def __init__(self, loop: Loop, program: Program) -> None:
        self.program, self.extents = program, loop.extents
        self.origins: list[str] = []
        self.whole = frozenset(r.var for r in loop.all_ranges if r.size != ONE)

    def of(self, node: Node) -> list[Node]:
        """Returns the factors of a term, none of which varies along all axes. Raises Unsuitable if there is one that
        does and is no product."""
        node = self.behind(node)
        if self.variables(node) != self.whole:
            return [node]
        inner = exact(node)
        if inner.op == "mul":
            return [factor for arg in inner.args for factor in self.of(arg)]
        if inner.op == "load" and (body := self.body(inner)) is not None:
            value = body.at(inner, self.extents)
            if exact(value).op in ("mul", "load") and sum(1 for _ in walk(value)) <= MOST_NODES:
                if not fits("temporary unshared unreturned read_once", inner.buffer, self.program):
                    raise Unsuitable("its terms are computed in any case, as something else uses them")
                self.origins += body.origins
                return self.of(value)
            source = uncast(value)
            if source.op == "load" and (body := self.body(source)) is not None:
                source = uncast(body.at(source, self.extents))
            if source.op == "mul":
                raise Unsuitable("the program rounds its terms before it adds them up")
        raise Unsuitable("")

    def behind(self, node: Node) -> Node:
        """Returns the value that a copy was made of."""
        inner = exact(node)
        while inner.op == "load" and (body := self.body(inner)) is not None:
            value = body.at(inner, self.extents)
            source = exact(value)
            if source.op != "load" or source.args or source.dtype != inner.dtype:
                return node
            self.origins += body.origins
            node = inner = source
        return node

    def body(self, at: Node) -> Body | None:
        """Returns what computes a value that is loaded, if its operands still have the values that it was computed
        of."""
        maker = self.program.maker(at.buffer)
        body = None if at.args or maker is None or not stays(at.buffer, self.program) else Body.of(maker)
        return body if body is not None and all(stays(name, self.program) for name in body.loop.reads) else None

    def variables(self, node: Node) -> Variables:
        """Returns the axes of more than one place that a value varies along."""
        return self.whole & symbols_in(tuple(expr for each in walk(node) for expr in expressions(each)))


def stays(name: str, program: Program) -> bool:
    """Returns whether a buffer has one value only, from where it is first written."""
    once = len(program.writers[name]) <= (program.buffers[name].kind == "temporary")
    return once and fits("unshared", name, program)


def exact(node: Node) -> Node:
    """Returns the node without conversions that keep every value."""
    while node.op == "cast" and survives(node.args[0].dtype, node.dtype):
        node = node.args[0]
    return node
