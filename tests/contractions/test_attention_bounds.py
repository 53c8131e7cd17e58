"""What a mask's comparisons say of the keys that it leaves."""

from __future__ import annotations

import pytest
import torch

from litz.ir import Node
from litz.ir.build import call, const, index, load
from litz.ir.index import Symbol, loop_var, to_expr
from litz_contractions.attention.masks import Bounds, find_bounds

Q, K = loop_var(2), loop_var(3)


def at(expr: object) -> Node:
    return index(to_expr(expr))  # type: ignore[arg-type]


def number(value: int) -> Node:
    return const(value, torch.int64)


CAUSAL = call("ge", at(Q), at(K))
NEAR = call("lt", at(Q - K), number(7))
SOME = call("gt", load("x", (K,), torch.float32), const(0.0, torch.float32))

CASES: dict[str, tuple[Node | None, Bounds]] = {
    "none": (None, Bounds()),
    "causal": (CAUSAL, Bounds((), (Q,))),
    "the other way round": (call("le", at(K), at(Q)), Bounds((), (Q,))),
    "strictly": (call("gt", at(Q), at(K)), Bounds((), (Q - 1,))),
    "shifted": (call("ge", at(Q + 5), at(K)), Bounds((), (Q + 5,))),
    "window": (call("bitwise_and", CAUSAL, NEAR), Bounds((Q - 6,), (Q,))),
    "both ways": (call("le", call("abs", at(Q - K)), number(3)), Bounds((Q - 3,), (Q + 3,))),
    "prefix": (call("lt", at(K), number(9)), Bounds((), (to_expr(8),))),
    "diagonal": (call("eq", at(Q), at(K)), Bounds((Q,), (Q,))),
    "beside data": (call("bitwise_and", CAUSAL, SOME), Bounds((), (Q,), exact=False)),
    "data": (SOME, Bounds(exact=False)),
    "every other": (call("ge", at(Q), at(2 * K)), Bounds(exact=False)),
    "mirrored": (call("ge", at(10 - Q), at(K)), Bounds((), (10 - Q,))),
    "either": (call("bitwise_or", CAUSAL, NEAR), Bounds(exact=False)),
}


@pytest.mark.parametrize("name", CASES)
def test_bounds(name: str) -> None:
    mask, want = CASES[name]
    found = find_bounds(mask, Q, K)
    assert (set(found.lower), set(found.upper), found.exact) == (set(want.lower), set(want.upper), want.exact)


def test_bounds_hold() -> None:
    """Of every mask: no key outside is open, and where they are exact every key inside is."""
    for mask, _ in CASES.values():
        found = find_bounds(mask, Q, K)
        for q in range(12):
            for k in range(12):
                given: dict[Symbol, int] = {Q: q, K: k}
                inside = all(k >= e.subs(given) for e in found.lower) and all(k <= e.subs(given) for e in found.upper)
                is_open = _open(mask, given)
                assert inside or not is_open
                assert is_open or not (inside and found.exact)


def _open(mask: Node | None, given: dict[Symbol, int]) -> bool:
    """Data are taken to be open for every other key."""
    if mask is None:
        return True
    if mask is SOME:
        return given[K] % 2 == 0
    if mask.dtype == torch.bool and mask.args[0].dtype == torch.bool:
        left, right = (_open(arg, given) for arg in mask.args)
        return (left and right) if mask.op == "bitwise_and" else (left or right)
    left, right = (_number(arg, given) for arg in mask.args)
    kinds = {"ge": left >= right, "gt": left > right, "le": left <= right, "lt": left < right, "eq": left == right}
    return kinds[mask.op]


def _number(node: Node, given: dict[Symbol, int]) -> int:
    if node.op == "abs":
        return abs(_number(node.args[0], given))
    return int(node.attrs[0]) if node.op == "const" else int(node.attrs[0].subs(given))
