"""float16 memory that a vector loop walks in order, converted a block at a time.

The processor converts eight halves in one instruction, but compilers of today do not use it in loops that they
vectorize, and the arithmetic that does vectorize takes a dozen. (bfloat16 is a shift, and needs none of this.)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from litz.ir.index import stride_of
from litz.ir.node import Node
from litz.ir.operation import Range, Store

from .loops import Writer

BLOCK = 1024
"""Elements per block: 4 KiB of floats, so that several fit in the nearest cache."""


class Halves:
    """The float16 loads and stores among the given ones that are contiguous along `r`."""

    def __init__(self, w: Writer, r: Range, nodes: Sequence[Node], stores: Sequence[Store]) -> None:
        self.w, self.r = w, r
        self.loads = [
            n
            for n in nodes
            if n.op == "load" and n.dtype == torch.float16 and not n.args and stride_of(n.index[0], r.var) == 1
        ]
        self.stores = [
            s
            for s in stores
            if s.value.dtype == torch.float16
            and not s.indirect
            and (s.mask, s.mode) == (None, "set")
            and stride_of(s.index[0], r.var) == 1
        ]
        self.buffers: dict[int, str] = {}

    def __bool__(self) -> bool:
        return bool(self.loads or self.stores)

    def before(self, start: str, stop: str) -> None:
        """Declares the buffers, and fills the buffers of the loads with elements `start` to `stop` as float32."""
        body, name = self.w.body, self.w.index.names[self.r.var]
        for node in self.loads:
            buffer = self._buffer()
            self.w.lines.add(f"widen_f16(&{self._first(node, start)}, {buffer}, {stop} - {start});")
            body.widened[node] = f"{buffer}[{name} - {start}]"
        for store in self.stores:
            self.buffers[id(store)] = self._buffer()

    def store(self, store: Store, start: str) -> None:
        """Writes the statement of a store within the loop: into the store's buffer if it has one, else to memory."""
        body, name = self.w.body, self.w.index.names[self.r.var]
        if id(store) in self.buffers:
            self.w.lines.add(f"{self.buffers[id(store)]}[{name} - {start}] = {body.value(store.value)};")
        else:
            body.store(store)

    def after(self, start: str, stop: str) -> None:
        """Copies the buffers of the stores to memory, from element `start` to `stop`."""
        for store in self.stores:
            place = self._first(store, start)
            self.w.lines.add(f"narrow_f16({self.buffers[id(store)]}, &{place}, {stop} - {start});")
        for node in self.loads:
            self.w.body.widened.pop(node)

    def _buffer(self) -> str:
        name = self.w.body.name("wide")
        self.w.lines.add(f"alignas(64) float {name}[{BLOCK}];")
        return name

    def _first(self, access: Node | Store, start: str) -> str:
        """The element at `start`."""
        return self.w.body.place(access.buffer, access.index, at={self.r.var: start})
