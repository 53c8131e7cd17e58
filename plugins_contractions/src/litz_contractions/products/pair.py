"""Two products of one activation and what is made of both, as one kernel: silu(x @ gate) * (x @ up). In: the products
and where they stand. Out: a `Gemm` with two sums, whose epilogue reads both; None where nothing reads both element by
element.

Neither product is written to memory, and what follows them is no launch of its own. Both are walked in one loop, so the
activation is loaded once for both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from litz.ir import Node, Program, Store, Template
from litz.ir.build import load
from litz.ir.node import with_args
from litz.ir.transform import map_stores

from ..epilogue import ACCUMULATOR, SECOND, Epilogue, fused, place, stands
from .gemm import Gemm, Product

Make = Callable[[Gemm, Template], Gemm]


def make_pair(
    first: Gemm, second: Gemm, templates: tuple[Template, Template], program: Program, most: int | None, make: Make
) -> Gemm | None:
    """Returns both products and their users as one, or None. make: adds to a product what makes its weights."""
    template, mate = templates
    if set(second.epilogue.buffers) != {ACCUMULATOR} or (first.m, first.n) != (second.m, second.n) or first.batch:
        return None
    users = _users(first, templates, program, most)
    if users is None:
        return None
    loop = replace(users.loop, stores=_with_second(users.loop.stores, second, str(mate.outputs[0])))
    walks = make(first, template), make(second, mate)
    absorbed = (mate.name, *users.absorbed, *(name for each in walks for name in each.epilogue.absorbed))
    if str(mate.outputs[0]) in (*loop.reads, *loop.writes) or len(set(absorbed)) < len(absorbed):
        return None
    products = _together(walks[0].products, walks[1].products)
    if products is None or not stands(program, template, absorbed):
        return None
    stand_in = replace(second.epilogue.buffers[ACCUMULATOR], name=SECOND)
    epilogue = replace(users, loop=loop, absorbed=absorbed, buffers={**users.buffers, SECOND: stand_in})
    return replace(first, products=products, epilogue=epilogue)


def _users(first: Gemm, templates: tuple[Template, Template], program: Program, most: int | None) -> Epilogue | None:
    """The first product with what uses both, where that alone reads the second's result, element by element."""
    template, mate = templates
    result = str(mate.outputs[0])
    for epilogue in reversed(list(fused(program, template, first.epilogue, most))):
        readers = {operation.name for operation in program.readers.get(result, ())}
        loads = [node for node in epilogue.loop.loads if node.buffer == result]
        here = place(epilogue.loop.ranges)
        if not loads or not readers <= set(epilogue.absorbed) or result in program.output_buffers:
            continue
        if all(node.index == here and node.mask is None and not node.indirect for node in loads):
            return epilogue
    return None


def _with_second(stores: tuple[Store, ...], second: Gemm, result: str) -> tuple[Store, ...]:
    """The stores with the second product's own value, of its sum, where its result was loaded."""
    (own,) = second.epilogue.loop.stores

    def renamed(node: Node, args: tuple[Node, ...]) -> Node:
        if node.op == "load" and node.buffer == ACCUMULATOR:
            return load(SECOND, node.index, node.dtype)
        return with_args(node, args)

    (changed,) = map_stores((own,), renamed)

    def change(node: Node, args: tuple[Node, ...]) -> Node:
        return changed.value if node.op == "load" and node.buffer == result else with_args(node, args)

    return map_stores(stores, change)


def _together(first: Sequence[Product], second: Sequence[Product]) -> tuple[Product, ...] | None:
    """The products in turn, those of the second sum after those whose left operand they share; None where they do not
    walk alike."""
    if len(first) != len(second):
        return None
    found: list[Product] = []
    for one, other in zip(first, second, strict=True):
        if one.left != other.left or one.depth != other.depth or one.right.words != other.right.words:
            return None
        found += [one, replace(other, joins=True, second=True)]
    return tuple(found)


__all__ = ["make_pair"]
