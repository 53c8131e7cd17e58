"""Masks that were made biases, as masks again. In: an `Attention`. Out: the same whose score has no 0 and -inf added to
it, and whose mask has no condition that holds everywhere."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from litz.ir import Loop, Node, Store
from litz.ir.build import call
from litz.ir.index import known_nonnegative
from litz.ir.intervals import Intervals, conditions
from litz.ir.node import is_number, uncast

from .least import masked
from .operation import SCORE, Attention


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
    left = [each for node in wanted for each in conditions(node) if not _holds(each, intervals)]
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
    """Is the node -inf, or `hidden` as its type rounds that number?"""
    return any(is_number(node, each) for each in (-math.inf, hidden, torch.tensor(hidden, dtype=node.dtype).item()))


def _holds(condition: Node, intervals: Intervals) -> bool:
    """Does a condition hold at every position, as far as it follows from the ranges of the positions?"""
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


__all__ = ["opened"]
