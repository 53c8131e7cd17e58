"""Which values of an attention's bodies may be less exact than elsewhere, because the operands are less exact still.

In: the nodes that the bodies of score and gradient store, and the operands' type. Out: for some nodes the form that
computes them (`litz.tiles.make.Maker.near`).

A `tanh` (a soft cap) of float32 takes about 25 instructions and a branch, and may be half of all work. Written as
1 - 2 / (1 + e^2x) with the hardware's power of two and reciprocal it takes five. With their documented errors (PTX ISA:
ex2.approx 2^-22 and rcp.approx 1 unit in the last place, both relative) and d = 2^-22 + |2x| 2^-24 the error of e^2x,
r = 1 / (1 + e^2x):

    |error| <= 2 r (1 - r) d + 2 r (2^-23 + 2^-24) + 2^-25 < 2^-20   for every x, as 2 r (1 - r) |2x| < 0.9

An error of the score is one of the weight's logarithm. So that error, times what the body multiplies the tanh by until
it is the score (or, of the gradient's factor, until it is the gradient), must stay below `LEAST`, which is a quarter of
what rounding one operand to float16 does, and a sixteenth for bfloat16. The hardware's own tanh.approx is 2^-11 off,
relative: capped at 50 a score would be off by 0.02, which is more than eager is where the cap saturates.

What a gradient is rounded to on its way, because eager holds it in a half type, is not rounded here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from litz.ir import Node
from litz.ir.dtypes import HALF
from litz.ir.node import walk
from litz.ir.ops import AS_HALF

from .operation import GRADIENT

TANH_ERROR = 2.0**-20
LEAST = 2.0**-13
_LINEAR = frozenset({"add", "sub", "neg", "cast", *AS_HALF.values()})


def near_forms(
    dtype: torch.dtype, score: Node | None, factor: float, gradient: Node | None = None
) -> Mapping[Node, str]:
    """Returns the forms, by node, of what half types let a kernel compute less exactly. dtype: of query, key and value.
    score, gradient: None for a body that is not there. factor: what the score is to be multiplied by."""
    if dtype not in HALF:
        return {}
    roots = {root: times for root, times in ((score, factor), (gradient, 1.0)) if root is not None}
    gains = [find_gains(root, times) for root, times in roots.items()]
    found: dict[Node, str] = {}
    for node in walk(*roots):
        gain = max(each.get(node, 0.0) for each in gains)
        if node.op == "tanh" and node.dtype == torch.float32 and gain * TANH_ERROR <= LEAST:
            found[node] = "tanh_near"
    if gradient is not None:
        kept = set(walk(score)) if score is not None else set()
        for node in walk(gradient):
            if node.op == "cast" and node not in kept and {node.dtype, node.args[0].dtype} <= {*HALF, torch.float32}:
                found[node] = "same"
    return found


def find_gains(root: Node, factor: float = 1.0) -> Mapping[Node, float]:
    """Returns, for each node, at most how many times an error of the node is found in factor * root, to first order.
    The incoming gradient counts as 1; the result is infinite where no bound is known."""
    order = list(walk(root))
    size = _sizes(order)
    gains = {root: abs(factor)}
    for node in reversed(order):
        gain = gains.get(node, 0.0)
        for position, arg in enumerate(node.args):
            if gain:
                gains[arg] = gains.get(arg, 0.0) + gain * _slope(node, position, size)
    return gains


def _slope(node: Node, position: int, size: Mapping[Node, float]) -> float:
    """Returns the greatest derivative of a node by one of its arguments."""
    if node.op in _LINEAR or (node.op == "where" and position > 0):
        return 1.0
    if node.op == "mul" or (node.op == "fma" and position < 2):
        return size[node.args[1 - position]]
    return 1.0 if node.op == "fma" else math.inf


def _sizes(order: list[Node]) -> Mapping[Node, float]:
    """The greatest absolute value of each node, arguments before users."""
    found: dict[Node, float] = {}
    for node in order:
        found[node] = _size(node, [found[arg] for arg in node.args])
    return found


def _size(node: Node, args: list[float]) -> float:
    if node.op == "const":
        return abs(float(node.attrs[0]))
    if node.op == "tanh" or (node.op == "load" and node.buffer == GRADIENT):
        return 1.0
    if node.op == "mul":
        return 0.0 if 0.0 in args else args[0] * args[1]
    return sum(args) if node.op in _LINEAR else math.inf
