"""Unroll and jam: several outputs of a reduction along rows, made in one walk along a row.

In: a loop and its stages. Out: a `Jam`, or None. What is the same for these outputs is then loaded and computed once
for all of them (a product's weight, for its rows of activations), and each has an accumulator of its own, so that their
additions do not wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from litz.ir import Loop, Node, Range
from litz.ir.index import ONE, stride_of
from litz.ir.ops import OPS, flops_of
from litz.ir.stages import Stages

JAMMED = frozenset({"dot", "sum", "prod"})
"""Kinds of reductions whose state is one variable, which lanes share."""
MOST = 8
"""Outputs at a time: each takes a register or more, and AVX2 has 16."""
FEW = 16
"""A range of at most so many is split evenly."""
USUAL = 4
"""Outputs at a time along any longer range: enough for their additions not to wait for each other."""
CHUNK = 512
"""Elements of such an array: a few of them fit in the nearest cache."""


@dataclass(frozen=True)
class Jam:
    """`count` outputs that are neighbours along `range`. staged: values that they share and that are computed before, a
    chunk of the row at a time. flat: are several of the rows' blocks walked as one? A block is the innermost reduction
    range, and the next one counts them."""

    range: Range
    count: int
    staged: tuple[Node, ...] = ()
    flat: bool = False


def find_jam(loop: Loop, stages: Stages, staged_outputs: int) -> Jam | None:
    """Returns which outputs of a reduction are computed at a time, because their walks load and compute the same
    values. None if outputs share no loads, or if the loop is not one that can be written so."""
    if len(stages.walks) != 1 or stages.walks[0].stores or any(store.mode != "set" for store in loop.stores):
        return None
    if any(node.op in ("bounded", "scan") for node in loop.nodes):
        return None
    if any(node.attrs[0] not in JAMMED or node.dtype == torch.bool for node in stages.walks[0].reduces):
        return None
    inner = loop.reduction_ranges[-1]
    walked = [node for node in loop.nodes if loop.levels[node] and node.op != "reduce"]
    # Halves are converted a block at a time, before the walk.
    if any(node.op == "load" and node.dtype == torch.float16 for node in walked):
        return None
    shares: dict[Range, int] = {}
    for r in loop.ranges:
        if any(_is_interleaved(node, r, inner) for node in walked):
            continue
        same = [node for node in walked if r.var not in loop.variables[node] and inner.var in loop.variables[node]]
        if any(node.op == "load" for node in same) and len(same) < len(walked):
            shares[r] = cost_of(same)
    if not shares:
        return None
    chosen = max(shares, key=lambda r: shares[r])
    count = _count(chosen)
    if count == 1:
        return None
    shared = {node for node in walked if chosen.var not in loop.variables[node]}
    flat = _is_flat(loop, [node for node in walked if node not in shared])
    joined = flat and len(loop.reduction_ranges) > 1
    staged = _frontier(loop, walked, shared, joined) if joined or count >= staged_outputs else ()
    return Jam(chosen, count, staged, joined)


def _is_interleaved(node: Node, r: Range, inner: Range) -> bool:
    """Returns whether a load reads elements side by side for neighbouring outputs, and skips some between iterations.

    g++ loads all elements in between and permutes them (docs/compilers.md).
    """
    if node.op != "load":
        return False
    across, along = (stride_of(node.index[0], each.var) for each in (r, inner))
    return bool(across and along and across.is_Integer and along.is_Integer and 0 < abs(across) < abs(along))


def cost_of(nodes: Iterable[Node]) -> int:
    """Returns the operations of one point."""
    return sum(flops_of(node, otherwise=1) for node in nodes if node.op != "const")


def _count(r: Range) -> int:
    """Returns how many outputs to take at a time. The last group may do some twice, so that groups are even."""
    if not r.size.is_Integer or int(r.size) > FEW:
        return USUAL
    size = max(int(r.size), 1)
    groups = -(-size // MOST)
    return -(-size // groups)


def _frontier(loop: Loop, walked: list[Node], shared: set[Node], joined: bool) -> tuple[Node, ...]:
    """The shared values that others need, those aside that are as cheap to load as from an array. joined: with the two
    innermost reduction ranges walked as one."""
    inner = {r.var for r in loop.reduction_ranges[-2:] if joined or r == loop.reduction_ranges[-1]}
    used = [arg for node in walked if node not in shared for arg in node.args]
    used += [arg for node in loop.nodes if node.op == "reduce" for arg in node.args]
    return tuple(
        node
        for node in dict.fromkeys(used)
        if node in shared and node.op != "const" and loop.variables[node] & inner and not _plain(node, loop, joined)
    )


def _plain(node: Node, loop: Loop, joined: bool) -> bool:
    """A contiguous load of a type that needs no conversion."""
    if node.op != "load" or node.args or node.dtype not in (torch.float32, torch.float64):
        return False
    contiguous = stride_of(node.index[0], loop.reduction_ranges[-1].var) == ONE
    return contiguous and (not joined or _walks_as_one(node, loop))


def _is_flat(loop: Loop, own: list[Node]) -> bool:
    """Returns whether what outputs do not share goes through the two innermost reduction ranges as through one."""
    if len(loop.reduction_ranges) < 2:
        return True
    inner = loop.reduction_ranges[-1].size
    return bool(inner.is_Integer) and 0 < int(inner) <= CHUNK and all(_walks_as_one(node, loop) for node in own)


def _walks_as_one(node: Node, loop: Loop) -> bool:
    """Returns whether a node, its arguments aside, sees the two innermost reduction ranges as one."""
    block, inner = loop.reduction_ranges[-2:]
    if node.op != "load":
        return node.op in OPS or node.op == "cast"
    step = stride_of(node.index[0], inner.var)
    return not node.args and step is not None and stride_of(node.index[0], block.var) == step * inner.size
