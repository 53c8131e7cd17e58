"""Loops with reductions and scans: one walk over the reduction ranges per stage.

A reduction is ready once its stage has walked; what depends on it is computed after, or in a later stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from litz.codegen.dialect import family
from litz.ir.combined import together
from litz.ir.dtypes import FLOAT8, HALF
from litz.ir.index import ZERO, Symbol, stride_of
from litz.ir.node import Node, walk
from litz.ir.operation import Range
from litz.ir.stages import Stage
from litz.tiles import program as tile
from litz.tiles.program import Element, Fold, Held, If, Lane, Position, Put, Result, Room, Value

from .forms import Form, form_of
from .halves import BLOCK as HALF_BLOCK
from .halves import Halves
from .jam import cost_of
from .loops import Writer
from .tiling import EXPENSIVE, is_tiny, reads_conditionally
from .turned import Turned

ROW_CHUNK = 2048
"""Elements of a row that one set of partial sums takes, or a block, which should stay in the nearest cache. Sums of
sums lose less than one long sum: the error of eager's cascade sum, near enough."""
COLUMN_CHUNK = 512
"""Rows that one set of partial column sums takes."""
PART_CHUNK = 64
"""Likewise where lanes hold a few values by a form of their own: its sums of squares stay as exact as eager's, which
are double (2e-7 of them is lost; 1e-6 with 512 rows)."""
UNROLL = 32


@dataclass(frozen=True)
class Accumulator:
    """`nodes` are the reductions that it computes, all of the same arguments. part: what lanes hold of a few values;
    None if that is the same."""

    nodes: tuple[Node, ...]
    held: Held
    part: Held | None = None

    @property
    def form(self) -> Form:
        """Returns the form of what is held."""
        return form_of(self.held)

    def widened(self) -> Accumulator:
        """Returns the accumulator with sums in double, for a walk element by element: that has no partial sums to keep
        errors small, and double costs it nothing."""
        return replace(self, held=replace(self.held, wide=True))

    def of_parts(self) -> Accumulator:
        """Returns the accumulator that partial results are merged into: sums in double, as a row of ten million values
        has thousands of parts, and one more rounding for each."""
        return self if self.form.sequential else self.widened()

    def of_lanes(self) -> Accumulator:
        """Returns what lanes hold of a few values."""
        return self if self.part is None else replace(self, held=self.part, part=None)

    def apart(self) -> Accumulator:
        """Returns what is held of a part of the walk, beside the whole."""
        return replace(self, held=replace(self.held, suffix="_part"))

    @property
    def forgets(self) -> bool:
        """Says whether what lanes hold of a few values may lose what the whole holds."""
        return bool(self.of_lanes().form.lost)


def make_accumulators(reduces: Sequence[Node], name: Callable[[str], str], lane: Lane | None) -> list[Accumulator]:
    """Returns the accumulators of a stage, one for all results of a state. name: makes an unused name of a stem. lane:
    see `Held`."""
    groups: dict[tuple[str, tuple[Node, ...]], list[Node]] = {}
    for node in reduces:
        groups.setdefault((family(node.attrs[0], node.args[0].dtype), node.args), []).append(node)

    def named(node: Node, few: bool = False) -> Held:
        held = Held(node.attrs[0], node.args[0].dtype, (), few=few, lane=lane)
        return replace(held, names=tuple(name(state.name) for state in form_of(held).states))

    found = []
    for nodes in groups.values():
        has_part = form_of(Held(nodes[0].attrs[0], nodes[0].args[0].dtype, ())).part is not None
        part = named(nodes[0], few=True) if has_part else None
        found.append(Accumulator(tuple(nodes), named(nodes[0]), part))
    return found


