"""Segments of an output range: a loop over a concatenation takes another source in each segment.

In: a Loop. Out: the bounds of the segments of each range (`cuts`); the loop on one segment, without the choice between
the sources (`segment`); the loop that takes the same position of every segment in one iteration (`at_once`).
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import torch

from . import build
from .comparisons import TURNS, difference
from .index import (
    ONE,
    Expr,
    FloorDiv,
    Mod,
    PythonMod,
    Ranges,
    Symbol,
    bounds,
    placeholder,
    stride_of,
    to_expr,
)
from .intervals import expression
from .node import Node, with_args
from .operation import Loop, Range
from .transform import map_stores, rename_loop

_TRUE, _FALSE = build.const(True, torch.bool), build.const(False, torch.bool)

MOST_TURNS = 3
"""The most values at which a quotient turns that its loop is split at."""


def cuts(loop: Loop) -> dict[Range, tuple[int, ...]]:
    """Returns the bounds of the segments of each output range that has several: 0, each position at which a comparison
    changes its answer, and the size. A loop has no segments if it checks positions, combines values with stored ones,
    or masks fewer than two loads; a range has none if its size is symbolic."""
    if sum(load.mask is not None for load in loop.loads) < 2:
        return {}
    return _segments(loop, ((apart, TURNS[node.op]) for node in loop.nodes if (apart := difference(node)) is not None))


def turns(loop: Loop) -> dict[Range, tuple[int, ...]]:
    """Returns the bounds of the segments in which all choices by position are the same, as `cuts` does: comparisons,
    absolute values, the lesser and the greater of two, quotients and remainders. A loop that checks positions or
    combines values with stored ones has none."""
    return _segments(loop, _choices(loop))


def _choices(loop: Loop) -> Iterator[tuple[Expr, Sequence[int]]]:
    """Yields expressions, each with the values from which on a choice by the expression is another."""
    for node in loop.nodes:
        if (apart := difference(node)) is not None:
            yield apart, TURNS[node.op]
        elif (apart := _chosen_by(node)) is not None:
            yield apart, (0,)
    for quotient in dict.fromkeys(part for expr in loop.expressions for part in expr.atoms(FloorDiv, Mod, PythonMod)):
        base, divisor = quotient.args
        low, high = bounds(base, loop.extents)
        if divisor.is_Integer and low is not None and high is not None and low.is_Integer and high.is_Integer:
            first, last = int(low) // int(divisor) + 1, int(high) // int(divisor)
            if last - first < MOST_TURNS:
                yield base, range(first * int(divisor), (last + 1) * int(divisor), int(divisor))


def _chosen_by(node: Node) -> Expr | None:
    """Returns the expression by whose sign a node gives one argument or the other, or its negative; else None."""
    if node.op not in ("abs", "minimum", "maximum"):
        return None
    found = [expression(arg) for arg in node.args]
    if any(each is None for each in found):
        return None
    return found[0] if node.op == "abs" else found[0] - found[1]  # type: ignore[operator]


def _segments(loop: Loop, choices: Iterable[tuple[Expr, Sequence[int]]]) -> dict[Range, tuple[int, ...]]:
    """Returns the bounds of the segments of each output range. choices: expressions, each with its turns."""
    if any(node.op == "bounded" for node in loop.nodes) or any(store.mode != "set" for store in loop.stores):
        return {}
    ranges = {r.var: r for r in loop.ranges if r.size.is_Integer}
    found: dict[Range, set[int]] = {}
    for expr, values in choices:
        variables = expr.free_symbols & ranges.keys()
        if len(variables) != 1:
            continue
        (var,) = variables
        step = stride_of(expr, var)
        if step is None or abs(step) != ONE:
            continue
        rest = expr - step * var
        if not rest.is_Integer:
            continue
        for value in values:
            cut = value - int(rest) if step == ONE else int(rest) - value + 1
            if 0 < cut < int(ranges[var].size):
                found.setdefault(ranges[var], set()).add(cut)
    return {r: (0, *sorted(places), int(r.size)) for r, places in found.items()}


def segment(loop: Loop, r: Range, start: int, stop: int) -> Loop:
    """Returns the loop on the segment `start` <= r.var < `stop`, with positions counted from 0, and without choices
    that are the same in the whole segment (`decided`)."""
    ranges = tuple(Range(r.var, to_expr(stop - start)) if each == r else each for each in loop.ranges)
    return decided(rename_loop(loop, {r.var: r.var + start}, ranges, loop.reduction_ranges))


def decided(loop: Loop) -> Loop:
    """Returns the loop without comparisons and choices by position that are the same everywhere in it, and without the
    values that such a comparison leaves out; it may have no stores. A loop that checks positions stays as it is, for
    what is left out may be a check."""
    if any(node.op == "bounded" for node in loop.nodes):
        return loop
    stores = map_stores(loop.stores, lambda node, args: _simplified(node, args, loop.extents))
    stores = tuple(
        replace(store, mask=None) if store.mask is _TRUE else store for store in stores if store.mask is not _FALSE
    )
    return replace(loop, stores=stores)


def at_once(loop: Loop, r: Range, count: int) -> Loop:
    """Returns the loop over the first of `count` equal segments of a range, with the stores of all of them."""
    size = int(r.size) // count
    loops = [segment(loop, r, start, start + size) for start in range(0, int(r.size), size)]
    return replace(loops[0], stores=tuple(store for each in loops for store in each.stores))


def _simplified(node: Node, args: tuple[Node, ...], extents: Ranges) -> Node:
    """A node on simplified arguments, without what the ranges decide."""
    new = with_args(node, args)
    apart = difference(new)
    if apart is not None:
        low, high = bounds(apart, extents)
        if low is not None and high is not None and low.is_Integer and high.is_Integer:
            if not any(low < turn <= high for turn in TURNS[node.op]):
                return build.const(getattr(operator, node.op)(int(low), 0), torch.bool)
        return new
    if node.op == "where":
        return build.call("where", *args)
    apart = _chosen_by(new)
    if apart is not None:
        low, high = bounds(apart, extents)
        if low is not None and low.is_nonnegative:
            return args[1] if node.op == "minimum" else args[0]
        if high is not None and high.is_nonpositive:
            return {"minimum": args[0], "maximum": args[-1], "abs": build.index(-apart)}[node.op]
    found = expression(new)
    if found is not None and node.op not in ("index", "const"):
        return build.index(found)
    if node.op == "load":
        return _direct(node, args)
    if node.op in ("bitwise_and", "bitwise_or") and node.dtype == torch.bool:
        neutral, absorbing = (_TRUE, _FALSE) if node.op == "bitwise_and" else (_FALSE, _TRUE)
        if absorbing in args:
            return absorbing
        if neutral in args:
            return args[1] if args[0] is neutral else args[0]
    return new


def _direct(node: Node, args: tuple[Node, ...]) -> Node:
    """A load on simplified arguments. Positions that follow from loop variables are written in its index."""
    indirect, left = args[: len(node.indirect)], list[Node]()
    known: dict[Symbol, Expr] = {}
    for number, each in enumerate(indirect):
        found = expression(each)
        known[placeholder(number)] = placeholder(len(left)) if found is None else found
        left += [each] if found is None else []
    index = tuple(expr.xreplace(known) for expr in node.index) if indirect else node.index
    return build.load(node.buffer, index, node.dtype, tuple(left), None if node.mask is None else args[-1])
