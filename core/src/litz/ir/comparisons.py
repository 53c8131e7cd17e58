"""Comparisons of positions: what they compare, and the simplest comparison that says the same.

In: a node that compares `index` nodes and constants. Out: the difference of its sides; the same answers from fewer
terms. Where i < 3 and j < 32, 32*i + j < 64 is i < 2, and i//48 < 2 is i < 96.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from .build import call, const, index
from .index import ONE, Expr, FloorDiv, Ranges, bounds, to_expr
from .node import Node

TURNS: Mapping[str, tuple[int, ...]] = {"lt": (0,), "ge": (0,), "le": (1,), "gt": (1,), "eq": (0, 1), "ne": (0, 1)}
"""The values of the left side less the right at which a comparison gives another answer than at one less."""

MOST_STEPS = 8
"""How often the difference of two sides is made simpler, at most."""


def difference(node: Node) -> Expr | None:
    """Returns the left side less the right of a comparison of positions; None for any other node."""
    if node.op not in TURNS or any(arg.op not in ("index", "const") for arg in node.args):
        return None
    if any(arg.dtype != torch.int64 for arg in node.args):
        return None
    left, right = (to_expr(arg.attrs[0]) for arg in node.args)
    return left - right


def simplest(node: Node, ranges: Ranges) -> Node:
    """Returns the node, or the comparison of one position with a constant that has the same value wherever the
    variables lie in `ranges`. `eq` and `ne` stay as they are."""
    found = difference(node) if len(TURNS.get(node.op, ())) == 1 else None
    if found is None:
        return node
    (turn,) = TURNS[node.op]
    below = before = found - turn  # the answer turns where this reaches 0
    for _ in range(MOST_STEPS):
        shorter = _shorter(below, ranges)
        if shorter is None:
            break
        below = shorter
    if below is before:
        return node
    rest, position = below.as_coeff_Add()
    less = node.op in ("lt", "le")
    if position.as_coeff_Mul()[0].is_negative:  # rest - i < 0, so i > rest
        return call("gt" if less else "le", index(-position), const(int(rest), torch.int64))
    return call("lt" if less else "ge", index(position), const(-int(rest), torch.int64))


def _shorter(below: Expr, ranges: Ranges) -> Expr | None:
    """An expression of fewer operations that is negative exactly where `below` is; None if none is found."""
    rest, terms = below.as_coeff_Add()
    if not rest.is_Integer or terms.is_Integer:
        return None
    parts = [term.as_coeff_Mul() for term in (terms.args if terms.is_Add else (terms,))]
    if any(not factor.is_Integer for factor, _ in parts):
        return None
    if len(parts) == 1:
        ((factor, term),) = parts
        if factor == ONE and isinstance(term, FloorDiv) and term.args[1].is_Integer and term.args[1].is_positive:
            return term.args[0] + rest * term.args[1]
        if abs(factor) == ONE:
            return None
    factor, term = max(parts, key=lambda part: abs(part[0]))
    low, high = bounds(below - factor * term, ranges) if len(parts) > 1 else (rest, rest)
    if low is None or high is None or not low.is_Integer or not high.is_Integer or abs(factor) == ONE:
        return None
    step = abs(int(factor))
    if factor.is_positive:  # step * term < -(low to high)
        last = (-int(low) - 1) // step
        return term - last - 1 if last == (-int(high) - 1) // step else None
    first = int(low) // step  # step * term > low to high
    return to_expr(first) - term if first == int(high) // step else None


__all__ = ["TURNS", "difference", "simplest"]
