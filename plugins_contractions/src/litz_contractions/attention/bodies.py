"""The bodies of an attention, or of its backward, as values of one flat loop. In: loops over b, h, q and k. Out:
`Bodies`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from litz.ir import Buffer, Layout, Loop, Node, Program, Range, Store
from litz.ir.index import loop_var
from litz.ir.transform import flatten, map_stores

from .arithmetic import lighter, peeled
from .operation import GRADIENT, SCORE, Attention, AttentionBackward

BATCH, HEAD, QUERY, KEY = map(loop_var, range(4))
AT = (BATCH, HEAD, QUERY, KEY)
"""The variables of every body."""


@dataclass(frozen=True)
class Bodies:
    """The bodies of an attention as values of one flat loop over (BATCH, HEAD, QUERY, KEY), so that what they have in
    common is computed once. score, mask, gradient: what the bodies store, None for a body that is not there. factor:
    what a score is to be multiplied by (`arithmetic.py`)."""

    loop: Loop
    factor: float
    score: Node | None = None
    mask: Node | None = None
    gradient: Node | None = None

    def load_of(self, name: str) -> Node | None:
        """Returns the node that loads a stand-in (`SCORE`, `GRADIENT`); None if no body loads it."""
        return next((node for node in self.loop.loads if node.buffer == name), None)

    @property
    def late(self) -> frozenset[Node]:
        """Returns the nodes that depend on a stand-in. No tile can compute them before it has scores."""
        found: set[Node] = set()
        for node in self.loop.nodes:
            if (node.op == "load" and node.buffer in (SCORE, GRADIENT)) or not found.isdisjoint(node.args):
                found.add(node)
        return frozenset(found)


def make_bodies(
    attention: Attention | AttentionBackward,
    program: Program,
    scaled: bool = False,
    whole: Callable[[Node], bool] = lambda score: False,
) -> Bodies:
    """Returns the bodies with less to compute. Afterwards `SCORE` is the raw product, which `factor` scales; or, if
    `scaled`, that times the scale. whole: says of a score whether no factor may be taken out of it."""
    names = [name for name in ("score", "mask", "gradient") if getattr(attention, name, None) is not None]
    given = {name: getattr(attention, name).stores[0] for name in names}
    ranges = tuple(Range(var, size) for var, size in zip(AT, attention.size, strict=True))
    stores = tuple(Store(name, AT, store.value) for name, store in given.items())
    stand_in = Buffer(SCORE, torch.float32, attention.device, Layout.contiguous(attention.size))
    stand_ins = {name: replace(stand_in, name=name) for name in (*given, SCORE, GRADIENT)}
    flat = flatten(Loop("scores", attention.device, ranges, (), stores), {**program.buffers, **stand_ins})
    scale = float(attention.scale)
    changed = {store.buffer: store for store in map_stores(flat.stores, lighter(1.0 if scaled else scale))}
    score = changed["score"].value if "score" in changed else None
    kept = score is not None and (scaled or whole(score))
    node, factor = (score, 1.0) if kept else peeled(score, scale)
    if node is not None:
        changed["score"] = replace(changed["score"], value=node)
    values = {name: store.value for name, store in changed.items()}
    return Bodies(replace(flat, stores=tuple(changed.values())), factor, **values)