def results(w: Writer, of: Iterable[Accumulator], at: Mapping[Symbol, str] | None = None) -> dict[Node, Value]:
    """Makes the results of accumulators, and returns them. at: other names of some variables."""
    found = {}
    for a in of:
        w.put(*(Fold("finish", a.held),) * bool(a.form.finish))
        for node in a.nodes:
            value = Value(w.body.name(), node.dtype, w.body.axes(node, at))
            w.put(tile.Op(value, "same", (Result(a.held, node.attrs[0], node.dtype, value.axes),)))
            found[node] = value
    return found


def outer_nodes(w: Writer, finished: int) -> list[Node]:
    """Returns the nodes at output level that are not made yet and need at most `finished` stages."""
    missing = w.body.missing([root for store in w.loop.stores for root in store.roots])
    return [n for n in missing if not w.loop.levels[n] and n.op != "reduce" and w.tiling.stages.depths[n] <= finished]


def position(w: Writer, at: Mapping[Symbol, str] | None = None) -> Position:
    """Returns the row-major position in the reduction ranges. at: other names of some of their variables."""
    expr = ZERO
    for r in w.loop.reduction_ranges:
        expr = expr * r.size + r.var
    return w.body.position(expr.expand(), at=at)


# ---------------------------------------------------------------------- rows


def write_row(w: Writer) -> None:
    """Makes a loop that walks along each row, one output point after the other."""
    levels = [w.level(r) for r in w.loop.ranges]
    w.nest(levels, outer_nodes(w, 0), lambda: _write_stages(w, _RowStage), shared=len(levels))


def write_small(w: Writer) -> None:
    """Makes a loop with output points as lanes; the reduction loops inside are unrolled. Rows pass through tiles."""
    *outer, vector = w.loop.ranges
    levels, plain = [w.level(r) for r in outer], outer_nodes(w, 0)
    turned = Turned(w, w.tiling.swap or vector, vector)
    made = [a for stage in w.tiling.stages.walks for a in make_accumulators(stage.reduces, str, None)]
    twice = w.tiling.again and any(a.forgets for a in made)
    if not (twice or turned):
        levels.append(w.vector(vector, vector=not w.combines))
        return w.nest(levels, plain, lambda: _write_stages(w, _SmallStage), shared=max(1, len(outer)))

    def inside() -> None:
        turned.before("t")
        odd = new_odd(w) if twice else None
        with w.body.each(replace(w.vector(vector, "t", not w.combines), merged=(odd,) if odd else ())):
            _write_stages(w, _SmallStage, odd)
        if odd:
            with w.body.each(If(odd)), w.body.each(w.vector(vector, "t")):
                _write_stages(w, _SmallStage)
        turned.after("t")

    plain = [node for node in plain if vector.var not in w.body.variables[node]]
    w.nest([*levels, w.chunks(vector, turned.side, "t")], plain, inside, shared=len(levels) + 1)


def new_odd(w: Writer) -> Held:
    """Makes and returns what says whether some lane has lost something; none has yet."""
    odd = Held("any", torch.bool, (w.body.name("odd"),))
    w.put(Fold("make", odd))
    return odd


def _write_stages(w: Writer, kind: type[_Stage], odd: Held | None = None) -> None:
    w.body.write(outer_nodes(w, 0))
    for number, stage in enumerate(w.tiling.stages.walks):
        kind(w, stage, odd=odd).write()
        w.body.write(outer_nodes(w, number + 1))
    w.body.store(*w.final)


