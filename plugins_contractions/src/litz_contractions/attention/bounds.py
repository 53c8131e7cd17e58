"""Between which keys a mask is open, as far as its comparisons of positions say: causal masks and windows.

In: the mask's node, over the variables of queries and keys. Out: `Bounds`, from which a kernel that has no list of
blocks works out which tiles of keys it need not look at, and which need no mask.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import sympy
import torch

from litz.ir import Node
from litz.ir.index import Expr, Symbol
from litz.ir.intervals import conditions


@dataclass(frozen=True)
class Bounds:
    """lower, upper: expressions over the query's position; the mask is False of a key that is less than one of `lower`,
    or greater than one of `upper`. exact: is it True of all others?"""

    lower: tuple[Expr, ...] = ()
    upper: tuple[Expr, ...] = ()
    exact: bool = True

    def __bool__(self) -> bool:
        return bool(self.lower or self.upper)


_AT_MOST = {"le": 0, "lt": 1, "eq": 0}
_AT_LEAST = {"ge": 0, "gt": 1, "eq": 0}


def find_bounds(mask: Node | None, query: Symbol, key: Symbol) -> Bounds:
    """Returns the bounds that a mask puts on the key: the expression of each condition `key <= expression` or `key >=
    expression` that must hold, where the expression grows or falls steadily with the query's position."""
    lower: list[Expr] = []
    upper: list[Expr] = []
    exact = True
    for condition in conditions(mask):
        found = list(_limits(condition, query, key))
        exact = exact and bool(found)
        for limit, is_upper in found:
            (upper if is_upper else lower).append(limit)
    return Bounds(tuple(lower), tuple(upper), exact)


def _limits(condition: Node, query: Symbol, key: Symbol) -> Iterator[tuple[Expr, bool]]:
    """(expression, whether it is the greatest key): nothing where the condition is of another form."""
    if condition.op not in {*_AT_MOST, *_AT_LEAST} or condition.args[0].dtype != torch.int64:
        return
    left, right = (_affine(node) for node in condition.args)
    step = _AT_MOST.get(condition.op)
    if left is None and right is not None and condition.args[0].op == "abs" and step is not None:
        inside = _affine(condition.args[0].args[0])  # |distance| <= limit, of which eq is one half only
        if inside is not None and condition.op != "eq":
            yield from _at_most(inside - right + step, query, key)
            yield from _at_most(-inside - right + step, query, key)
        return
    if left is None or right is None:
        return
    if step is not None:
        yield from _at_most(left - right + step, query, key)
    step = _AT_LEAST.get(condition.op)
    if step is not None:
        yield from _at_most(right - left + step, query, key)


def _at_most(expr: Expr, query: Symbol, key: Symbol) -> Iterator[tuple[Expr, bool]]:
    """Yields the limits of `key` that the condition expr <= 0 implies: (limit, is it an upper one?)."""
    expr = sympy.expand(expr)
    slope = expr.coeff(key)
    rest = expr - slope * key
    if slope not in (1, -1) or rest.coeff(query) not in (-1, 0, 1):
        return
    if key in rest.free_symbols or query in (rest - rest.coeff(query) * query).free_symbols:
        return
    yield (-rest, True) if slope == 1 else (rest, False)


_COMBINED: Mapping[str, Callable[[Expr, Expr], Expr]] = {"add": operator.add, "sub": operator.sub}


def _affine(node: Node) -> Expr | None:
    if node.op in ("index", "const"):
        return sympy.sympify(node.attrs[0])
    parts = [_affine(arg) for arg in node.args] if node.op in _COMBINED else []
    if not parts or parts[0] is None or parts[1] is None:
        return None
    return _COMBINED[node.op](parts[0], parts[1])


__all__ = ["Bounds", "find_bounds"]
