"""Reductions over outer dimensions: a tile of the contiguous output range as lanes, the reduction loops around them.

Everything at output level that depends on the lane and is needed in more than one place lives in an array with an
element per lane; accumulators do too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import lcm, prod
from typing import TypeAlias

from litz.ir.node import Node
from litz.ir.operation import Range, Store
from litz.ir.stages import Stage
from litz.tiles.program import Each, Element, Fold, Held, If, Put, Result, Room

from .halves import Halves
from .loops import Writer
from .reduction import COLUMN_CHUNK, PART_CHUNK, Accumulator, _Stage, new_odd, outer_nodes, unit_load
from .tiling import known

Pair: TypeAlias = tuple[Accumulator, Accumulator]
"""The whole, and what the walk changes of it: a part, or the whole itself."""


def tile_size(w: Writer, vector: Range) -> int:
    """Returns the lanes per tile: whole cache lines, as parts of rows are slow to read, but few enough for every thread
    to have a tile, and for several walks to find rows in the cache. 128 if the vector range's size is symbolic."""
    if not vector.size.is_Integer:
        return 128
    extent, others = int(vector.size), prod(known(r.size, 16) for r in w.loop.ranges if r != vector)
    wanted = extent if not w.threaded or others >= 16 else -(-extent * others // min(w.threads, w.limits.most_tiles))
    most = w.limits.most_columns if len(w.tiling.stages.walks) == 1 else w.limits.most_columns // 8
    even = -(-wanted // max(1, -(-wanted // most)))
    unit = lcm(16, group) if (group := w.tiling.group) < most // 16 else group
    return min(-(-even // unit) * unit, extent)


def write_column(w: Writer) -> None:
    """Makes all nodes and stores of a tiling in column mode."""
    assert w.tiling.vector is not None
    _ColumnWriter(w, w.tiling.vector).write()


class _ColumnWriter:
    def __init__(self, w: Writer, vector: Range) -> None:
        self.w, self.vector, self.tile = w, vector, tile_size(w, vector)
        self.lane = (w.index.names[vector.var], "t", self.tile)

    def write(self) -> None:
        w = self.w
        outer = (r for r in w.loop.ranges if r != self.vector)
        levels = [*(w.level(r) for r in outer), w.chunks(self.vector, self.tile, "t")]

        def inside() -> None:
            for number, stage in enumerate(w.tiling.stages.walks):
                _ColumnStage(self, stage).write()
                w.body.write(self.plain(number + 1))
            if w.final:
                with w.body.each(self.lanes(w.roots, w.final)):
                    w.body.write(w.body.missing(w.roots))
                    w.body.store(*w.final)

        w.nest(levels, self.plain(0), inside, shared=len(levels))

    def plain(self, finished: int) -> list[Node]:
        """Nodes at output level, the same for all lanes, that are not written yet."""
        nodes = outer_nodes(self.w, finished)
        return [node for node in nodes if self.vector.var not in self.w.body.variables[node]]

    def lanes(self, roots: Sequence[Node] = (), stores: Sequence[Store] = ()) -> Each:
        """Returns a loop over the lanes of the tile."""
        checks = any(node.op == "bounded" for node in self.w.body.missing(roots))
        return self.w.vector(self.vector, "t", all(store.mode == "set" for store in stores), checks)


class _ColumnStage(_Stage):
    """One stage; reductions and what they depend on at output level are arrays over the lanes."""

    def __init__(self, column: _ColumnWriter, stage: Stage) -> None:
        super().__init__(column.w, stage, column.lane)
        self.column = column

    def write(self) -> None:
        w, column = self.w, self.column
        self._keep_frontier()
        nodes = self.body_nodes()
        points, apart = w.loop.reduction_numel, any(a.part for a in self.accumulators)
        # States of a few values do not merge with each other.
        most = PART_CHUNK * (w.tiling.group == 1) if apart else 2 * COLUMN_CHUNK
        few = not self.accumulators or (points.is_Integer and int(points) <= most)  # one part is all
        again = (w.tiling.again or not self.stage.stores) and all(node.op != "scan" for node in nodes)
        pairs: list[Pair] = []
        for a in self.accumulators:
            # Parts of long columns, and of those that are walked again where something is lost; else all is wide.
            one = a if a.forgets and not again else a.of_lanes()
            whole = not again if a.forgets else few or a.form.sequential
            pairs.append((one, one) if whole else (a.of_parts(), a.of_lanes().apart()))
        self.accumulators, walked = [a for a, _ in pairs], [part for _, part in pairs]
        parts = [part for a, part in pairs if part is not a]
        lossy = [pair for pair in pairs if again and pair[1].forgets]
        w.put(*(Fold("make", a.held) for a in self.accumulators))
        self._start([a.held for a in self.accumulators])
        self.declare_scans(nodes)
        self._start(list(dict.fromkeys(self.scans.values())))
        w.put(*(Fold("make", part.held) for part in parts))
        every = [w.level(r) for r in w.loop.reduction_ranges]
        outer, inner = ([], every) if few else self._levels(PART_CHUNK if apart else COLUMN_CHUNK)
        variables = w.body.variables
        free = [node for node in nodes if column.vector.var not in variables[node] and node.op != "scan"]
        before = [node for node in free if w.body.axes(node, {}).isdisjoint(each.axis for each in inner)]

        def element(walked: Sequence[Accumulator], stores: Sequence[Store]) -> None:
            w.put(*(Fold("before", a.held) for a in walked if a.form.before))
            varying = [node for node in nodes if node not in w.body.visible]
            halves = Halves(w, column.vector, varying, stores, column.tile)
            halves.before("t")
            with w.body.each(column.lanes(self.stage.roots, stores)):
                self.define(varying)
                self.update(walked, begun=True)
                w.body.store(*stores)
            halves.after("t")

        def walk(walked: Sequence[Accumulator], stores: Sequence[Store] = ()) -> None:
            w.nest(inner, [node for node in free if node not in w.body.visible], lambda: element(walked, stores))

        def inside() -> None:
            self._start([part.held for part in parts])
            walk(walked, self.stage.stores)
            self._merge([(a, part) for a, part in pairs if part in parts and (a, part) not in lossy])
            if lossy:
                self._check(lossy, lambda: walk([a for a, _ in lossy]))

        w.nest(outer, before, inside)
        self._finish()

    def _check(self, lossy: Sequence[Pair], walk: Callable[[], None]) -> None:
        """Merges parts, or walks again, into the whole, where a lane has lost something."""
        w, odd = self.w, new_odd(self.w)
        with w.body.each(replace(self.column.lanes(), merged=(odd,))):
            w.put(*(Fold("lost", part.held, other=odd) for _, part in lossy))
        with w.body.each(If(odd)):
            walk()
        with w.body.each(If(odd, lost=False)):
            self._merge(lossy)

    def _levels(self, most: int) -> tuple[list[Each], list[Each]]:
        """The loops over the reduction ranges, those around a part and those of it: it has about `most` rows."""
        w, ranges, left = self.w, list(self.w.loop.reduction_ranges), most
        inner: list[Each] = []
        while ranges and ranges[-1].size.is_Integer and int(ranges[-1].size) <= left:
            left //= max(1, int(ranges[-1].size))
            inner.insert(0, w.level(ranges.pop()))
        outer = [w.level(r) for r in ranges]
        if ranges and (left > 1 or not inner):
            chunk = f"{w.index.names[ranges[-1].var]}_b"
            outer[-1] = w.chunks(ranges[-1], left, chunk)
            inner.insert(0, w.level(ranges[-1], chunk=chunk))
        return outer, inner

    # ------------------------------------------------------------------ arrays over the lanes

    def _keep_frontier(self) -> None:
        """Values at output level that the reduction loops need are computed before them, once."""
        w, column = self.w, self.column
        inner = [node for node in self.body_nodes() if w.loop.levels[node]]
        used = [arg for node in inner for arg in node.args] + self.stage.roots
        varying = [n for n in dict.fromkeys(used) if n.op != "const" and column.vector.var in w.body.variables[n]]
        kept = [n for n in varying if not w.loop.levels[n] and n.op != "index" and not unit_load(n, column.vector)]
        kept = [node for node in kept if node not in w.body.visible]
        if not kept:
            return
        at, axes = ((column.vector.var, "t", 1),), frozenset(column.lane[:1])
        rooms = {node: Element(w.body.name("keep"), at, node.dtype, axes) for node in kept}
        w.put(*(Room(rooms[node].room, node.dtype, column.tile) for node in kept))

        with w.body.each(column.lanes(kept)):
            w.body.write(w.body.missing(kept))
            w.put(*(Put(rooms[node], w.body.operand(node)) for node in kept))
        w.body.visible.update(rooms)

    def _folds(self, folds: Sequence[Fold]) -> None:
        """Makes steps in the lanes."""
        if folds:
            with self.w.body.each(self.column.lanes()):
                self.w.put(*folds)

    def _start(self, held: Sequence[Held]) -> None:
        self.w.put(*(Fold("start", each, shared=True) for each in held))
        self._folds([Fold("start", each) for each in held])

    def _merge(self, pairs: Sequence[Pair]) -> None:
        """Takes parts into the whole."""
        steps = [[Fold(s, a.held, other=part.held) for a, part in pairs] for s in ("joint", "merge", "total")]
        self.w.put(*steps[0])
        self._folds(steps[1])
        self.w.put(*steps[2])

    def _finish(self) -> None:
        if (group := self.w.tiling.group) > 1:
            self.w.put(*(Fold("group", a.held, block="t", times=group) for a in self.accumulators))
        self._folds([Fold("finish", a.held) for a in self.accumulators if a.form.finish])
        for a in self.accumulators:
            for node in a.nodes:
                self.w.body.visible[node] = Result(a.held, node.attrs[0], node.dtype, self.w.body.axes(node))