class _Stage:
    """Makes one stage; values at output level are scalars. lane: of what is held. odd: what says whether states have
    lost something."""

    def __init__(self, w: Writer, stage: Stage, lane: Lane | None = None, odd: Held | None = None) -> None:
        self.w, self.stage, self.lane, self.odd = w, stage, lane, odd
        self.accumulators = make_accumulators(stage.reduces, w.body.name, lane)
        self.scans: dict[Node, Held] = {}

    def write(self) -> None:
        raise NotImplementedError

    def body_nodes(self) -> list[Node]:
        """Returns the nodes that the stage has to compute for each element, without the reductions themselves."""
        return [n for n in self.w.body.missing(self.stage.roots) if n.op != "reduce"]

    def declare_scans(self, nodes: Sequence[Node]) -> None:
        """Makes what scans hold; those that are computed together hold it together."""
        for node in nodes:
            if node.op == "scan":
                held = next((made for other, made in self.scans.items() if together(node, other)), None)
                if held is None:
                    new = Held(node.attrs[0], node.dtype, (), scans=True, lane=self.lane)
                    held = replace(new, names=tuple(self.w.body.name(state.name) for state in form_of(new).states))
                self.scans[node] = held
        self.w.put(*(Fold("make", held) for held in dict.fromkeys(self.scans.values())))

    def define(self, nodes: Sequence[Node]) -> None:
        """Makes nodes in order; a scan takes a step."""
        body = self.w.body
        for node in nodes:
            if node.op == "scan" and node not in body.visible:
                value = Value(body.name(), node.dtype, body.axes(node))
                if not any(together(node, other) and other in body.visible for other in self.scans):
                    args = tuple(map(body.operand, node.args))
                    self.w.put(Fold("join", self.scans[node], args, at=position(self.w), name=value.text))
                result = Result(self.scans[node], node.attrs[0], node.dtype, value.axes)
                self.w.put(tile.Op(value, "same", (result,)))
                body.visible[node] = value
            else:
                body.define(node)

    def update(self, accumulators: Sequence[Accumulator], begun: bool = False) -> None:
        """Take in a value. begun: what is done once per value, before the lanes, is done."""
        for a in accumulators:
            args = tuple(map(self.w.body.operand, a.nodes[0].args))
            before = (Fold("before", a.held),) if a.form.before and not begun else ()
            self.w.put(*before, Fold("join", a.held, args, at=position(self.w)))


class _SmallStage(_Stage):
    """The reduction loops unrolled within one lane; in wide states where these say what others lose, and none asks."""

    def write(self) -> None:
        w = self.w
        odd = [Fold("lost", a.of_lanes().held, other=self.odd) for a in self.accumulators if a.forgets and self.odd]
        self.accumulators = [a if a.forgets and not self.odd else a.of_lanes() for a in self.accumulators]
        w.put(*(Fold("make", a.held) for a in self.accumulators))
        nodes = self.body_nodes()
        self.declare_scans(nodes)

        def inside() -> None:
            self.define([node for node in nodes if node not in w.body.visible])
            self.update(self.accumulators)
            w.body.store(*self.stage.stores)

        plain = [node for node in nodes if not self.scans]
        levels = [replace(w.level(r), unroll=UNROLL) for r in w.loop.reduction_ranges]
        w.nest(levels, plain, inside)
        w.put(*odd)
        w.body.visible.update(results(w, self.accumulators))


