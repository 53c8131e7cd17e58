"""Functions that are computed less exactly, where a half type's rounding hides it. In: a loop. Out: forms of its nodes.

A half type keeps 8 or 11 bits of what a loop computes in float32; libdevice's functions are right to the last of 24,
for which they take 8 (exp), 21 (tanh) or 24 (erf) instructions an element. A kernel that reads and writes half types
has about 28 for all that it does with an element, or memory waits for it (H200: 132 SMs of 128 lanes, 4.3 TB/s). So a
value that goes into half types only, however many nodes it goes through, is computed so:

| node | as | relative error, below | instructions |
|---|---|---|---|
| exp(a - b), as in a softmax | 2^((a - b) log2 e) | 2^-21 + abs(a - b) 2^-23 | 2 |
| 1 + tanh(u) | 2 / (1 + 2^(-2 u log2 e)) | 2^-20 + abs(u) 2^-22 | 5 |
| 1 - tanh(u)^2 | s (2 - s) with s = 1 + tanh(-abs(u)) | 2^-18 + abs(u) 2^-20 | 8 |
| the division by the sum of a softmax | times the reciprocal | 2^-22 | 2 for a row, 1 |
| a mean, and what a reduction gives over a constant | times the reciprocal | 2^-23 | 1 |
| another division | the fast division | 2^-22 | 8, in place of 9 and a branch for each |
| sigmoid(u) | 1 / (1 + 2^(-u log2 e)) | 2^-20 + abs(u) 2^-23 | 4 |
| 1 + erf(u) | 2 - e, or e for u < 0, with e = erfc(abs(u)) = 2^(-abs(u) Q(abs(u))) | below | 15 |

by the hardware's power of two and reciprocal (2^-22 and 2^-23; results below 2^-126 are 0). Q is the polynomial of
degree 8 next to -log2(erfc(x)) / x on [0, 4]. In eager the sums with 1 are not exact where they cancel: 1 + erf(u) has
an absolute error of 2^-25, whatever is left. Here the absolute error is below 2^-21, and for u < 0 the relative one is
below 2^-18 down to -2 and 2^-12 to -4. Beyond -4, where 1 + erf(u) is less than 2^-25, Q is that of 4.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from litz.ir import Loop, Node
from litz.ir.dtypes import HALF, compute_dtype
from litz.ir.node import is_number, walk
from litz.ir.reductions import REDUCTIONS
from litz.tiles.make import divides_by_sum_of_exp

STEPS = frozenset({"floor", "ceil", "trunc", "round", "truncdiv", "floordiv", "remainder", "fmod", "sign"})
"""Functions that make a whole of the last bit of a quotient."""

_PLUS_ONE: Mapping[str, str] = {"erf": "erf_plus_one", "tanh": "tanh_plus_one"}


def near_forms(loop: Loop) -> Mapping[Node, str]:
    """Returns, for nodes whose value ends in half types only, the names of the forms that compute them: of
    `dialect.NEAR`; `part` is a division by a constant, as a product; `mean` is that of a sum, by a product."""
    exact = _exact(loop)
    users: dict[Node, list[Node]] = {}
    for node in loop.nodes:
        for arg in node.args:
            users.setdefault(arg, []).append(node)
    found: dict[Node, str] = {}
    steady = STEPS.isdisjoint(node.op for node in loop.nodes)
    for node in loop.nodes:
        if node in exact or compute_dtype(node.dtype) != torch.float32:
            continue
        if node.op == "exp" and node.args[0].op == "sub":
            found[node] = "exp"
        elif node.op == "div" and divides_by_sum_of_exp(node, loop):
            found[node] = "times_reciprocal_near"
        elif node.op == "reduce" and REDUCTIONS[node.attrs[0]].name == "welford":
            found[node] = "mean"
        elif node.op == "div" and steady and _is_part(node):
            found[node] = "part"
        elif node.op == "div" and steady:
            found[node] = "div"
        elif node.op == "sigmoid":
            found[node] = "sigmoid"
        elif node.op in _PLUS_ONE and users.get(node):
            sums = [user for user in users[node] if _adds_one(user)]
            squares = [user for user in users[node] if node.op == "tanh" and _is_slope(user, users)]
            if len(sums) + len(squares) == len(users[node]):
                found[node] = "same"
                found |= dict.fromkeys(sums, _PLUS_ONE[node.op])
                for square in squares:
                    found[square] = "same"
                    found |= dict.fromkeys(users[square], "tanh_slope")
    return found


def _is_part(node: Node) -> bool:
    """Returns whether the node is a reduction's result over a constant, whose reciprocal is an ordinary number."""
    top, bottom = node.args
    return top.op == "reduce" and bottom.op == "const" and 1 <= abs(bottom.attrs[0]) < 2.0**100


def _exact(loop: Loop) -> set[Node]:
    """The nodes that something needs as exactly as float32 has them. Eager rounds a value of a half type, so what only
    such values are made of is not among them; but positions, masks and other integers and booleans are exact."""
    wide = [store.value for store in loop.stores if store.value.dtype not in HALF]
    exact = set(walk(*wide, into=lambda node: node.dtype not in HALF))
    whole = [node for node in loop.nodes if not node.dtype.is_floating_point]
    whole += [root for store in loop.stores for root in store.roots if root is not store.value]
    return exact | set(walk(*whole))


def _is_slope(node: Node, users: Mapping[Node, list[Node]]) -> bool:
    """Returns whether the node is a square that is only subtracted from one."""
    if node.op != "mul" or node.args[0] is not node.args[1]:
        return False
    return bool(users.get(node)) and all(
        user.op == "sub" and user.args[1] is node and is_number(user.args[0], 1) for user in users[node]
    )


def _adds_one(node: Node) -> bool:
    """Returns whether the node is a function plus one: the function is its first argument, the constant the second."""
    if node.op != "add":
        return False
    one = node.args[1]
    return one.op == "const" and one.attrs[0] == 1
