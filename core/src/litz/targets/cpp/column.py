"""Reductions over outer dimensions: a tile of the contiguous output range as lanes, the reduction loops around them.

Everything at output level that depends on the lane and is needed in more than one place lives in an array with an
element per lane; accumulators do too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from math import prod

from litz.ir.index import ONE, stride_of
from litz.ir.node import Node
from litz.ir.operation import Range
from litz.ir.stages import Stage

from .accumulators import of_lanes, states_of
from .dialect import VALUES
from .forms import State
from .loops import Level, Writer
from .reduction import COLUMN_CHUNK, PART_CHUNK, _Stage, outer_nodes, unit_load
from .tiling import known


def tile_size(w: Writer, vector: Range) -> int:
    """Returns the lanes per tile: whole cache lines, few enough for the accumulators to stay in the nearest cache, and
    for every thread to have a tile. 128 if the vector range's size is symbolic."""
    if not vector.size.is_Integer:
        return 128
    extent, others = int(vector.size), prod(known(r.size, 16) for r in w.loop.ranges if r != vector)
    wanted = extent if not w.threaded or others >= 16 else -(-extent * others // min(w.threads, w.limits.most_tiles))
    tile = max(16, min(256, -(-wanted // 16) * 16))
    return min(tile, extent)


def write_column(w: Writer) -> None:
    """Writes all nodes and stores of a tiling in column mode."""
    assert w.tiling.vector is not None
    _ColumnWriter(w, w.tiling.vector).write()


class _ColumnWriter:
    def __init__(self, w: Writer, vector: Range) -> None:
        self.w, self.vector, self.tile = w, vector, tile_size(w, vector)
        self.lane = f"[{w.index.names[vector.var]} - t]"
        self.header = w.header(vector, "t", "t_end")

    def write(self) -> None:
        w = self.w
        outer = (r for r in w.loop.ranges if r != self.vector)
        levels = [*(w.level(r) for r in outer), w.chunks(self.vector, self.tile, "t")]

        def inside() -> None:
            for number, stage in enumerate(w.tiling.stages.walks):
                _ColumnStage(self, stage).write()
                w.body.write(self.plain(number + 1))
            if w.final:
                atomic = any(store.mode != "set" for store in w.final)

                def stores() -> None:
                    w.body.write(w.body.missing(w.roots))
                    w.body.store(*w.final)

                self.lanes(w.roots, stores, vectorize=not atomic)

        w.nest(levels, self.plain(0), inside, shared=len(levels))

    def plain(self, finished: int) -> list[Node]:
        """Nodes at output level, the same for all lanes, that are not written yet."""
        nodes = outer_nodes(self.w, finished)
        return [node for node in nodes if self.vector.var not in self.w.body.variables[node]]

    def lanes(self, roots: Sequence[Node], inside: Callable[[], None], vectorize: bool = True) -> None:
        """A loop over the lanes of the tile."""
        checks = any(node.op == "bounded" for node in self.w.body.missing(roots))
        pragma = self.w.simd(checks) if vectorize else ()
        with self.w.body.scope(*pragma, self.header):
            inside()

    def array(self, type_: str, name: str) -> None:
        self.w.lines.add(f"alignas(64) {type_} {name}[{self.tile}];")

    def varies(self, node: Node) -> bool:
        """Is it a value at output level that differs between lanes?"""
        return not self.w.loop.levels[node] and self.vector.var in self.w.body.variables[node]


class _ColumnStage(_Stage):
    """One stage; reductions and what they depend on at output level are arrays over the lanes."""

    def __init__(self, column: _ColumnWriter, stage: Stage) -> None:
        super().__init__(column.w, stage, {})
        self.column = column
        self.walked = self.accumulators
        """The values that a walk changes: the accumulators, or what lanes hold of a part."""

    def ref(self, state: State, suffix: str = "") -> str:
        return state.name + suffix + ("" if state.shared else self.column.lane)

    def write(self) -> None:
        w, column = self.w, self.column
        self._keep_frontier()
        nodes = self.body_nodes()
        # Partial sums for long columns only.
        points, apart = w.loop.reduction_numel, any(a.part for a in self.accumulators)
        most = PART_CHUNK if apart else 2 * COLUMN_CHUNK
        parts = "_part" if self.accumulators and not (points.is_Integer and int(points) <= most) else ""
        self.walked = of_lanes(self.accumulators)
        self.accumulators = [a.of_parts() for a in self.accumulators] if parts else self.walked
        states = states_of(self.walked)
        self.declare(states_of(self.accumulators))
        self._reset(states_of(self.accumulators))
        self.declare_scans(nodes)
        self._reset(self.scan_states)
        if parts:
            self.declare(states, parts)
        outer, inner = self._levels(PART_CHUNK if apart else COLUMN_CHUNK) if parts else ([], self._all_levels())
        variables = w.body.variables
        free = [node for node in nodes if column.vector.var not in variables[node] and node.op != "scan"]
        before = [node for node in free if all(level.var not in variables[node] for level in inner)]

        ahead = self._ahead(nodes) if apart and parts else ()

        def element() -> None:
            if ahead:
                w.lines.add(f"for ({w.index.var_type(column.vector.size)} i = t; i < t_end; i += {w.line_values})")
                w.lines.add("  " + " ".join(ahead))
            for a in self.walked:
                w.lines.add(*a.lines(a.form.before, self.refs(a, parts)))
            atomic = any(store.mode != "set" for store in self.stage.stores)
            column.lanes(self.stage.roots, lambda: self._element(nodes, parts), vectorize=not atomic)

        def inside() -> None:
            if parts:
                self._reset(states, parts)
            w.nest(inner, [node for node in free if node not in w.body.visible], element)
            if parts:
                self._merge(parts)

        w.nest(outer, before, inside)
        self._finish()

    def _all_levels(self) -> list[Level]:
        return [self.w.level(r) for r in self.w.loop.reduction_ranges]

    def _levels(self, most: int) -> tuple[list[Level], list[Level]]:
        """The loops over the reduction ranges, those around a part and those of it: it has about `most` rows."""
        w, ranges, left = self.w, list(self.w.loop.reduction_ranges), most
        inner: list[Level] = []
        while ranges and ranges[-1].size.is_Integer and int(ranges[-1].size) <= left:
            left //= max(1, int(ranges[-1].size))
            inner.insert(0, w.level(ranges.pop()))
        outer = [w.level(r) for r in ranges]
        if ranges and (left > 1 or not inner):
            chunk = f"{w.index.names[ranges[-1].var]}_b"
            outer[-1] = w.chunks(ranges[-1], left, chunk)
            inner.insert(0, w.level(ranges[-1], chunk=chunk))
        return outer, inner

    def _ahead(self, nodes: Sequence[Node]) -> list[str]:
        """What fetches rows before they are needed, for arrays whose rows reach far beyond the tile: no processor
        guesses where the next one begins, and work for a row leaves few loads of others under way."""
        w, (inner, lane) = self.w, (self.w.loop.reduction_ranges[-1], self.column.vector)
        names = {inner.var: f"((i64){w.index.names[inner.var]} + {w.limits.ahead_rows})", lane.var: "i"}
        found: dict[str, None] = {}
        for node in nodes:
            if node.op == "load" and not node.args and stride_of(node.index[0], lane.var) == ONE:
                stride = stride_of(node.index[0], inner.var)
                step = 0 if stride is None else known(stride, 0) * node.dtype.itemsize
                if step >= w.limits.far_bytes and known(inner.size, w.limits.far_bytes) * step >= w.limits.large_bytes:
                    found[f"__builtin_prefetch(&{w.body.place(node.buffer, node.index, at=names)});"] = None
        return list(found)

    def _element(self, nodes: Sequence[Node], parts: str) -> None:
        w = self.w
        self.define([node for node in nodes if node not in w.body.visible])
        self.update(self.walked, parts, begun=True)
        w.body.store(*self.stage.stores)

    # ------------------------------------------------------------------ arrays over the lanes

    def _keep_frontier(self) -> None:
        """Values at output level that the reduction loops need are computed before them, once."""
        w, column = self.w, self.column
        inner = [node for node in self.body_nodes() if w.loop.levels[node]]
        used = [arg for node in inner for arg in node.args] + self.stage.roots
        kept = [
            node
            for node in dict.fromkeys(used)
            if node.op != "const"
            and column.varies(node)
            and node not in w.body.visible
            and not unit_load(node, column.vector)
            and node.op != "index"
        ]
        if not kept:
            return
        names = {node: w.body.name("keep") for node in kept}
        for node in kept:
            column.array(VALUES[node.dtype], names[node])

        def inside() -> None:
            w.body.write(w.body.missing(kept))
            for node in kept:
                w.lines.add(f"{names[node]}{column.lane} = {w.body.value(node)};")

        column.lanes(kept, inside)
        for node in kept:
            w.body.visible[node] = names[node] + column.lane

    def declare(self, states: Iterable[State], suffix: str = "") -> None:
        for state in states:
            if state.shared:
                super().declare([state], suffix)
            else:
                self.column.array(state.type, state.name + suffix)

    def _reset(self, states: Collection[State], suffix: str = "") -> None:
        def start(shared: bool) -> None:
            own = (state for state in states if state.shared == shared)
            self.w.lines.add(*(f"{self.ref(state, suffix)} = {state.start};" for state in own))

        if states:
            start(shared=True)
            self.column.lanes((), lambda: start(shared=False))

    def _merge(self, parts: str) -> None:
        pairs = [
            (a, self.refs(a), self.refs(own, parts)) for a, own in zip(self.accumulators, self.walked, strict=True)
        ]
        for a, refs, own in pairs:
            self.w.lines.add(*a.joint(refs, own))
        self.column.lanes(
            (), lambda: self.w.lines.add(*(line for a, refs, own in pairs for line in a.merge(refs, own)))
        )
        for a, walked in zip(self.accumulators, self.walked, strict=True):
            shared = (
                [self.ref(s, suffix) for s in each.states if s.shared] for each, suffix in ((a, ""), (walked, parts))
            )
            self.w.lines.add(*(f"{ref} += {part};" for ref, part in zip(*shared, strict=True)))

    def _finish(self) -> None:
        ends = [line for a in self.accumulators for line in a.lines(a.form.finish, self.refs(a))]
        if ends:
            self.column.lanes((), lambda: self.w.lines.add(*ends))
        for a in self.accumulators:
            for node in a.nodes:
                self.w.body.visible[node] = a.result(node, self.refs(a))
