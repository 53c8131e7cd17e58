"""Segments of an output range: a loop over a concatenation takes another source in each segment.

In: a Loop. Out: the bounds of the segments of each range (`cuts`); the loop on one segment, without the choice between
the sources (`segment`); the loop that takes the same position of every segment in one iteration (`at_once`).
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import replace

import torch

from . import build
from .comparisons import TURNS, difference
from .index import ONE, Expr, Ranges, Symbol, bounds, stride_of, substitute, to_expr
from .node import Node, with_args
from .operation import Loop, Range
from .transform import map_stores, rename_loop

_TRUE, _FALSE = build.const(True, torch.bool), build.const(False, torch.bool)


def cuts(loop: Loop) -> dict[Range, tuple[int, ...]]:
    """Returns the bounds of the segments of each output range that has several: 0, each position at which a comparison
    changes its answer, and the size. A loop has no segments if it checks positions, combines values with stored ones,
    or masks fewer than two loads; a range has none if its size is symbolic."""
    if sum(load.mask is not None for load in loop.loads) < 2:
        return {}
    if any(node.op == "bounded" for node in loop.nodes) or any(store.mode != "set" for store in loop.stores):
        return {}
    ranges = {r.var: r for r in loop.ranges if r.size.is_Integer}
    found: dict[Range, set[int]] = {}
    for node in loop.nodes:
        apart = difference(node)
        variables = set() if apart is None else apart.free_symbols & ranges.keys()
        if apart is None or len(variables) != 1:
            continue
        (var,) = variables
        step = stride_of(apart, var)
        if step is None or abs(step) != ONE:
            continue
        rest = apart - step * var
        if not rest.is_Integer:
            continue
        for value in TURNS[node.op]:
            cut = value - int(rest) if step == ONE else int(rest) - value + 1
            if 0 < cut < int(ranges[var].size):
                found.setdefault(ranges[var], set()).add(cut)
    return {r: (0, *sorted(places), int(r.size)) for r, places in found.items()}


def segment(loop: Loop, r: Range, start: int, stop: int) -> Loop:
    """Returns the loop on the segment `start` <= r.var < `stop`, with positions counted from 0. The loop has no
    comparisons that are the same in the whole segment, and no values that such a comparison leaves out; it may have no
    stores."""
    ranges = tuple(Range(r.var, to_expr(stop - start)) if each == r else each for each in loop.ranges)
    mapping = {r.var: r.var + start}
    extents = {each.var: each.size for each in (*ranges, *loop.reduction_ranges)}
    stores = map_stores(loop.stores, lambda node, args: _simplified(node, args, mapping, extents))
    stores = tuple(
        replace(store, mask=None) if store.mask is _TRUE else store for store in stores if store.mask is not _FALSE
    )
    return rename_loop(replace(loop, stores=stores), mapping, ranges, loop.reduction_ranges)


def at_once(loop: Loop, r: Range, count: int) -> Loop:
    """Returns the loop over the first of `count` equal segments of a range, with the stores of all of them."""
    size = int(r.size) // count
    loops = [segment(loop, r, start, start + size) for start in range(0, int(r.size), size)]
    return replace(loops[0], stores=tuple(store for each in loops for store in each.stores))


def _simplified(node: Node, args: tuple[Node, ...], mapping: Mapping[Symbol, Expr], extents: Ranges) -> Node:
    """A node on simplified arguments, without what the ranges decide. mapping: from the node's variables to those of
    `extents`."""
    apart = difference(node)
    if apart is not None:
        low, high = bounds(substitute(apart, mapping, extents), extents)
        if low is not None and high is not None and low.is_Integer and high.is_Integer:
            if not any(low < turn <= high for turn in TURNS[node.op]):
                return build.const(getattr(operator, node.op)(int(low), 0), torch.bool)
            return node
    if node.op == "where":
        return build.call("where", *args)
    if node.op == "load" and node.mask is not None:
        return build.load(node.buffer, node.index, node.dtype, args[:-1], args[-1])
    if node.op in ("bitwise_and", "bitwise_or") and node.dtype == torch.bool:
        neutral, absorbing = (_TRUE, _FALSE) if node.op == "bitwise_and" else (_FALSE, _TRUE)
        if absorbing in args:
            return absorbing
        if neutral in args:
            return args[1] if args[0] is neutral else args[0]
    return with_args(node, args)
