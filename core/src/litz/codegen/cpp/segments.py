"""Loops that choose between sources by position, as concatenations do, split so that there is nothing left to choose.

In: the tiling of a loop. Out: tilings that together compute the same, one per segment of one of its output ranges; in
each, the comparisons that the segment decides are gone, and so is what they select against. A vector loop that reads
one of eight parts under masks takes ten times as long as one that reads the part that lies there.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import torch

from litz.ir import Loop, Node, Range, build
from litz.ir.index import ONE, Expr, Ranges, Symbol, bounds, stride_of, substitute, to_expr
from litz.ir.node import with_args
from litz.ir.transform import collapse, map_stores, rename_loop

from ..kernel_plan import KernelPlan
from .tiling import Tiling, canonical, tile_loop

MAX_SEGMENTS = 16
"""The most segments of a loop: each is code to be compiled."""
MIN_WORK = 4096
"""Points of a loop, output times reduction ranges, below which choosing costs less than compiling more code does."""
MIN_GAIN = 0.5
"""Loads per point that a split has to save."""
MIN_LENGTH = 4
"""The least average length of segments of a range along which memory is written in order: shorter ones (a stack of two
along the last dimension) would go through the same cache lines too often."""

_TURNS: Mapping[str, tuple[int, ...]] = {"lt": (0,), "ge": (0,), "le": (1,), "gt": (1,), "eq": (0, 1), "ne": (0, 1)}
"""The values of the left side less the right at which a comparison gives another answer than at one less."""

_TRUE, _FALSE = build.const(True, torch.bool), build.const(False, torch.bool)


def segments(tiling: Tiling, kernel: KernelPlan) -> tuple[Tiling, ...]:
    """Returns the tilings of a loop's segments, in order; the tiling alone where a split gains too little.

    tiling: of the kernel's loop, by `tile_kernel`. Segments write different elements: they may run in any order or at
    once.
    """
    loop = tiling.loop
    if any(node.op == "bounded" for node in loop.nodes) or any(store.mode != "set" for store in loop.stores):
        return (tiling,)
    points = loop.numel * loop.reduction_numel
    if points.is_Integer and int(points) < MIN_WORK:
        return (tiling,)
    best: tuple[float, Sequence[Loop]] = (MIN_GAIN, ())
    for r, cuts in _cuts(loop).items():
        inner = r == tiling.vector or any(stride_of(store.index[0], r.var) == ONE for store in loop.stores)
        if len(cuts) - 1 > MAX_SEGMENTS or (inner and int(r.size) < MIN_LENGTH * (len(cuts) - 1)):
            continue
        loops = [_segment(loop, r, start, stop) for start, stop in pairwise(cuts)]
        read = sum(len(each.loads) * (stop - start) for each, (start, stop) in zip(loops, pairwise(cuts), strict=True))
        gain = len(loop.loads) - read / int(r.size)
        if gain >= best[0]:
            best = gain, loops
    tilings = (tile_loop(canonical(collapse(each)), kernel) for each in best[1] if each.stores)
    return tuple(replace(each, work=tiling.work) for each in tilings) or (tiling,)


def _cuts(loop: Loop) -> dict[Range, tuple[int, ...]]:
    """Returns, for each output range of known size along which some comparison turns: 0, where it turns, and the
    size."""
    if sum(load.mask is not None for load in loop.loads) < 2:
        return {}
    ranges = {r.var: r for r in loop.ranges if r.size.is_Integer}
    found: dict[Range, set[int]] = {}
    for node in loop.nodes:
        difference = _difference(node)
        variables = set() if difference is None else difference.free_symbols & ranges.keys()
        if difference is None or len(variables) != 1:
            continue
        (var,) = variables
        step = stride_of(difference, var)
        if step is None or abs(step) != ONE:
            continue
        rest = difference - step * var
        if not rest.is_Integer:
            continue
        for value in _TURNS[node.op]:
            cut = value - int(rest) if step == ONE else int(rest) - value + 1
            if 0 < cut < int(ranges[var].size):
                found.setdefault(ranges[var], set()).add(cut)
    return {r: (0, *sorted(cuts), int(r.size)) for r, cuts in found.items()}


def _difference(node: Node) -> Expr | None:
    """Left less right of a comparison of positions; None for any other node."""
    if node.op not in _TURNS or any(arg.op not in ("index", "const") for arg in node.args):
        return None
    if any(arg.dtype != torch.int64 for arg in node.args):
        return None
    left, right = (to_expr(arg.attrs[0]) for arg in node.args)
    return left - right


def _segment(loop: Loop, r: Range, start: int, stop: int) -> Loop:
    """The loop where `start` <= r.var < `stop`, counted from 0."""
    ranges = tuple(Range(r.var, to_expr(stop - start)) if each == r else each for each in loop.ranges)
    mapping = {r.var: r.var + start}
    extents = {each.var: each.size for each in (*ranges, *loop.reduction_ranges)}
    stores = map_stores(loop.stores, lambda node, args: _simplified(node, args, mapping, extents))
    stores = tuple(
        replace(store, mask=None) if store.mask is _TRUE else store for store in stores if store.mask is not _FALSE
    )
    return rename_loop(replace(loop, stores=stores), mapping, ranges, loop.reduction_ranges)


def _simplified(node: Node, args: tuple[Node, ...], mapping: Mapping[Symbol, Expr], extents: Ranges) -> Node:
    """A node on simplified arguments, without what the ranges decide. mapping: from the node's variables to those of
    `extents`."""
    difference = _difference(node)
    if difference is not None:
        low, high = bounds(substitute(difference, mapping, extents), extents)
        if low is not None and high is not None and low.is_Integer and high.is_Integer:
            if not any(low < turn <= high for turn in _TURNS[node.op]):
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
