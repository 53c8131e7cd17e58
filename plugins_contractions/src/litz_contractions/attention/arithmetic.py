"""Bodies of an attention with less to compute for each score. In: nodes as lowering made them. Out: nodes that give the
same but for float32's last bits, which are far below what the exponential does to a score.

| what was | becomes | why |
|---|---|---|
| the score | the product of query and key, times the scale | so that the scale meets other constants |
| x / c | x * (1 / c) | a division takes eight times as long |
| x * c * d | x * (c * d) | one multiplication |
| x * c, as a whole | x, and c part of the exponent's factor | none |
| x * c + y, as a whole | fma(y, 1 / c, x), and the same | one, or two where y is a product |

A position that becomes a number (k - q, in ALiBi) is the sum of two numbers, one of which does not change along the
walk. Both are exact below 2^24, so that nothing is lost (`apart_positions`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import torch

from litz.ir import Loop, Node
from litz.ir.build import call, const
from litz.ir.dtypes import compute_dtype
from litz.ir.index import Expr, Symbol, bounds
from litz.ir.node import with_args
from litz.ir.ops import AS_HALF
from litz.tiles.make import Maker
from litz.tiles.program import Line, Position, Value

from .operation import SCORE

EXACT = 2**24
"""Integers up to here are float32 numbers."""
Change = Callable[[Node, tuple[Node, ...]], Node]


def lighter(scale: float) -> Change:
    """Returns a change of nodes for `litz.ir.transform.map_stores`, for float32 bodies. Afterwards the load of `SCORE`
    is the bare product."""

    def change(node: Node, args: tuple[Node, ...]) -> Node:
        if _is_score(node):
            return node if scale == 1.0 else call("mul", node, const(scale, node.dtype))
        if compute_dtype(node.dtype) == torch.float32 and node.op == "div":
            divisor = _constant(args[1])
            if divisor is not None and 1e-30 < abs(divisor) < 1e30:
                return _times(args[0], 1 / divisor)
        if node.dtype == torch.float32 and node.op == "mul":
            for one, other in (args, args[::-1]):
                factor = _constant(other)
                if factor is not None:
                    return _times(one, factor)
        return with_args(node, args)

    return change


def _constant(node: Node) -> float | None:
    return float(node.attrs[0]) if node.op == "const" else None


def _times(node: Node, factor: float) -> Node:
    """Returns factor * node as one multiplication."""
    if node.op == "const":
        return const(float(node.attrs[0]) * factor, node.dtype)
    if node.op == "mul" and node.dtype == torch.float32:
        inner, known = node.args[0], _constant(node.args[1])
        if (
            known is not None
            and (known * factor == 0) == (0.0 in (known, factor))
            and 1e-30 < abs(known * factor) < 1e30
        ):
            return _times(inner, known * factor)
    return call("mul", node, const(factor, node.dtype))


def peeled(score: Node | None, scale: float) -> tuple[Node | None, float]:
    """Returns a node and a factor whose product a body's score is (after `lighter`), the factor above 0. score None:
    there is no body; the node is None then, for the bare product of query and key. scale: of that."""
    if score is None:
        return None, scale
    factor = _factor(score)
    if factor is not None:
        return score.args[0], factor
    if score.op == "add" and score.dtype == torch.float32:
        for product, rest in (score.args, score.args[::-1]):
            factor = _factor(product)
            if factor is not None and rest.dtype == torch.float32 and _is_score(product.args[0]):
                return call("fma", *_shared(rest, 1 / factor), product.args[0]), factor
    return score, 1.0


def _is_score(node: Node) -> bool:
    return node.op == "load" and node.buffer == SCORE


def _factor(node: Node) -> float | None:
    """The positive constant that a product ends with."""
    found = _constant(node.args[1]) if node.op == "mul" and node.dtype == torch.float32 else None
    return found if found is not None and 1e-4 < found < 1e4 else None


def _shared(node: Node, factor: float) -> tuple[Node, Node]:
    """Two nodes whose product is factor * node; of a product of two, the one that is loaded takes the factor."""
    if node.op != "mul" or node.dtype != torch.float32:
        return node, const(factor, node.dtype)
    first, second = node.args
    if second.op in ("const", "load") and first.op != "load":
        return first, _times(second, factor)
    return _times(first, factor), second


def apart_positions(loop: Loop, walked: Symbol) -> Mapping[Node, tuple[Expr, Expr]]:
    """Returns the positions as float32 that are sums of two: of each the part along the walked axis, and the rest,
    which is computed before the walk."""
    found: dict[Node, tuple[Expr, Expr]] = {}
    for node in loop.nodes:
        unrounded = node.op == "cast" and node.dtype == torch.float32
        if not (unrounded or node.op in AS_HALF.values()) or node.args[0].op != "index":
            continue
        expr = node.args[0].attrs[0].expand()
        along = expr.coeff(walked) * walked
        rest = expr - along
        if along == 0 or rest.is_number or rest.free_symbols & {walked}:
            continue
        ends = [end for part in (along, rest) for end in bounds(part, loop.extents)]
        if all(end is not None and end.is_Integer and abs(int(end)) <= EXACT for end in ends):
            found[node] = along, rest
    return found


class ScoreMaker(Maker):
    """The lines of bodies. apart: positions that are sums of two."""

    apart: Mapping[Node, tuple[Expr, Expr]] = {}

    def value(self, node: Node) -> Value:
        """Adds what computes a node whose arguments have values, and returns its value."""
        if node not in self.apart:
            return super().value(node)
        parts = [Position(part, self.axes_of(part)) for part in self.apart[node]]
        return self.op("add", parts, node.dtype, "exact")

    def hoist(self, bodies: Iterable[Node | None], late: Collection[Node], fixed: Collection[Symbol]) -> None:
        """Adds what the bodies that there are need that depends on the variables `fixed` alone, and is not `late`."""
        missing, variables = self.missing(node for node in bodies if node is not None), self.loop.variables
        self.compute([node for node in missing if node not in late and variables[node] <= set(fixed)])

    def inner(self, write: Callable[[], None]) -> tuple[Line, ...]:
        """Returns the lines that a function adds as a body, whose values are not there behind it."""
        kept = dict(self.values)
        lines = self.block(write)
        self.values = kept
        return lines
