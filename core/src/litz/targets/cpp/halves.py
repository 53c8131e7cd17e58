"""float16 memory that a vector loop walks in order, and halves at computed positions, fetched a block at a time.

The processor converts eight halves in one instruction, but compilers of today do not use it in loops that they
vectorize, and the arithmetic that does vectorize takes a dozen. (bfloat16 is a shift.) No processor gathers halves.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from litz.ir.dtypes import HALF
from litz.ir.index import stride_of
from litz.ir.node import Node, walk
from litz.ir.operation import Range, Store
from litz.tiles.program import Element, Move, Put, Room

from .body import as_it_was
from .loops import Writer
from .tiling import known

BLOCK = 1024
"""Elements per block: 4 KiB of floats, so that several fit in the nearest cache."""


def copied(stores: Sequence[Store]) -> set[Node]:
    """Returns the halves of memory whose bits stores copy, and of which nothing else is made."""
    held = {s.value: source for s in stores if (source := as_it_was(s.value)).op in ("load", "const")}
    return {*held.values()}.difference(walk(*(root for s in stores for root in s.roots if root not in held)))


class Halves:
    """The float16 loads and stores among the given ones that are contiguous along `r`, and gathers along it."""

    def __init__(self, w: Writer, r: Range, nodes: Sequence[Node], stores: Sequence[Store], most: int = BLOCK) -> None:
        self.w, self.r, self.most = w, r, min(most, known(r.size, most))
        moved = copied(stores)
        halves = [n for n in nodes if n.op == "load" and n.dtype in HALF and n not in moved]
        fixed = [n for n in halves if n.mask is None and not any(r.var in w.loop.variables[arg] for arg in n.args)]
        self.loads = [n for n in fixed if n.dtype == torch.float16 and stride_of(n.index[0], r.var) == 1]
        self.stores = [
            s
            for s in stores
            if s.value.dtype == torch.float16
            and as_it_was(s.value) not in moved
            and not s.indirect
            and (s.mask, s.mode) == (None, "set")
            and stride_of(s.index[0], r.var) == 1
        ]
        found = [n for n in halves if n.mask is None and n not in fixed]
        self.gathered = [] if w.loop.reduction_ranges else found

    def __bool__(self) -> bool:
        return bool(self.loads or self.stores or self.gathered)

    def before(self, start: str) -> None:
        """Makes the rooms, and fills those of the loads with the block at `start` as float32; "0" is the whole row."""
        for node in self.loads:
            self.w.body.staged[node] = self._room(start)
            self._move("widen", node, start, self.w.body.staged[node].room)
        for store in self.stores:
            self.w.body.rooms[id(store)] = self._room(start)
        if self.gathered:  # a loop that would gather them has no vectors
            bits = {node: self._room(start, node.dtype) for node in self.gathered}
            with self.w.body.each(self.w.level(self.r, start)):
                self.w.body.write(self.w.body.missing(self.gathered))
                self.w.put(*(Put(place, self.w.body.operand(node)) for node, place in bits.items()))
            self.w.body.staged |= bits

    def after(self, start: str) -> None:
        """Copies the rooms of the stores to memory."""
        for store in self.stores:
            self._move("narrow", store, start, self.w.body.rooms.pop(id(store)).room)
        for node in (*self.loads, *self.gathered):
            self.w.body.staged.pop(node)

    def _room(self, start: str, dtype: torch.dtype = torch.float32) -> Element:
        name, stored = self.w.body.name("wide"), dtype != torch.float32
        self.w.put(Room(name, dtype, self.most, stored=stored))
        return Element(name, ((self.r.var, start, 1),), dtype, frozenset({self.w.index.names[self.r.var]}), stored)

    def _move(self, how: str, of: Node | Store, start: str, room: str) -> None:
        access, size = self.w.body.access(of, {self.r.var: start}), self.r.size if start == "0" else None
        self.w.put(Move(how, access, room, (start,), size))
