"""Memory that is contiguous along another range than the lanes are, through tiles in the nearest cache.

Such memory is transposed on its way in or out. Every cache line is then used whole while it is there, and the loop that
computes is contiguous throughout.
"""

from __future__ import annotations

import torch

from litz.ir.index import stride_of
from litz.ir.node import Node
from litz.ir.operation import Range, Store
from litz.tiles.program import Element, Move, Room

from .body import as_it_was
from .halves import copied
from .loops import Writer
from .tiling import known, turns

MOST_LANES = 512
"""Lanes of a tile at most that has whole rows."""


class Turned:
    """The loads and stores of a loop that pass through tiles of a block of `row` and a block of `lane`. block: the name
    of the row's block; "" for whole rows. side: the lanes of a tile, and the length of a row's block."""

    def __init__(self, w: Writer, row: Range, lane: Range, block: str = "") -> None:
        self.w, self.row, self.lane, self.block = w, row, lane, block
        self.loads = [node for node in w.loop.loads if turns(w.loop, node, row, lane)]
        self.stores = [store for store in w.loop.stores if turns(w.loop, store, row, lane)]
        self.moved = copied(w.loop.stores)
        held = sum(self._dtype(each).itemsize for each in (*self.loads, *(store.value for store in self.stores)))
        fit = w.limits.tile_bytes // max(1, held)
        lanes = fit // (known(row.size, 1) if held else 1) // 16 * 16
        self.side = next((n for n in (64, 32) if n * n <= fit), 16) if block else min(max(lanes, 16), MOST_LANES)

    def __bool__(self) -> bool:
        return bool(self.loads or self.stores)

    def before(self, start: str) -> None:
        """Makes the tiles of the lanes from `start` on, and fills those of the loads."""
        for load in self.loads:
            self.w.body.staged[load] = self._room(load, start)
            self._move("load", load, start, self.w.body.staged[load])
        self.w.body.rooms |= {id(store): self._room(store.value, start) for store in self.stores}

    def after(self, start: str) -> None:
        """Copies the tiles of the stores to memory."""
        for store in self.stores:
            self._move("store", store, start, self.w.body.rooms.pop(id(store)))
        for load in self.loads:
            self.w.body.staged.pop(load)

    def _dtype(self, node: Node) -> torch.dtype:
        """Returns the type of a node in a tile: float16 is converted on its way, unless its bits are copied."""
        return torch.float32 if node.dtype == torch.float16 and as_it_was(node) not in self.moved else node.dtype

    def _room(self, node: Node, start: str) -> Element:
        name, names, dtype = self.w.body.name("tile"), self.w.index.names, self._dtype(node)
        stored = dtype == node.dtype
        self.w.put(Room(name, dtype, self.side * (self.side if self.block else self.row.size), stored))
        at = ((self.row.var, self.block, self.side), (self.lane.var, start, 1))
        return Element(name, at, dtype, frozenset({names[self.row.var], names[self.lane.var]}), stored)

    def _move(self, how: str, of: Node | Store, start: str, place: Element) -> None:
        blocks, step = (self.block or "0", start), stride_of(of.index[0], self.lane.var)
        access = self.w.body.access(of, dict(zip((self.row.var, self.lane.var), blocks, strict=True)))
        self.w.put(Move(how, access, place.room, blocks, self.row.size, step, self.side))
