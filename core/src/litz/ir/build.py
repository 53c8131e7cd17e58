"""Making nodes: applies the type rules, folds what is constant, interns.

x = load("buf0", (i0, i1), torch.float32)
y = call("mul", call("exp", x), const(2.0, torch.float32))
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from .combined import scan_row
from .dtypes import compute_dtype
from .index import Expr, is_placeholder, may_be_empty, placeholder_number, to_expr
from .node import Node, intern, rewrite, walk, with_args
from .reductions import REDUCTIONS, SCANS
from .scalars import bitcast as bitcast
from .scalars import call as call
from .scalars import cast as cast
from .scalars import const as const
from .scalars import no_such
from .scalars import promoted as promoted
from .scalars import rounded as rounded

if TYPE_CHECKING:
    from .operation import Range


def index(expr: int | Expr) -> Node:
    """Returns an index expression (over loop variables and sizes) as an int64 node."""
    expr = to_expr(expr)
    return const(int(expr), torch.int64) if expr.is_Integer else intern("index", torch.int64, (), (expr,))


def load(
    buffer: str,
    position: tuple[Expr, ...],
    dtype: torch.dtype,
    indirect: tuple[Node, ...] = (),
    mask: Node | None = None,
) -> Node:
    """Returns a load of one element of a buffer. `indirect` are the int64 nodes that the placeholders in `position`
    stand for. Errors: TypeError for an indirect node of another dtype.

    Where `mask` (bool) is False nothing is read and the value is 0.
    """
    for node in indirect:
        if node.dtype != torch.int64:
            raise TypeError(f"an index must be int64, got {node.dtype}")
    if mask is not None and mask.op == "const":
        if mask.attrs[0]:
            mask = None
        else:
            return const(0, dtype)
    args = indirect if mask is None else (*indirect, mask)
    return intern("load", dtype, args, (buffer, tuple(position), mask is not None))


def bounded(position: Node, size: int | Expr, what: str = "", mask: Node | None = None) -> Node:
    """Returns `position` (int64), checked: a run ends with an error unless 0 <= position < size.

    what: names the op and the dimension in the error. Where `mask` (bool) is False nothing is checked, and the value is
    some position in the range, if there is one.
    """
    if position.dtype != torch.int64:
        raise TypeError(f"an index must be int64, got {position.dtype}")
    args = (position,) if mask is None else (position, mask)
    return intern("bounded", torch.int64, args, (to_expr(size), what))


def reduce(kind: str, *values: Node, over: tuple[Range, ...] = ()) -> Node:
    """Returns `values` reduced over the ranges `over`, or over all reduction ranges of the loop. Errors: ValueError for
    an unknown kind; TypeError for another number of values."""
    row = REDUCTIONS.get(kind)
    if row is None:
        raise no_such("reduction", kind, REDUCTIONS)
    if len(values) != row.arity:
        raise TypeError(f"{kind} takes {row.arity} values, got {len(values)}")
    return intern("reduce", row.dtype(kind, values[0].dtype), values, (kind, over) if over else (kind,))


def scan(kind: str, *values: Node) -> Node:
    """Returns `values` scanned, inclusively, along the loop's only reduction range. Errors: ValueError for an unknown
    kind; TypeError for another number of values."""
    row = scan_row(kind)
    if row is None:
        raise no_such("scan", kind, SCANS)
    if len(values) != row.arity:
        raise TypeError(f"a scan {kind} takes {row.arity} values, got {len(values)}")
    return intern("scan", row.dtype(kind, values[0].dtype), values, (kind,))


def logical_and(left: Node | None, right: Node | None) -> Node | None:
    """Returns the conjunction of two conditions; None stands for a condition that always holds."""
    if left is None or right is None:
        return left or right
    return left if left is right else call("bitwise_and", left, right)


def guard(value: Node, mask: Node) -> Node:
    """Returns `value` with every load in it masked by `mask`, and every bound checked only there.

    The value where the mask does not hold is meaningless; select it away with `where`. What the mask itself is made of
    stays: the mask needs it at every point, and says something of a position only while both are one node.
    """
    needed = set(walk(mask))

    def change(node: Node, args: tuple[Node, ...]) -> Node:
        if node in needed:
            return node
        if node.op == "load":
            both = logical_and(node.mask and args[-1], mask)
            # Where the mask is False, there may be no position at all that a checked one could be.
            for size in empty_sizes(node.indirect):
                both = logical_and(both, not_empty(size))
            return load(node.buffer, node.index, node.dtype, args[: len(node.indirect)], both)
        if node.op == "bounded":
            size, what = node.attrs
            return bounded(args[0], size, what, logical_and(args[1] if len(args) > 1 else None, mask))
        return with_args(node, args)

    return rewrite((value,), change)[0]


def checks_in(positions: Iterable[Node]) -> list[Node]:
    """Returns the `bounded` nodes that `positions` are made of. Those below a load do not count: what it reads is a
    position only once it has been checked anew."""
    found: dict[Node, None] = {}
    stack = list(positions)
    seen: set[Node] = set()
    while stack:
        node = stack.pop()
        if node.op == "load" or node in seen:
            continue
        seen.add(node)
        if node.op == "bounded":
            found[node] = None
        stack.extend(node.args)
    return list(found)


def with_checks(value: Node, positions: Iterable[Node]) -> Node:
    """Returns `value` with the checks of positions that it does not depend on: where all elements along a dimension are
    the same, or there is one, an index out of range is still an error."""
    checks = checks_in(positions)
    used = set(walk(value)) if checks else set()
    for check in checks:
        if check not in used:
            outside = call("lt", check, const(0, torch.int64))
            value = intern("where", value.dtype, (outside, value, value), ())  # `call` would fold it
    return value


def empty_sizes(positions: Iterable[Node]) -> list[Expr]:
    """Returns the sizes, among those that `positions` are checked against, that may be 0."""
    return list(dict.fromkeys(node.attrs[0] for node in checks_in(positions) if may_be_empty(node.attrs[0])))


def not_empty(size: Expr) -> Node:
    """Returns the condition 0 < size as a bool node."""
    return call("lt", const(0, torch.int64), index(size))


def placeholders_in(position: tuple[Expr, ...]) -> int:
    """Returns how many placeholders an index uses: one more than the greatest number among them."""
    symbols = (s for expr in position for s in expr.free_symbols if is_placeholder(s))
    return max(map(placeholder_number, symbols), default=-1) + 1


def compute(node: Node) -> torch.dtype:
    """Returns the dtype that the node's value is held in while it is computed."""
    return compute_dtype(node.dtype)
