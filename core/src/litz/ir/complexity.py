"""How complex an expression or a body is, and how complex one may get before its value is written to a buffer.

In: index expressions, nodes, loops. Out: counts, and the reason why something is too complex. What reads a value
through views, what inlines and what fuses all ask here, so that no index or body grows with the length of a program.

Index expressions are counted as they print, shared parts as often as they occur; each count is worked out once per
expression, from those of its arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from .index import Expr, Symbol
from .node import Node
from .operation import Loop, expressions

MAX_LOADS = 64
MAX_NODES = 400
"""Beyond so many distinct loads or nodes a kernel spills its registers, and the compiler's time for it grows faster
than its length: a chain of 400, 800 and 1600 values takes g++ 12 -O3 0.13, 0.27 and 0.68 s of an Intel core."""

MAX_INDEX = 128
"""Symbols, numbers and operations in the position of one load. Those of models have 43 at most (the shifted windows of
Swin); each division among them takes longer than a load from the cache does."""

MAX_VIEW = MAX_INDEX // 2
"""The same limit for positions in what is read through views alone: the reader adds a position of its own."""

MAX_INDICES = 2048
"""The same limit for all distinct positions in a body: 32 terms for each of `MAX_LOADS` loads."""

MEMO = 1 << 16
"""How many expressions' counts are kept: more than a large model has at a time."""


@lru_cache(MEMO)
def terms(expr: Expr) -> int:
    """Returns the number of symbols, numbers and operations in an index expression."""
    return 1 + sum(terms(argument) for argument in expr.args)


@lru_cache(MEMO)
def _occurrences(expr: Expr) -> Mapping[Symbol, int]:
    """Returns how often each symbol occurs."""
    if expr.is_Symbol:
        return {expr: 1}
    found: dict[Symbol, int] = {}
    for argument in expr.args:
        for symbol, count in _occurrences(argument).items():
            found[symbol] = found.get(symbol, 0) + count
    return found


def position_terms(position: Iterable[Expr]) -> int:
    """Returns the terms of a position, which has an expression per dimension."""
    return sum(terms(expr) for expr in position)


def substituted_terms(position: Iterable[Expr], mapping: Mapping[Symbol, Expr]) -> int:
    """Returns how many terms a position has once symbols are replaced and before anything cancels, which is what the
    replacement costs."""
    total = 0
    for expr in position:
        total += terms(expr)
        for symbol, count in _occurrences(expr).items():
            if symbol in mapping:
                total += count * (terms(mapping[symbol]) - 1)
    return total


def nodes_excess(nodes: Iterable[Node]) -> str | None:
    """Returns why distinct nodes are too many for one body, or too complex; None if they are not."""
    count = loads = indices = 0
    for node in nodes:
        count += 1
        own = position_terms(expressions(node))
        indices += own
        if own > MAX_INDEX:
            return f"a position of more than {MAX_INDEX} terms"
        if node.op == "load":
            loads += 1
    if loads > MAX_LOADS:
        return f"more than {MAX_LOADS} loads in one kernel"
    if count > MAX_NODES:
        return f"more than {MAX_NODES} values in one kernel"
    if indices > MAX_INDICES:
        return f"positions of more than {MAX_INDICES} terms together in one kernel"
    return None


def excess(loop: Loop) -> str | None:
    """Returns why a loop is too complex for one kernel; None if it is not."""
    return nodes_excess(loop.nodes)


def is_worse(new: Loop, old: Loop) -> bool:
    """Returns whether `new` is more complex than `old`: a loop that was too complex from the start may get simpler."""
    return _total(new) > _total(old)


def _total(loop: Loop) -> int:
    return sum(1 + position_terms(expressions(node)) for node in loop.nodes)
