"""The body of a loop: what a tile computes and stores, in passes over the row where there is one to reduce.

In: a tile whose indices are there. Out: its lines. A row in one block needs one pass, and its values stay in registers.
A longer row is walked once per level of reductions (softmax: the maximum, the sum, the result), and each pass loads
what it needs anew; what a pass will need again is asked to stay in the cache, and the pass that writes begins at the
row's end, which was read last.
"""

from __future__ import annotations

from collections.abc import Mapping

from litz.ir import Node
from litz.ir.stages import Stages, find_stages

from .indices import expand, write_frame, write_row
from .reductions import Reducer
from .stores import store_lines
from .values import Tile


def write_body(tile: Tile, stages: Stages | None = None) -> None:
    """Writes what a loop computes and stores, for a tile that has indices, and perhaps some values, already. stages:
    found here if not given."""
    if tile.loop.reduction_ranges:
        Passes(tile, stages or find_stages(tile.loop)).write()
        return
    if not tile.tiling.whole:
        _write_points(tile)
        return
    (axis,) = tile.tiling.axes
    given = dict(tile.values)
    for whole, line in ((True, f"if tl.program_id(0) < {int(axis.size) // axis.block}:"), (False, "else:")):
        tile.emit(line)
        tile.whole, tile.values, tile.stored = whole, dict(given), {}
        tile.depth += 1
        _write_points(tile)
        tile.depth -= 1


def _write_points(tile: Tile) -> None:
    """What a pointwise loop computes and stores."""
    tile.compute([root for store in tile.loop.stores for root in store.roots])
    for store in tile.loop.stores:
        store_lines(tile, store)


class Passes:
    """Which reduction and which store belongs to which pass, and the text of the passes."""

    def __init__(self, tile: Tile, stages: Stages) -> None:
        self.tile, self.loop = tile, tile.loop
        axis = tile.tiling.axis("r")
        assert axis is not None
        self.axis = axis
        self.stages, self.online = stages, stages.together
        self.last = len(stages.walks) - 1

    def write(self) -> None:
        """Emits the frame, all passes over the row, and the stores of the results."""
        write_frame(self.tile, self.axis)
        if self.tile.tiling.persistent:
            self._write_persistent()
        else:
            self.tile.emit(f"rbase = tl.arange(0, RBLOCK){expand(self.tile, self.axis)}")
            for number in range(self.last + 1):
                self._write_pass(number)
        self.tile.compute([root for store in self.stages.final for root in store.roots])
        for store in self.stages.final:
            store_lines(self.tile, store)

    def _write_persistent(self) -> None:
        write_row(self.tile, self.axis, f"tl.arange(0, RBLOCK){expand(self.tile, self.axis)}")
        for walk in self.stages.walks:
            self._compute([arg for node in walk.reduces for arg in node.args], Reducer(self.tile, [], []))
            Reducer(self.tile, walk.reduces, []).close()
        # Every value first, then every store: a store may overwrite what another value is read from.
        self._compute([root for store in self.loop.stores for root in store.roots], Reducer(self.tile, [], []))
        for store in filter(self.loop.at_reduction_level, self.loop.stores):
            store_lines(self.tile, store, inner=True)

    def _compute(self, roots: list[Node], reducer: Reducer) -> None:
        """Values of the row, scans among them."""
        for node in self.tile.missing(roots):
            if node.op == "scan":
                self.tile.values[node] = reducer.scan(node)
            else:
                self.tile.compute([node])

    def _write_pass(self, number: int) -> None:
        tile, reduces, stores = self.tile, self.stages.walks[number].reduces, self.stages.walks[number].stores
        if not reduces and not stores:
            return
        roots = [arg for node in reduces for arg in self.online.get(node, node).args]
        roots += [root for store in stores for root in store.roots]
        missing = tile.missing(roots)
        # What does not vary along the row is computed once, before the loop over it.
        tile.compute([node for node in missing if not self.loop.levels[node] and node.op != "reduce"])
        if number == self.last:
            # Before this pass stores anything, read what is read once per row.
            once = [node for node in self.loop.loads if not self.loop.levels[node]]
            tile.compute([node for node in once if self.stages.depths[node] <= number])
        reducer = Reducer(tile, reduces, [node for node in missing if node.op == "scan"], self.online)
        reducer.open()
        tile.eviction = self._eviction(number)
        frame = tile.tiling.frame
        size = tile.index_text(self.axis.size) if frame is None else int(self.axis.size) + frame.lanes - 1
        outside = dict(tile.values)
        stages = tile.tiling.stages
        walk = f"range(0, {size}, RBLOCK)" if stages == 1 else f"tl.range(0, {size}, RBLOCK, num_stages={stages})"
        back = self._walks_back(number)
        tile.emit(f"for {'rback' if back else 'roffset'} in {walk}:")
        tile.depth += 1
        if back:
            tile.emit(f"roffset = ({size} - 1) // RBLOCK * RBLOCK - rback")
        wide = "" if tile.index_type == "tl.int32" else f".to({tile.index_type})"
        write_row(tile, self.axis, f"roffset + rbase{wide}")
        self._compute(roots, reducer)
        reducer.step()
        for store in stores:
            store_lines(tile, store, inner=True)
        tile.depth -= 1
        tile.values = outside
        tile.eviction = {}
        reducer.close()

    def _walks_back(self, number: int) -> bool:
        """Does a pass begin where the one before ended? What was read last is still in the caches, of a row that is
        longer than a program's share of them. Only where the order of the blocks decides nothing: a pass that stores
        and reduces nothing."""
        walk = self.stages.walks[number]
        if number == 0 or walk.reduces or self.loop.has_scan:
            return False
        return any(self.loop.levels[node] and self.stages.depths[node] < number for node in self.loop.loads)

    def _eviction(self, number: int) -> Mapping[Node, str]:
        """Cache hints: keep what a later pass reads again, let go of what the last pass has read."""
        if self.last == 0:
            return {}
        outer = {r.var for r in self.loop.ranges}
        hints: dict[Node, str] = {}
        for node in self.loop.loads:
            if self.loop.levels[node] and not node.indirect:
                # What all rows share (weights) stays for the next row too.
                shared = not outer & node.index[0].free_symbols
                hints[node] = "evict_last" if shared or number < self.last else "evict_first"
        return hints
