"""Rows of several outputs at a time: a group of accumulators, and one walk along the rows.

In: a tiling with a `Jam`. Each output of a group is a copy of what depends on the jammed range, with a variable of its
own (`i0_2`); what the copies share is written once. The last group of a range that has no multiple of them does its
last output several times, which stores the same value again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from litz.ir.index import Expr, Symbol
from litz.ir.node import Node
from litz.tiles.program import Copy, Element, Fold, Operand, Put, Room

from .jam import CHUNK, Jam
from .loops import Writer
from .reduction import ROW_CHUNK, make_accumulators, outer_nodes, position, results

LANES = 8
"""How many float32 values a vector has."""


def write_jammed(w: Writer) -> None:
    """Makes all nodes and stores of a tiling in row mode with a jam."""
    assert w.tiling.jam is not None
    _JamWriter(w, w.tiling.jam).write()


class _JamWriter:
    def __init__(self, w: Writer, jam: Jam) -> None:
        self.w, self.jam = w, jam
        (self.stage,) = w.tiling.stages.walks
        self.var = w.index.names[jam.range.var]
        self.outer: list[dict[Node, Operand]] = [{} for _ in range(jam.count)]
        """Each copy's values at output level, and below those within the walk."""
        self.inner: list[dict[Node, Operand]] = [{} for _ in range(jam.count)]
        self.accumulators = [make_accumulators(self.stage.reduces, w.body.name, None) for _ in range(jam.count)]

    def write(self) -> None:
        w, r = self.w, self.jam.range
        group = w.chunks(r, self.jam.count, f"{self.var}_g")
        levels = [*(w.level(each) for each in w.loop.ranges if each != r), group]
        shared = [node for node in outer_nodes(w, 0) if r.var not in w.body.variables[node]]
        w.nest(levels, shared, self._group, shared=len(levels))

    # ------------------------------------------------------------------ copies

    @contextmanager
    def _copy(self, number: int, at: dict[Symbol, str] | None = None) -> Iterator[None]:
        """Enters one of the copies: what is made within is its own. at: what stands for reduction variables."""
        body = self.w.body
        before, body.at = body.at, {**body.at, self.jam.range.var: f"{self.var}_{number}", **(at or {})}
        body.visible = body.visible.new_child(self.outer[number]).new_child(self.inner[number])
        yield
        body.visible, body.at = body.visible.parents.parents, before

    def _own(self, node: Node) -> bool:
        return self.jam.range.var in self.w.body.variables[node]

    # ------------------------------------------------------------------ one group of outputs

    def _group(self) -> None:
        w, r, size, count = self.w, self.jam.range, self.jam.range.size, self.jam.count
        whole = bool(size.is_Integer) and int(size) % count == 0
        w.put(*(Copy(f"{self.var}_{number}", f"{self.var}_g", number, size, whole) for number in range(count)))
        for number, accumulators in enumerate(self.accumulators):
            with self._copy(number):
                self._define(outer_nodes(w, 0), self.outer[number])
            w.put(*(Fold("make", a.of_parts().held) for a in accumulators))
        self._walk()
        for number, accumulators in enumerate(self.accumulators):
            at = {r.var: f"{self.var}_{number}"}
            self.outer[number].update(results(w, (a.of_parts() for a in accumulators), at))
        # All values first: an output that is made twice must not see what it stored.
        for number in range(count):
            with self._copy(number):
                self._define(w.body.missing(w.roots), self.outer[number])
        for number in range(count):
            with self._copy(number):
                w.body.store(*w.final)
        for names in (*self.outer, *self.inner):
            names.clear()

    def _define(self, nodes: list[Node], names: dict[Node, Operand]) -> None:
        """Values of the copy that is being made, under its names."""
        body = self.w.body
        for node in nodes:
            body.define(node)
            if node in body.visible.maps[0]:
                names[node] = body.visible.maps[0].pop(node)

    # ------------------------------------------------------------------ the walk

    def _walk(self) -> None:
        """All reduction ranges, with partial results for each chunk of the innermost."""
        w, body = self.w, self.w.body
        nodes = [n for n in body.missing(self.stage.roots) if n.op != "reduce" and w.loop.levels[n]]
        self.nodes = nodes
        *outer, inner = w.loop.reduction_ranges
        chunked, block = inner, 1
        if self.jam.flat:
            *outer, chunked = outer
            block = int(inner.size)
        step = _even(chunked.size, max(1, (CHUNK if self.jam.staged else ROW_CHUNK) // block), block)
        start = f"{w.index.names[chunked.var]}_b"
        levels = [*(w.level(r) for r in outer), w.chunks(chunked, step, start)]
        walked = {inner.var, chunked.var}
        before = [node for node in nodes if not self._own(node) and not walked & body.variables[node]]
        w.nest(levels, before, lambda: self._chunk(start, step * block, block))

    def _chunk(self, start: str, size: int, block: int) -> None:
        """A chunk of the row, which begins at `start` of its range and has `size` elements at most."""
        w, body = self.w, self.w.body
        inner, flat = w.loop.reduction_ranges[-1], self.jam.flat
        name = w.index.names[inner.var]
        rooms = {node: body.name("staged") for node in self.jam.staged}
        w.put(*(Room(room, node.dtype, size) for node, room in rooms.items()))
        if rooms:
            self._stage(rooms, start, block)
        at = {w.loop.reduction_ranges[-2].var: start} if flat else {}
        every = [a for accumulators in self.accumulators for a in accumulators]
        parts = {a: replace(a.held, suffix="_part") for a in every}
        w.put(*(Fold("make", held) for held in parts.values()))
        walk = replace(w.vector(inner, start, checks=False), flat=block if flat else 0, merged=tuple(parts.values()))
        with body.each(walk):
            place = (inner.var, "" if flat else start, 1)
            for node, room in rooms.items():
                body.visible[node] = Element(room, (place,), node.dtype, frozenset({name}))
            needed = [node for node in body.missing(self.stage.roots) if node in set(self.nodes)]
            before, body.at = body.at, {**body.at, **at}
            body.write([node for node in needed if not self._own(node)])
            for number, accumulators in enumerate(self.accumulators):
                with self._copy(number, at):
                    self._define([node for node in needed if self._own(node)], self.inner[number])
                    for a in accumulators:
                        args = tuple(map(body.operand, a.nodes[0].args))
                        w.put(Fold("join", parts[a], args, at=position(w)))
            body.at = before
        for names in self.inner:
            names.clear()
        w.put(*(Fold("merge", a.of_parts().held, other=held) for a, held in parts.items()))

    def _stage(self, rooms: dict[Node, str], start: str, block: int) -> None:
        """Computes what the copies share for the chunk: a loop along it for each array's worth of them."""
        w, body = self.w, self.w.body
        inner = w.loop.reduction_ranges[-1]
        at: tuple[tuple[Expr, str, int], ...] = ((inner.var, start, 1),)
        levels = [w.vector(inner, start, checks=False)]
        if self.jam.flat:
            count = w.loop.reduction_ranges[-2]
            levels = [w.level(count, start), w.vector(inner, checks=False)]
            at = ((count.var, start, block), (inner.var, "", 1))
        nodes = [node for node in body.missing(list(rooms)) if w.loop.levels[node]]

        def element() -> None:
            for node, room in rooms.items():
                w.put(Put(Element(room, at, node.dtype, body.axes(node)), body.operand(node)))

        w.nest(levels, nodes, element)


def _even(size: Expr, most: int, block: int) -> int:
    """The length of chunks: `most`, or not much less so that all are equal and whole vectors."""
    if not size.is_Integer:
        return most
    whole = (n for n in range(most, max(1, most // 2), -1) if int(size) % n == 0 and n * block % LANES == 0)
    return next(whole, most)
