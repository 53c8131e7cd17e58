"""Masks of the least number there is: what models that write attention out put where others put -inf. In: a body's
score. Out: is there such a mask, and what does it leave?

Counted in powers of 2 that number is -inf, and divided by a scale too. So a score with such a mask is used as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from litz.ir import Node
from litz.ir.build import call, const
from litz.ir.node import is_number, rewrite, uncast, walk, with_args

from .operation import Attention

LEAST_HALF = torch.finfo(torch.float16).min
LEAST_SCALED = -2.3e38
"""The least score that is finite when it counts in powers of 2."""


def keeps_least(attention: Attention, score: Node) -> bool:
    """Returns whether a row may have weights although no score in it is greater than the least number of the dtype."""
    return math.isnan(attention.nothing) or has_least(score)


def has_least(score: Node) -> bool:
    """Returns whether what becomes of a score includes a mask of the least number there is."""
    return any(is_least(node) for node in walk(score))


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
    for node in map(uncast, score.args if score.op == "add" else (score,)):
        if node.op != "where":
            continue
        condition, yes, no = node.args[0], uncast(node.args[1]), uncast(node.args[2])
        if condition.op == "bitwise_not":
            condition, yes, no = condition.args[0], no, yes
        if is_least(no) and (score.op == "where" or is_number(yes, 0)):
            return condition
    return None


def evened(score: Node) -> Node:
    """Returns the score with masks of float16's least number put in its place, where they are added to it in float16:
    there that number and a score are that number, and all keys of a row that is wholly masked weigh the same."""

    def change(node: Node, args: tuple[Node, ...]) -> Node:
        if node.op == "add" and node.dtype == torch.float16:
            for mask, other in (args, args[::-1]):
                chosen = uncast(mask)
                if chosen.op != "where":
                    continue
                condition, yes, no = chosen.args[0], uncast(chosen.args[1]), uncast(chosen.args[2])
                if is_number(yes, 0) and _is_least_half(no):
                    return call("where", condition, other, const(LEAST_HALF, node.dtype))
                if is_number(no, 0) and _is_least_half(yes):
                    return call("where", condition, const(LEAST_HALF, node.dtype), other)
        return with_args(node, args)

    (changed,) = rewrite((score,), change)
    return changed


def _is_least_half(node: Node) -> bool:
    return node.op == "const" and -math.inf < node.attrs[0] <= LEAST_HALF


__all__ = ["LEAST_SCALED", "evened", "has_least", "keeps_least", "least_mask", "masked"]
