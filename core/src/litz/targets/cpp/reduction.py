"""Loops with reductions and scans: one walk over the reduction ranges per stage.

A reduction is ready once its stage has walked; what depends on it is computed after, or in a later stage.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch

from litz.ir.combined import together
from litz.ir.index import ZERO, Symbol, stride_of
from litz.ir.node import Node
from litz.ir.operation import Range
from litz.ir.stages import Stage

from .accumulators import Accumulator, make_accumulators, of_lanes, states_of
from .dialect import VALUES, read
from .forms import State, scan_form
from .halves import BLOCK as HALF_BLOCK
from .halves import Halves
from .loops import Writer
from .tiling import is_tiny

ROW_CHUNK = 4096
"""Elements of a row that one set of partial sums takes. Sums of sums lose less than one long sum: the error of eager's
cascade sum, near enough."""
BLOCK_CHUNK = 2048
"""Likewise where values are first gathered in a block, which should stay in the nearest cache."""
COLUMN_CHUNK = 512
"""Rows that one set of partial column sums takes."""
PART_CHUNK = 64
"""Likewise where lanes hold a few values by a form of their own: its sums of squares stay as exact as eager's, which
are double (2e-7 of them is lost; 1e-6 with 512 rows)."""
UNROLL = 32


def outer_nodes(w: Writer, finished: int) -> list[Node]:
    """Returns the nodes at output level that are not written yet and need at most `finished` stages."""
    missing = w.body.missing([root for store in w.loop.stores for root in store.roots])
    return [n for n in missing if not w.loop.levels[n] and n.op != "reduce" and w.tiling.stages.depths[n] <= finished]


def position(w: Writer, at: Mapping[Symbol, str] | None = None) -> str:
    """Returns the text of the row-major position in the reduction ranges. at: texts in place of some of their
    variables."""
    expr = ZERO
    for r in w.loop.reduction_ranges:
        expr = expr * r.size + r.var
    return w.index.text(expr.expand(), at)


# ---------------------------------------------------------------------- rows


def write_row(w: Writer) -> None:
    """Writes a loop that walks along each row, one output point after the other."""
    levels = [w.level(r) for r in w.loop.ranges]
    w.nest(levels, outer_nodes(w, 0), lambda: _write_stages(w, _RowStage), shared=len(levels))


def write_small(w: Writer) -> None:
    """Writes a loop with output points as lanes; the reduction loops inside are unrolled."""
    *outer, vector = w.loop.ranges
    if not outer:
        pragma = w.parallel(1, simd=not w.atomic)
    else:
        pragma = () if w.atomic else w.simd()
    levels = [*(w.level(r) for r in outer), w.level(vector, pragma)]
    w.nest(levels, outer_nodes(w, 0), lambda: _write_stages(w, _SmallStage), shared=len(outer))


def _write_stages(w: Writer, kind: type[_Stage]) -> None:
    w.body.write(outer_nodes(w, 0))
    scratch: dict[Node, str] = {}
    for number, stage in enumerate(w.tiling.stages.walks):
        kind(w, stage, scratch).write()
        w.body.write(outer_nodes(w, number + 1))
    w.body.store(*w.final)


class _Stage:
    """Writes one stage; values at output level are scalars."""

    def __init__(self, w: Writer, stage: Stage, scratch: dict[Node, str]) -> None:
        self.w, self.stage, self.scratch = w, stage, scratch
        self.accumulators = make_accumulators(stage.reduces, w.body.name)
        self.scans: dict[Node, tuple[State, ...]] = {}

    def write(self) -> None:
        raise NotImplementedError

    def declare(self, states: Iterable[State], suffix: str = "") -> None:
        for state in states:
            self.w.lines.add(f"{state.type} {self.ref(state, suffix)} = {state.start};")

    def ref(self, state: State, suffix: str = "") -> str:
        """Returns the name of the C++ variable that holds a state; with a suffix, a copy of the variable."""
        return state.name + suffix

    def refs(self, accumulator: Accumulator, suffix: str = "") -> list[str]:
        return [self.ref(state, suffix) for state in accumulator.states]

    def body_nodes(self) -> list[Node]:
        """Returns the nodes that the stage has to compute for each element, without the reductions themselves."""
        return [n for n in self.w.body.missing(self.stage.roots) if n.op != "reduce"]

    def declare_scans(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            if node.op == "scan":
                states = next((made for other, made in self.scans.items() if together(node, other)), None)
                form = scan_form(node.attrs[0], node.dtype)
                self.scans[node] = states or tuple(replace(s, name=self.w.body.name(s.name)) for s in form.states)
        self.declare(self.scan_states)

    @property
    def scan_states(self) -> tuple[State, ...]:
        """Returns the variables of all scans, each once."""
        return tuple(dict.fromkeys(state for states in self.scans.values() for state in states))

    def define(self, nodes: Sequence[Node]) -> None:
        """Nodes in order; a scan takes a step."""
        body = self.w.body
        for node in nodes:
            if node.op == "scan" and node not in body.visible:
                refs, form = [*map(self.ref, self.scans[node])], scan_form(node.attrs[0], node.dtype)
                values, name = {f"v{n}": body.value(arg) for n, arg in enumerate(node.args)}, body.name()
                if not any(together(node, other) and other in body.visible for other in self.scans):
                    known = {**values, "n0": name, "at": position(self.w)}
                    self.w.lines.add(*(line.format(*refs, **known) for line in form.update))
                type_, found = VALUES[node.dtype], form.results.get(node.attrs[0], "{0}").format(*refs)
                self.w.lines.add(f"const {type_} {name} = ({type_}){found};")
                body.visible[node] = name
            else:
                body.define(node)

    def update(self, accumulators: Sequence[Accumulator], suffix: str = "", begun: bool = False) -> None:
        """Take in a value. begun: what is done once per value, before the lanes, is done."""
        for accumulator in accumulators:
            refs = self.refs(accumulator, suffix)
            values = [self.w.body.value(arg) for arg in accumulator.nodes[0].args]
            self.w.lines.add(*(() if begun else accumulator.lines(accumulator.form.before, refs)))
            self.w.lines.add(*accumulator.update(refs, values, position(self.w)))

    def results(self) -> None:
        """Bind the reductions' results to names."""
        body = self.w.body
        for accumulator in self.accumulators:
            refs = self.refs(accumulator)
            self.w.lines.add(*accumulator.lines(accumulator.form.finish, refs))
            for node in accumulator.nodes:
                name = body.name()
                self.w.lines.add(f"const {VALUES[node.dtype]} {name} = {accumulator.result(node, refs)};")
                body.visible[node] = name


