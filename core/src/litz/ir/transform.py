"""Changes of loops that keep their meaning: renamed variables, loads replaced by values, flat memory, fewer ranges."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import combinations, pairwise

from .buffer import Buffer
from .build import index as index_node
from .comparisons import simplest
from .index import ONE, ZERO, Expr, Ranges, Symbol, flat_index, stride_of, substitute
from .node import Node, intern, rewrite, with_args
from .operation import Loop, Range, Store, expressions


def rename(node: Node, args: tuple[Node, ...], mapping: Mapping[Symbol, Expr], ranges: Ranges) -> Node:
    """Returns one node on new arguments, with the loop variables in its expressions replaced."""
    if node.op == "load":
        position = tuple(substitute(expr, mapping, ranges) for expr in node.index)
        return intern("load", node.dtype, args, (node.buffer, position, node.attrs[2]))
    if node.op == "index":
        return index_node(substitute(node.attrs[0], mapping, ranges))
    return simplest(with_args(node, args), ranges)


def rename_nodes(roots: tuple[Node, ...], mapping: Mapping[Symbol, Expr], ranges: Ranges) -> tuple[Node, ...]:
    """Returns the roots with loop variables replaced by expressions over the variables of `ranges`."""
    return rewrite(roots, lambda node, args: rename(node, args, mapping, ranges))


def map_stores(
    stores: tuple[Store, ...],
    change: Callable[[Node, tuple[Node, ...]], Node],
    position: Callable[[Store], tuple[Expr, ...]] = lambda store: store.index,
) -> tuple[Store, ...]:
    """Returns the stores with every node rewritten by `change(node, new_args)`, and indices by `position`."""
    roots = tuple(root for store in stores for root in store.roots)
    done = dict(zip(roots, rewrite(roots, change), strict=True))
    return tuple(
        replace(
            store,
            index=position(store),
            value=done[store.value],
            indirect=tuple(done[node] for node in store.indirect),
            mask=None if store.mask is None else done[store.mask],
        )
        for store in stores
    )


def rename_loop(
    loop: Loop, mapping: Mapping[Symbol, Expr], ranges: tuple[Range, ...], reduction_ranges: tuple[Range, ...]
) -> Loop:
    """Returns the loop over other variables: each old variable becomes an expression over the new ranges.

    The caller sees to it that the new points and the old ones are in one-to-one correspondence.
    """
    extents = {r.var: r.size for r in (*ranges, *reduction_ranges)}
    stores = map_stores(
        loop.stores,
        lambda node, args: rename(node, args, mapping, extents),
        lambda store: tuple(substitute(expr, mapping, extents) for expr in store.index),
    )
    return replace(loop, ranges=ranges, reduction_ranges=reduction_ranges, stores=stores)


def replace_loads(stores: tuple[Store, ...], value: Callable[[Node], Node | None]) -> tuple[Store, ...]:
    """Returns the stores with each load replaced by the node that `value` gives for it, if any."""

    def change(node: Node, args: tuple[Node, ...]) -> Node:
        new = with_args(node, args)
        return (value(new) or new) if new.op == "load" else new

    return map_stores(stores, change)


def flatten(loop: Loop, buffers: Mapping[str, Buffer]) -> Loop:
    """Returns the loop in flat form: each load and store has one index, the offset in elements from the buffer's data.

    For code generation only: a flat loop no longer fits the buffers' dimensions. Ranges of size 1 are dropped.
    """
    single = {r.var: ZERO for r in loop.all_ranges if r.size == ONE}
    if single:
        ranges, reduction = (tuple(r for r in own if r.size != ONE) for own in (loop.ranges, loop.reduction_ranges))
        # One reduction range must stay for a scan or a reduce to run over.
        loop = rename_loop(loop, single, ranges, reduction or loop.reduction_ranges[:1])

    def flat(name: str, position: tuple[Expr, ...]) -> tuple[Expr, ...]:
        # A layout's own offset is part of where the tensor's data pointer points.
        return (flat_index(position, buffers[name].layout.stride, ZERO),)

    def change(node: Node, args: tuple[Node, ...]) -> Node:
        if node.op != "load":
            return with_args(node, args)
        return intern("load", node.dtype, args, (node.buffer, flat(node.buffer, node.index), node.attrs[2]))

    return replace(loop, stores=map_stores(loop.stores, change, lambda store: flat(store.buffer, store.index)))


def collapse(loop: Loop, groups: Mapping[Symbol, int] | None = None) -> Loop:
    """Returns a flat loop with ranges joined wherever every access goes through them as through one.

    Ranges i (outer) and j (inner, extent n) join if each expression has stride_i = n * stride_j. Orders the output
    ranges by their strides first (the largest outermost), so that what is contiguous becomes one range. groups: a
    number for some of the output ranges; ranges join with others of the same number only. The joined range goes by the
    variable of the inner one.
    """
    loop = _ordered(loop)
    while (joined := _join_once(loop, groups or {})) is not None:
        loop = joined
    return loop


def _all_expressions(loop: Loop) -> list[Expr]:
    found = [expr for node in loop.nodes for expr in expressions(node) if node.op != "bounded"]
    return found + [expr for store in loop.stores for expr in store.index]


def _ordered(loop: Loop) -> Loop:
    """Output ranges by the sum of their strides over the stores and loads, descending; reduction ranges likewise.

    A loop whose strides are not constants keeps its order, and so do reduction ranges whose order is part of the
    result (argmax positions, scans).
    """
    weights: dict[Symbol, int] = {}
    for r in loop.all_ranges:
        weight = 0
        for expr in _all_expressions(loop):
            step = stride_of(expr, r.var)
            if step is None or not step.is_Integer:
                return loop
            weight += abs(int(step))
        weights[r.var] = weight
    return replace(
        loop,
        ranges=tuple(sorted(loop.ranges, key=lambda r: -weights[r.var])),
        reduction_ranges=loop.reduction_ranges
        if loop.ordered
        else tuple(sorted(loop.reduction_ranges, key=lambda r: -weights[r.var])),
    )


def _join_once(loop: Loop, groups: Mapping[Symbol, int]) -> Loop | None:
    exprs = _all_expressions(loop)
    inside = pairwise(loop.reduction_ranges) if loop.ordered else combinations(loop.reduction_ranges, 2)
    for pairs in (combinations(loop.ranges, 2), inside):
        for outer, inner in pairs:
            if groups.get(outer.var) != groups.get(inner.var) or not _joinable(exprs, outer, inner):
                continue
            merged = Range(inner.var, outer.size * inner.size)
            ranges, reduction = (
                tuple(merged if r == inner else r for r in own if r != outer)
                for own in (loop.ranges, loop.reduction_ranges)
            )
            # Where the stride of outer is n * stride of inner, outer*n + inner may stand as inner, with outer at 0.
            return rename_loop(loop, {outer.var: ZERO}, ranges, reduction)
    return None


def _joinable(exprs: list[Expr], outer: Range, inner: Range) -> bool:
    for expr in exprs:
        slow, fast = stride_of(expr, outer.var), stride_of(expr, inner.var)
        if slow is None or fast is None or slow != fast * inner.size:
            return False
    return True
