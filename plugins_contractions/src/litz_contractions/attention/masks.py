"""What masks of attention say. In: the nodes that a body stores, or an `Attention`. Out, by `find_bounds`: between
which keys a mask is open, as far as its comparisons of positions say (causal, windows). A kernel without a list of
blocks works out from that which tiles of keys it need not look at, and which need no mask. Out, by `opened`: the
attention, whose score has no 0 and -inf added to it, and whose mask has no condition that holds everywhere.

Models that write attention out mask by the least number there is, where others put -inf. Counted in powers of 2 that
number is -inf, and divided by a scale too. So a score with such a mask is used as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import sympy
import torch

from litz.ir import Loop, Node, Store
from litz.ir.build import call, const
from litz.ir.index import Expr, Symbol, known_nonnegative
from litz.ir.intervals import Intervals, conditions, expression
from litz.ir.node import is_number, rewrite, uncast, walk, with_args

from .operation import SCORE, Attention


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
    left, right = (expression(node) for node in condition.args)
    step = _AT_MOST.get(condition.op)
    if left is None and right is not None and condition.args[0].op == "abs" and step is not None:
        inside = expression(condition.args[0].args[0])  # |distance| <= limit, of which eq is one half only
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


LEAST_HALF = torch.finfo(torch.float16).min
LEAST_SCALED = -2.3e38
"""The least score that is finite when it counts in powers of 2."""


def keeps_least(attention: Attention, score: Node) -> bool:
    """Returns whether a row may have weights although no score in it is greater than the least number of the dtype."""
    return math.isnan(attention.nothing) or any(map(is_least, walk(score)))


def is_least(node: Node) -> bool:
    """Returns whether the node is a constant so low that only a mask adds it to a score. False for -inf."""
    return node.op == "const" and -math.inf < node.attrs[0] < LEAST_SCALED


def masked(node: Node, hides: Callable[[Node], bool]) -> tuple[Node, Node] | None:
    """Returns the condition and the value of where(condition, value, hidden), whichever way round the node has them;
    None for any other node. hides: says of a value whether it is hidden."""
    node = uncast(node)
    if node.op != "where":
        return None
    condition, yes, no = node.args
    if hides(uncast(no)):
        return condition, yes
    inverse = condition.args[0] if condition.op == "bitwise_not" else call("bitwise_not", condition)
    return (inverse, no) if hides(uncast(yes)) else None


def least_mask(score: Node | None) -> Node | None:
    """Returns the condition outside which a score becomes, or has added to it, the least number; None without one."""
    if score is None:
        return None
    score = uncast(score)
    for node in score.args if score.op == "add" else (score,):
        found = masked(node, is_least)
        if found is not None and (score.op == "where" or is_number(uncast(found[1]), 0)):
            return found[0]
    return None


def evened(score: Node) -> Node:
    """Returns the score with masks of float16's least number put in its place, where they are added to it in float16:
    there that number and a score are that number, and all keys of a row that is wholly masked weigh the same."""

    def change(node: Node, args: tuple[Node, ...]) -> Node:
        if node.op == "add" and node.dtype == torch.float16:
            for mask, other in (args, args[::-1]):
                found = masked(mask, _is_least_half)
                if found is not None and is_number(uncast(found[1]), 0):
                    return call("where", found[0], other, const(LEAST_HALF, node.dtype))
        return with_args(node, args)

    (changed,) = rewrite((score,), change)
    return changed


def _is_least_half(node: Node) -> bool:
    return node.op == "const" and -math.inf < node.attrs[0] <= LEAST_HALF


def opened(attention: Attention) -> Attention:
    """Returns the attention with its bias of 0 or -inf turned into a mask, and without conditions that always hold."""
    score, mask = attention.score, attention.mask
    if score is None:
        return attention
    extents = score.extents
    value, wanted = score.stores[0].value, [] if mask is None else [mask.stores[0].value]
    while (parts := _parted(value, attention.hidden)) is not None:
        value, condition = parts
        wanted += [] if condition is None else [condition]
    intervals = Intervals(extents)
    left = [each for node in wanted for each in conditions(node) if not holds(each, intervals)]
    node = None
    for each in left:
        node = each if node is None else call("bitwise_and", node, each)
    untouched = uncast(value).op == "load" and uncast(value).buffer == SCORE
    return replace(
        attention,
        score=None if untouched else _with(score, value),
        mask=None if node is None else _with(score, node),
    )


def _with(loop: Loop, value: Node) -> Loop:
    (store,) = loop.stores
    return replace(loop, stores=(Store(SCORE, store.index, value),))


def _parted(value: Node, hidden: float) -> tuple[Node, Node | None] | None:
    """Takes a sum of a score and a bias apart: returns the score and the condition that the bias stands for (0 where
    the condition holds, -inf or `hidden` elsewhere); no condition for a bias of 0. None for any other value."""
    value = uncast(value)
    if value.op != "add":
        return None
    for bias, rest in (value.args, value.args[::-1]):
        if is_number(bias, 0.0):
            return rest, None
        found = masked(bias, lambda node: _hides(node, hidden))
        if found is not None and is_number(found[1], 0.0):
            return rest, found[0]
    return None


def _hides(node: Node, hidden: float) -> bool:
    """Returns whether the node is -inf, or `hidden` as its type rounds that number."""
    return any(is_number(node, each) for each in (-math.inf, hidden, torch.tensor(hidden, dtype=node.dtype).item()))


def holds(condition: Node, intervals: Intervals) -> bool:
    """Returns whether a condition holds at every position, as far as it follows from the ranges of the positions."""
    if condition.op == "const":
        return bool(condition.attrs[0])
    if condition.op not in ("le", "lt", "ge", "gt") or condition.args[0].dtype.is_floating_point:
        return False
    less, greater = (intervals.of(arg) for arg in condition.args)
    if condition.op in ("ge", "gt"):
        less, greater = greater, less
    if less.high is None or greater.low is None:
        return False
    return known_nonnegative(greater.low - less.high - int(condition.op in ("lt", "gt")))