class _RowStage(_Stage):
    """The innermost reduction range as vector loop."""

    def write(self) -> None:
        w = self.w
        w.body.visible.update(w.scratch)
        nodes = self.body_nodes()
        *outer, inner = w.loop.reduction_ranges
        ordered = any(node.op == "scan" for node in nodes) or any(store.mode != "set" for store in self.stage.stores)
        sequential = ordered or any(a.form.sequential for a in self.accumulators)
        if sequential:
            self.accumulators = [a.widened() for a in self.accumulators]
        self._declare_scratch(nodes)
        self.declare_scans(nodes)
        (self._sequential if sequential else self._vector)(nodes, outer, inner)
        w.body.visible.update(results(w, self.accumulators))
        for node in w.scratch:
            w.body.visible.pop(node, None)
        for store in self.stage.stores:
            if store.value in w.tiling.reread:
                access = w.body.access(store)
                w.scratch[store.value] = tile.Again(access, store.value.dtype, access.axes)

    # Scratch: where values are that a later stage needs again: in an array as long as the row, or stored already.

    def _declare_scratch(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            if node in self.w.tiling.scratch and node not in self.w.scratch:
                name, at = self.w.body.name("row"), ((position(self.w).expr, "", 1),)
                self.w.put(Room(name, node.dtype, self.w.loop.reduction_numel))
                self.w.scratch[node] = Element(name, at, node.dtype, self.w.body.axes(node))

    def _write_scratch(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            if node in self.w.tiling.scratch and isinstance(place := self.w.scratch.get(node), Element):
                self.w.put(Put(place, self.w.body.operand(node)))

    def _sequential(self, nodes: Sequence[Node], outer: Sequence[Range], inner: Range) -> None:
        """Makes steps one by one; for a block of the row, vectors compute before and after them what costs much."""
        w, body = self.w, self.w.body
        w.put(*(Fold("make", a.held) for a in self.accumulators))
        ordered = any(a.form.sequential or a.form.block for a in self.accumulators)
        taken = [arg for a in self.accumulators for arg in a.nodes[0].args] * ordered
        halves, (ahead, kept) = Halves(w, inner, nodes, self.stage.stores), self._apart(nodes, taken, inner)
        start = f"{w.index.names[inner.var]}_b" if halves or ahead or kept else ""
        last = replace(w.level(inner, start), apart=is_tiny(inner) and reads_conditionally(nodes, [inner]))

        def update() -> None:
            self.update(self.accumulators)

        def finish() -> None:
            self._write_scratch(nodes)
            body.store(*self.stage.stores)

        def block() -> None:
            at, rooms = ((inner.var, start, 1),), dict[Node, Element]()
            for node in (*ahead, *kept):
                rooms[node] = Element(body.name("apart"), at, node.dtype, body.axes(node))
                w.put(Room(rooms[node].room, node.dtype, HALF_BLOCK))

            def make(loop: tile.Each, nodes: Sequence[Node], into: Sequence[Node], *more: Callable[[], None]) -> None:
                with body.each(loop):
                    self.define(nodes)
                    w.put(*(Put(rooms[node], body.operand(node)) for node in into))
                    for each in more:
                        each()
                body.visible.update({node: rooms[node] for node in into})

            lanes = w.vector(inner, start)
            halves.before(start)
            if ahead:
                make(lanes, body.missing(ahead), ahead)
            if kept and ordered:
                make(last, body.missing([*kept, *taken]), kept, update)
                make(lanes, self.body_nodes(), (), finish)
            elif kept:
                make(last, body.missing(kept), kept)
                lanes = replace(lanes, merged=tuple(a.held for a in self.accumulators))
                make(lanes, self.body_nodes(), (), update, finish)
            else:
                make(last, self.body_nodes(), (), update, finish)
            halves.after(start)

        w.nest([*map(w.level, outer), *[w.chunks(inner, HALF_BLOCK, start)] * bool(start)], [], block)

    def _apart(self, nodes: Sequence[Node], taken: Sequence[Node], inner: Range) -> tuple[list[Node], list[Node]]:
        """Returns what the steps of a walk take in, and what scans make, each if computing it, or what follows, costs
        so much that vectors should. taken: by reductions."""
        body, late, scans = self.w.body, set[Node](), [node for node in nodes if node.op == "scan"]
        for node in nodes:
            late |= {node} if node in scans or not late.isdisjoint(node.args) else set()
        needed = {*taken, *(arg for node in late for arg in node.args)}.difference(late)
        made = [n for n in nodes if n in needed and n.op not in ("load", "index") and n.dtype not in FLOAT8]
        ahead = [node for node in made if inner.var in body.variables[node]]
        after = late.difference(scans, walk(*taken, *(arg for scan in scans for arg in scan.args)))
        rounded = any(node.op == "cast" and node.dtype in HALF and node not in body.only_stored for node in after)
        apart = not is_tiny(inner) and all(store.mode == "set" for store in self.stage.stores)
        costly = [cost_of(walk(*ahead, into=set(nodes).__contains__)), cost_of(after) + EXPENSIVE * rounded]
        return ahead * (apart and costly[0] >= EXPENSIVE), scans * (apart and costly[1] >= EXPENSIVE)

    def _vector(self, nodes: Sequence[Node], outer: Sequence[Range], inner: Range) -> None:
        w, body, stores = self.w, self.w.body, self.stage.stores
        values = [a.nodes[0].args[0] for a in self.accumulators if a.form.block]
        halves = Halves(w, inner, nodes, stores)
        # A row that lies in memory as a block of it would is read there, unless the walk may write over it.
        loads = [v.args[0] if v.op == "cast" and v.dtype == torch.float32 else v for v in values]  # halves are widened
        there = [v in halves.loads or (v in values and not stores and unit_load(v, inner)) for v in loads]
        rooms = ["" if held else body.name("block") for held in there]
        step = HALF_BLOCK if halves else ROW_CHUNK
        chunked = bool(self.accumulators or halves) and not (inner.size.is_Integer and int(inner.size) <= step)
        direct = [a for a in self.accumulators if not a.form.block]
        walked, several = direct, chunked or bool(outer)
        if several:
            self.accumulators = [a.of_parts() for a in self.accumulators]
            walked = [a.apart() for a in direct]
        blocks = list(zip((a.held for a in self.accumulators if a.form.block), values, rooms, loads, strict=True))
        w.put(*(Fold("make", a.held) for a in self.accumulators))
        w.put(*(Room(room, value.dtype, step if chunked else inner.size) for _, value, room, _ in blocks if room))
        levels, start = [w.level(r) for r in outer], f"{w.index.names[inner.var]}_b" if chunked else ""
        if start:
            levels.append(w.chunks(inner, step, start))

        def element() -> None:
            self.define([node for node in nodes if node not in body.visible])
            self._write_scratch(nodes)
            self.update(walked)
            for _, value, room, _ in blocks:
                if room:
                    at, axes = ((inner.var, start, 1),), frozenset({w.index.names[inner.var]})
                    w.put(Put(Element(room, at, value.dtype, axes), body.operand(value)))
            body.store(*stores)

        def inside() -> None:
            if several:
                w.put(*(Fold("make", a.held) for a in walked))
            halves.before(start or "0")
            widened = {node: body.staged[node] for node in halves.loads}
            checks = any(node.op == "bounded" for node in nodes if node not in body.visible)
            if any(rooms) or direct or stores or not w.tiling.scratch.isdisjoint(nodes):
                lanes = w.vector(inner, start, checks=checks)
                with body.each(replace(lanes, merged=tuple(a.held for a in walked))):
                    element()
            halves.after(start or "0")
            if several:
                pairs = zip(direct, walked, strict=True)
                w.put(*(Fold("merge", a.of_parts().held, other=part.held) for a, part in pairs))
            first = {inner.var: start or "0"}
            for held, _, room, load in blocks:
                size = None if start else inner.size
                array = room or (widened[load].room if load in widened else body.access(load, first))
                w.put(Fold("block", held, at=position(w, first), array=array, block=start, size=size))
            if not several:  # what is the whole row is there for later walks; one number for a row is visible anyway
                at, axes = ((inner.var, "", 1),), frozenset({w.index.names[inner.var]})
                made = {v: Element(room, at, v.dtype, axes) for _, v, room, _ in blocks if room and w.loop.levels[v]}
                w.scratch = {**made, **widened, **w.scratch}

        outside = [node for node in nodes if body.variables[node].isdisjoint({inner.var})]
        w.nest(levels, outside, inside)


def unit_load(node: Node, var: Range) -> bool:
    """Returns whether a node is a plain contiguous load along `var` of a type that needs no conversion: such a load is
    as cheap as one from a local array."""
    if node.op != "load" or node.args or node.dtype not in (torch.float32, torch.float64, torch.int32, torch.int64):
        return False
    return stride_of(node.index[0], var.var) == 1
