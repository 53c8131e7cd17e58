"""Rows of several outputs at a time as C++: a group of accumulators, and one walk along the rows.

In: a tiling with a `Jam`. Each output of a group is a copy of what depends on the jammed range, with a variable of its
own (`i0_2`); what the copies share is written once. The last group of a range that has no multiple of them does its
last output several times, which stores the same value again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from litz.ir.index import Expr, Symbol
from litz.ir.node import Node

from .accumulators import Accumulator, make_accumulators
from .dialect import VALUES
from .jam import CHUNK, Jam
from .loops import Level, Writer
from .reduction import ROW_CHUNK, outer_nodes, position
from .text import IndexText

LANES = 8
"""How many float32 values a vector has."""


def write_jammed(w: Writer) -> None:
    """Writes all nodes and stores of a tiling in row mode with a jam."""
    assert w.tiling.jam is not None
    _JamWriter(w, w.tiling.jam).write()


class _JamWriter:
    def __init__(self, w: Writer, jam: Jam) -> None:
        self.w, self.jam = w, jam
        (self.stage,) = w.tiling.stages.walks
        self.var = w.index.names[jam.range.var]
        self.outer: list[dict[Node, str]] = [{} for _ in range(jam.count)]
        """Names of each copy's values at output level, and below of those within the walk."""
        self.inner: list[dict[Node, str]] = [{} for _ in range(jam.count)]
        self.accumulators = [make_accumulators(self.stage.reduces, w.body.name) for _ in range(jam.count)]

    def write(self) -> None:
        w, r = self.w, self.jam.range
        group = w.chunks(r, self.jam.count, f"{self.var}_g")
        levels = [*(w.level(each) for each in w.loop.ranges if each != r), group]
        shared = [node for node in outer_nodes(w, 0) if r.var not in w.body.variables[node]]
        w.nest(levels, shared, self._group, shared=len(levels))

    # ------------------------------------------------------------------ copies

    @contextmanager
    def _copy(self, number: int, at: dict[Symbol, str] | None = None) -> Iterator[None]:
        """What is written within is of one of the copies. at: what stands for reduction variables."""
        body, names = self.w.body, {self.jam.range.var: f"{self.var}_{number}", **(at or {})}
        before, body.index = body.index, IndexText({**body.index.names, **names}, body.index.extents)
        body.visible = body.visible.new_child(self.outer[number]).new_child(self.inner[number])
        yield
        body.visible, body.index = body.visible.parents.parents, before

    def _own(self, node: Node) -> bool:
        return self.jam.range.var in self.w.body.variables[node]

    # ------------------------------------------------------------------ one group of outputs

    def _group(self) -> None:
        w, size = self.w, self.w.index.text(self.jam.range.size)
        type_ = w.index.var_type(self.jam.range.size)
        for number in range(self.jam.count):
            at = f"{self.var}_g + {number}" if number else f"{self.var}_g"
            whole = self.jam.range.size.is_Integer and int(self.jam.range.size) % self.jam.count == 0
            last = at if whole or not number else f"{at} < {size} ? {at} : {size} - 1"
            w.lines.add(f"const {type_} {self.var}_{number} = {last};")
        for number, accumulators in enumerate(self.accumulators):
            with self._copy(number):
                self._define(outer_nodes(w, 0), self.outer[number])
            self._declare([a.of_parts() for a in accumulators])
        self._walk()
        for number, accumulators in enumerate(self.accumulators):
            self._results(number, accumulators)
        # All values first: an output that is made twice must not see what it stored.
        for number in range(self.jam.count):
            with self._copy(number):
                self._define(w.body.missing(w.roots), self.outer[number])
        for number in range(self.jam.count):
            with self._copy(number):
                w.body.store(*w.final)
        for names in (*self.outer, *self.inner):
            names.clear()

    def _define(self, nodes: list[Node], names: dict[Node, str]) -> None:
        """Values of the copy that is being written, under its names."""
        body = self.w.body
        for node in nodes:
            body.define(node)
            if node in body.visible.maps[0]:
                names[node] = body.visible.maps[0].pop(node)

    def _declare(self, accumulators: list[Accumulator], suffix: str = "") -> None:
        for state in (state for a in accumulators for state in a.states):
            self.w.lines.add(f"{state.type} {state.name}{suffix} = {state.start};")

    def _results(self, number: int, accumulators: list[Accumulator]) -> None:
        for a in (a.of_parts() for a in accumulators):
            refs = [state.name for state in a.states]
            self.w.lines.add(*a.lines(a.form.finish, refs))
            for node in a.nodes:
                name = self.w.body.name()
                self.w.lines.add(f"const {VALUES[node.dtype]} {name} = {a.result(node, refs)};")
                self.outer[number][node] = name

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
        inner = w.loop.reduction_ranges[-1]
        name = w.index.names[inner.var]
        arrays = {node: body.name("staged") for node in self.jam.staged}
        for node, array in arrays.items():
            w.lines.add(f"alignas(64) {VALUES[node.dtype]} {array}[{size}];")
        if arrays:
            self._stage(arrays, start, block)
        flat = self.jam.flat
        first, stop = ("0", f"({start}_end - {start}) * {block}") if flat else (start, f"{start}_end")
        at = {w.loop.reduction_ranges[-2].var: start} if flat else {}
        for accumulators in self.accumulators:
            self._declare(accumulators, "_part")
        clauses = [
            clause
            for accumulators in self.accumulators
            for a in accumulators
            for clause in a.clauses([f"{state.name}_part" for state in a.states])
        ]
        with body.scope(*w.simd(False, clauses), w.header(inner, first, stop)):
            place = name if flat else f"{name} - {start}"
            body.visible.update({node: f"{array}[{place}]" for node, array in arrays.items()})
            needed = [node for node in body.missing(self.stage.roots) if node in set(self.nodes)]
            plain = IndexText({**body.index.names, **at}, body.index.extents)
            before, body.index = body.index, plain
            body.write([node for node in needed if not self._own(node)])
            for number, accumulators in enumerate(self.accumulators):
                with self._copy(number, at):
                    self._define([node for node in needed if self._own(node)], self.inner[number])
                    for a in accumulators:
                        values = [body.value(arg) for arg in a.nodes[0].args]
                        w.lines.add(*a.update([f"{state.name}_part" for state in a.states], values, position(w)))
            body.index = before
        for names in self.inner:
            names.clear()
        for accumulators in self.accumulators:
            for a in accumulators:
                refs = [state.name for state in a.states]
                w.lines.add(*a.merge(refs, [f"{ref}_part" for ref in refs]))

    def _stage(self, arrays: dict[Node, str], start: str, block: int) -> None:
        """What the copies share, computed for the chunk: a loop along it for each array's worth of them."""
        w, body = self.w, self.w.body
        inner = w.loop.reduction_ranges[-1]
        name = w.index.names[inner.var]
        if self.jam.flat:
            count = w.loop.reduction_ranges[-2]
            counter = w.index.names[count.var]
            levels = [w.level(count, chunk=start), Level((*w.simd(False), w.header(inner)), inner.var)]
            place = f"({counter} - {start}) * {block} + {name}"
        else:
            levels = [w.level(inner, w.simd(False), chunk=start)]
            place = f"{name} - {start}"
        nodes = [node for node in body.missing(list(arrays)) if w.loop.levels[node]]

        def element() -> None:
            w.lines.add(*(f"{array}[{place}] = {body.value(node)};" for node, array in arrays.items()))

        w.nest(levels, nodes, element)


def _even(size: Expr, most: int, block: int) -> int:
    """The length of chunks: `most`, or not much less so that all are equal and whole vectors."""
    if not size.is_Integer:
        return most
    whole = (n for n in range(most, max(1, most // 2), -1) if int(size) % n == 0 and n * block % LANES == 0)
    return next(whole, most)


__all__ = ["write_jammed"]
