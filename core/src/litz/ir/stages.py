"""Reduction stages: how often a loop walks over its reduction ranges, and what it does on each walk.

A reduction is known once the walk that computes it has ended; what depends on it waits for the next one. Softmax takes
three: the maximum, the sum, the result. Fusion and costs count walks, code generation writes a loop for each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .node import Node

if TYPE_CHECKING:
    from .operation import Loop, Store


@dataclass(frozen=True)
class Stage:
    """One walk over the reduction ranges: the reductions that it computes and the stores that it makes on the way."""

    reduces: tuple[Node, ...]
    stores: tuple[Store, ...]

    @property
    def roots(self) -> list[Node]:
        """Returns every node that the walk needs directly."""
        values = [arg for node in self.reduces for arg in node.args]
        return values + [root for store in self.stores for root in store.roots]


@dataclass(frozen=True)
class Stages:
    """walks: in order. final: the stores made once per output point, after all walks. depths: for each node, how many
    walks have ended before it can be computed, or before the walk that computes it. together: reductions that share a
    walk with another that they depend on, and which."""

    walks: tuple[Stage, ...] = ()
    final: tuple[Store, ...] = ()
    depths: Mapping[Node, int] = field(default_factory=dict)
    together: Mapping[Node, Node] = field(default_factory=dict)


def find_stages(
    loop: Loop, inplace: Mapping[str, str] | None = None, together: Mapping[Node, Node] | None = None
) -> Stages:
    """Returns the stages of a loop.

    inplace: buffers that are stored into the memory of another one. together: reductions that are computed on the same
    walk as another that they depend on, as `one_walk_sums` finds them.
    """
    depths = find_depths(loop, together) if together else loop.depths
    reduces, loaded = [node for node in loop.nodes if node.op == "reduce"], {node.buffer for node in loop.loads}
    inner = [store for store in loop.stores if loop.at_reduction_level(store)]
    at = {id(store): max(depths[root] for root in store.roots) for store in inner}
    last = max([depths[node] - 1 for node in reduces] + list(at.values()), default=-1)
    needed = _walks_needing(loop, depths, [store for store in inner if at[id(store)] == last])
    for store in inner:
        # What a later walk loads must not have been overwritten on an earlier one.
        if store.buffer in loaded or (inplace or {}).get(store.buffer) in loaded:
            at[id(store)] = last
        # Where only later walks need a value for others, the first of these walks stores the value.
        elif (later := needed.get(store.value)) and store.value.op != "load":
            at[id(store)] = max(at[id(store)], min(later))
    walks = (
        Stage(
            tuple(node for node in reduces if depths[node] == number + 1),
            tuple(store for store in inner if at[id(store)] == number),
        )
        for number in range(last + 1)
    )
    return Stages(tuple(walks), tuple(store for store in loop.stores if id(store) not in at), depths, together or {})


def find_depths(loop: Loop, together: Mapping[Node, Node] | None = None) -> Mapping[Node, int]:
    """Returns, for each node, the length of the longest chain of reductions that its value depends on, itself included.
    together: see `find_stages`."""
    depths: dict[Node, int] = {}
    for node in loop.nodes:
        if together and node in together:
            depths[node] = depths[together[node]]
        else:
            depths[node] = max((depths[arg] for arg in node.args), default=0) + (node.op == "reduce")
    return depths


def one_walk_sums(loop: Loop) -> Mapping[Node, Node]:
    """Returns sums of exp(x - max(x)), each with its maximum: one walk can find both (Milakov and Gimelshein, "Online
    normalizer calculation for softmax", 2018)."""
    found: dict[Node, Node] = {}
    for node in loop.nodes:
        if node.op != "reduce" or node.attrs[0] != "sum" or node.args[0].op != "exp":
            continue
        shifted = node.args[0].args[0]
        if shifted.op != "sub":
            continue
        value, top = shifted.args
        if top.op != "reduce" or top.attrs[0] != "max" or top.args != (value,) or not loop.levels[value]:
            continue  # a value that is one number for a row has no lanes to leave out
        if value.dtype.is_floating_point:
            found[node] = top
    return found


def walks_loading(loop: Loop, one_walk: bool = False) -> Mapping[object, int]:
    """Returns, for each load at reduction level, how many walks need its value; 1 for other loads. one_walk: sums that
    `one_walk_sums` finds share a walk with their maximum."""
    depths = find_depths(loop, one_walk_sums(loop)) if one_walk else loop.depths
    needed = _walks_needing(loop, depths, [store for store in loop.stores if loop.at_reduction_level(store)])
    return {node: max(1, len(needed.get(node, ()))) for node in loop.loads}


def _walks_needing(loop: Loop, depths: Mapping[Node, int], stores: Sequence[Store]) -> Mapping[Node, set[int]]:
    """Returns, for nodes at reduction level, the numbers of the walks on which reductions and the stores need them."""
    needed, levels = dict[Node, set[int]](), loop.levels
    for store in stores:
        for root in store.roots:
            needed.setdefault(root, set()).add(max(depths[each] for each in store.roots))
    for node in reversed(loop.nodes):
        own = {depths[node] - 1} if node.op == "reduce" else needed.get(node, set())
        for arg in node.args:
            if levels[arg]:
                needed.setdefault(arg, set()).update(own)
    return needed