class _SmallStage(_Stage):
    """The reduction loops unrolled within one lane."""

    def write(self) -> None:
        w = self.w
        self.accumulators = of_lanes(self.accumulators)
        self.declare(states_of(self.accumulators))
        nodes = self.body_nodes()
        self.declare_scans(nodes)

        def inside() -> None:
            self.define([node for node in nodes if node not in w.body.visible])
            self.update(self.accumulators)
            w.body.store(*self.stage.stores)

        plain = [node for node in nodes if not self.scans]
        levels = [w.level(r, (f"#pragma GCC unroll {UNROLL}",)) for r in w.loop.reduction_ranges]
        w.nest(levels, plain, inside)
        self.results()


class _RowStage(_Stage):
    """The innermost reduction range as vector loop."""

    def write(self) -> None:
        w = self.w
        w.body.visible.update(self.scratch)
        nodes = self.body_nodes()
        *outer, inner = w.loop.reduction_ranges
        sequential = (
            any(a.form.sequential for a in self.accumulators)
            or any(node.op == "scan" for node in nodes)
            or any(store.mode != "set" for store in self.stage.stores)
        )
        if sequential:
            self.accumulators = [a.widened() for a in self.accumulators]
        self._declare_scratch(nodes)
        self.declare_scans(nodes)
        if sequential:
            self.declare(states_of(self.accumulators))
            self._sequential(nodes)
        else:
            self._vector(nodes, outer, inner)
        self.results()
        for node in list(self.scratch):
            w.body.visible.pop(node, None)
        for store in self.stage.stores:
            if store.value in w.tiling.reread:
                self.scratch[store.value] = read(store.value.dtype, w.body.place(store.buffer, store.index))

    # Scratch: where values are that a later stage needs again: in an array as long as the row, or stored already.

    def _declare_scratch(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            if node in self.w.tiling.scratch and node not in self.scratch:
                name = self.w.body.name("row")
                self.w.lines.add(f"alignas(64) {VALUES[node.dtype]} {name}[{self.w.loop.reduction_numel}];")
                self.scratch[node] = f"{name}[{position(self.w)}]"

    def _write_scratch(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            if node in self.w.tiling.scratch and node in self.scratch:
                self.w.lines.add(f"{self.scratch[node]} = {self.w.body.value(node)};")

    def _sequential(self, nodes: Sequence[Node]) -> None:
        w = self.w

        def inside() -> None:
            self.define(nodes)
            self._write_scratch(nodes)
            self.update(self.accumulators)
            w.body.store(*self.stage.stores)

        *outer, inner = w.loop.reduction_ranges
        apart = w.one_by_one(nodes, [inner]) if is_tiny(inner) else ()
        w.nest([*(w.level(r) for r in outer), w.level(inner, first=apart)], [], inside)

    def _vector(self, nodes: Sequence[Node], outer: Sequence[Range], inner: Range) -> None:
        w = self.w
        blocked, stores = [a for a in self.accumulators if a.form.block], self.stage.stores
        # A row that lies in memory as a block of it would is read there, unless the walk may write over it.
        in_place = [not stores and unit_load(a.nodes[0].args[0], inner) for a in blocked]
        blocks = [(a, "" if here else w.body.name("block")) for a, here in zip(blocked, in_place, strict=True)]
        copied = [(a, block) for a, block in blocks if block]
        direct = [a for a in self.accumulators if not a.form.block]
        step = BLOCK_CHUNK if blocks else ROW_CHUNK
        halves = Halves(w, inner, nodes, self.stage.stores)
        if halves:
            step = HALF_BLOCK
        chunked = bool(self.accumulators or halves) and not (inner.size.is_Integer and int(inner.size) <= step)
        parts = "_part" if self.accumulators and (chunked or outer) else ""
        if parts:
            self.accumulators = [a.of_parts() for a in self.accumulators]
        self.declare(states_of(self.accumulators))
        for a, block in copied:
            w.lines.add(f"alignas(64) {a.type} {block}[{step if chunked else int(inner.size)}];")
        levels = [w.level(r) for r in outer]
        name = w.index.names[inner.var]
        start, stop = (f"{name}_b", f"{name}_b_end") if chunked else ("0", w.index.text(inner.size))
        if chunked:
            levels.append(w.chunks(inner, step, start))

        def inside() -> None:
            if parts:
                self.declare(states_of(direct), parts)
            inner_nodes = [node for node in nodes if node not in w.body.visible]
            halves.before(start, stop)
            clauses = [clause for a in direct for clause in a.clauses(self.refs(a, parts))]
            checks = any(node.op == "bounded" for node in inner_nodes)
            if copied or direct or stores or not w.tiling.scratch.isdisjoint(nodes):
                with w.body.scope(*w.simd(checks, clauses), w.header(inner, start, stop)):
                    self.define(inner_nodes)
                    self._write_scratch(nodes)
                    self.update(direct, parts)
                    for a, block in copied:
                        offset = name if start == "0" else f"{name} - {start}"
                        w.lines.add(f"{block}[{offset}] = {w.body.value(a.nodes[0].args[0])};")
                    for store in self.stage.stores:
                        halves.store(store, start)
            halves.after(start, stop)
            for a in direct:
                if parts:
                    w.lines.add(*a.merge(self.refs(a), self.refs(a, parts)))
            first = position(w, {inner.var: start})
            for a, block in blocks:
                count, value = stop if start == "0" else f"{stop} - {start}", a.nodes[0].args[0]
                buffer = block or f"&{w.body.place(value.buffer, value.index, at={inner.var: start})}"
                w.lines.add(*a.lines([a.form.block], self.refs(a), buffer=buffer, count=count, start=first))

        outside = [node for node in nodes if inner.var not in w.body.variables[node]]
        w.nest(levels, outside, inside)


def unit_load(node: Node, var: Range) -> bool:
    """Returns whether a node is a plain contiguous load along `var` of a type that needs no conversion: such a load is
    as cheap as one from a local array."""
    if node.op != "load" or node.args or node.dtype not in (torch.float32, torch.float64, torch.int32, torch.int64):
        return False
    return stride_of(node.index[0], var.var) == 1
