"""Sums over rows that are added to each other: the rows are added up first, and summed once.

In and out: a Program. A recurrent network's backward adds a sum over the batch to the gradient of a bias at each step:
`sum(g1) + sum(g2) + ...`, where the steps' products read g1, g2, ... as well. Fused into the kernel that computes a
step's gradients, the sum makes that kernel a reduction of few columns, which keeps few multiprocessors busy. One loop
that reads the rows of many steps, `sum(g1 + g2 + ...)`, takes less than that once, and the steps' kernels stay
pointwise. The values of half types are added in float32, so what eager rounds at each step is rounded once.

The rows wait in memory for that loop, so as many are taken at a time as `waiting_bytes` has room for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from litz.ir import Buffer, Layout, Loop, Node, Operation, Program, Store, build
from litz.ir.dtypes import compute_dtype
from litz.schedule.estimate import Cost, CostModel, deciding
from litz.schedule.merge import merge
from litz.target import Room, figures_of
from litz_plugins import PassContext


@dataclass(frozen=True)
class SumFigures(Room):
    """Figures of joined sums, which `target/figures/any/join_sums.toml` explains."""

    table = "join_sums"
    least_loops: int
    most_buffers: int
    waiting_bytes: int


TOO_LONG = "each has rows enough for a kernel of its own"


@dataclass(frozen=True)
class _Term:
    """A loop that sums rows, `reduce`, and stores nothing else; `buffer` holds the rows."""

    loop: Loop
    reduce: Node
    buffer: str


def join_sums(program: Program, context: PassContext) -> Program:
    """Makes one loop of sums over rows that are added to each other, where that is expected to take less (a pass)."""
    joining = _Joining(program, context)
    for loop in program.loops:
        joining.consider(loop)
    return joining.result()


class _Joining:
    def __init__(self, program: Program, context: PassContext) -> None:
        self.program, self.context = program, context
        self.costs = CostModel(program, context.target_of, context.ask)
        self.new: dict[str, Loop] = {}
        """By the name of the operation whose place a loop takes."""
        self.gone: set[str] = set()
        self.buffers: dict[str, Buffer] = dict(program.buffers)

    def result(self) -> Program:
        if not self.new:
            return self.program
        kept = (
            self.new.get(o.name, o) for o in self.program.operations if o.name in self.new or o.name not in self.gone
        )
        return replace(self.program, operations=tuple(kept), buffers=self.buffers)

    def consider(self, loop: Loop) -> None:
        """Joins the sums that end in a loop, if they do, and if that is legal and pays."""
        if "blocks" not in self.costs.target(loop.device).abilities or _added(loop) is None:
            return
        if self._only_reader(loop.stores[0].buffer) is not None:
            return  # a later addition of the same sum is considered
        found = self._terms(loop)
        if found is None:
            return
        terms, additions = found
        if len(terms) < figures_of(self.costs.target(loop.device), SumFigures).least_loops:
            return
        terms = sorted(terms, key=lambda term: self.program.positions[term.loop.name])
        groups = self._groups(terms)
        subject = f"{len(terms)} sums that {loop.name} adds up"
        if groups is None:
            self.context.record(subject, "apart", TOO_LONG, about=loop.name)
            return
        made = self._loops(loop, groups)
        costs = CostModel(replace(self.program, buffers=self.buffers | made[1]), self.costs.target_of, self.costs.ask)
        after = [costs.cost(each) for each in made[0].values()]
        before = [cost for term in terms for cost in self._apart(term)]
        apart, joined = (sum(cost.us for cost in each) for each in (before, after))
        pays, why = self.context.weigh(loop.name, joined < apart, apart, joined)
        considered = (("apart", apart), ("joined", joined))
        by = "core" if why else deciding(*before, *after)
        if not pays:
            reason = why or "one loop of them all would take longer"
            self.context.record(subject, "apart", reason, considered, plugin=by, about=loop.name)
            return
        reason = why or "as part of the kernels that make the rows, they would keep few units of the device busy"
        self.context.record(subject, f"{len(groups)} loops", reason, considered, plugin=by, about=loop.name)
        self.new |= made[0]
        self.buffers |= made[1]
        self.gone |= {each.name for each in (*additions, *(term.loop for term in terms))}

    # -------------------------------------------------------------------------------------------------- finding

    def _terms(self, root: Loop) -> tuple[list[_Term], list[Loop]] | None:
        """(the sums, the loops that add them), through sums that nothing else reads; None where something else is
        added, too, or where positions or sizes differ."""
        terms: list[_Term] = []
        additions: list[Loop] = []
        open_ones = [root]
        while open_ones:
            loop = open_ones.pop()
            additions.append(loop)
            for node in _added(loop) or ():
                writer = self._only_writer(node)
                if writer is None or writer.ranges != root.ranges or writer.device != root.device:
                    return None
                if writer.stores[0].index != node.index or self.program.buffers[node.buffer].dtype != node.dtype:
                    return None
                if _added(writer) is not None:
                    open_ones.append(writer)
                    continue
                term = self._term(writer)
                if term is None or (terms and term.loop.reduction_ranges != terms[0].loop.reduction_ranges):
                    return None
                terms.append(term)
        return terms, additions

    def _only_writer(self, node: Node) -> Loop | None:
        """Returns the loop that makes what a node loads, if it makes nothing else and nothing else reads it."""
        name = node.buffer
        writers, readers = self.program.writers.get(name, ()), self.program.readers.get(name, ())
        if node.indirect or node.mask is not None or len(writers) != 1 or len(readers) != 1 or not self._is_own(name):
            return None
        (writer,) = writers
        return writer if isinstance(writer, Loop) and len(writer.stores) == 1 and writer.stores[0].is_plain else None

    def _is_own(self, name: str) -> bool:
        """Is a buffer a temporary that shares memory with no other and is not returned?"""
        program = self.program
        shared = name in program.roots or name in program.output_buffers
        return program.buffers[name].kind == "temporary" and not shared

    def _only_reader(self, name: str) -> Loop | None:
        """Returns the loop that alone reads a buffer and does nothing but add; None for any other readers."""
        readers = self.program.readers.get(name, ())
        alone = len(readers) == 1 and self._is_own(name) and isinstance(readers[0], Loop)
        return readers[0] if alone and _added(readers[0]) is not None else None  # type: ignore[return-value]

    def _term(self, loop: Loop) -> _Term | None:
        """Returns a loop as a sum of rows that are in memory in any case; None for any other loop."""
        node = loop.stores[0].value
        if (
            not loop.reduction_ranges
            or node.op != "reduce"
            or node.attrs[0] != "sum"
            or not node.dtype.is_floating_point
        ):
            return None
        rows = node.args[0]
        if rows.op != "load" or rows.indirect or rows.mask is not None or not self.costs.reduces_columns(loop):
            return None
        # Written for this sum alone, the rows are better not written at all.
        made_here = any(isinstance(writer, Loop) for writer in self.program.writers[rows.buffer])
        if made_here and len(self.program.readers[rows.buffer]) == 1 and self._is_own(rows.buffer):
            return None
        return _Term(loop, node, rows.buffer)

    def _groups(self, terms: Sequence[_Term]) -> list[Sequence[_Term]] | None:
        """The sums in groups of much the same size, each for a loop; None where so few fit into memory that waits that
        it would not pay."""
        largest = max(max(self.costs.nbytes(term.buffer) for term in terms), 1)
        limits = figures_of(self.costs.target(terms[0].loop.device), SumFigures)
        most = min(limits.most_buffers, limits.waiting_bytes // largest)
        if most < limits.least_loops:
            return None
        count = -(-len(terms) // most)
        size = -(-len(terms) // count)
        return [terms[start : start + size] for start in range(0, len(terms), size)]

    # ------------------------------------------------------------------------------------------------- weighing

    def _apart(self, term: _Term) -> tuple[Cost, ...]:
        """What a sum takes as it is: with the loop that makes its rows, less what that loop takes alone; or alone."""
        alone = self.costs.cost(term.loop)
        writers = self.program.writers[term.buffer]
        if len(writers) != 1 or not isinstance(writers[0], Loop):
            return (alone,)
        target = self.costs.target(term.loop.device)
        fused = merge(writers[0], term.loop, lambda name: True, self.program.roots, target.most_buffers)
        if isinstance(fused, str):
            return (alone,)
        both, first = self.costs.cost(fused), self.costs.cost(writers[0])
        return (alone,) if both.us - first.us > alone.us else (replace(both, us=both.us - first.us),)

    # --------------------------------------------------------------------------------------------------- making

    def _loops(self, root: Loop, groups: Sequence[Sequence[_Term]]) -> tuple[Mapping[str, Loop], dict[str, Buffer]]:
        """The loop of each group, by the name of the operation in whose place it is, and the buffers between them."""
        store = root.stores[0]
        wide = compute_dtype(store.value.dtype)
        loops: dict[str, Loop] = {}
        buffers: dict[str, Buffer] = {}
        before: Node | None = None
        for number, group in enumerate(groups):
            first = group[0].loop
            rows = [build.cast(term.reduce.args[0], wide) for term in group]
            total = build.reduce("sum", reduce(lambda a, b: build.call("add", a, b), rows))
            total = total if before is None else build.call("add", before, total)
            origins = tuple(dict.fromkeys(name for term in group for name in term.loop.origins))
            if number == len(groups) - 1:
                stored = replace(store, value=build.cast(total, store.value.dtype))
                loops[root.name] = replace(first, name=root.name, stores=(stored,), origins=(*origins, *root.origins))
                break
            name, position = f"{root.name}_sum{number}", tuple(r.var for r in first.ranges)
            buffers[name] = Buffer(name, wide, root.device, Layout.contiguous(tuple(r.size for r in first.ranges)))
            last = group[-1].loop.name
            loops[last] = replace(first, name=last, stores=(Store(name, position, total),), origins=origins)
            before = build.load(name, position, wide)
        return loops, buffers


def _added(operation: Operation) -> tuple[Node, Node] | None:
    """Returns the two loads that a loop adds, where it does nothing else."""
    if not isinstance(operation, Loop) or operation.reduction_ranges or len(operation.stores) != 1:
        return None
    store = operation.stores[0]
    value = store.value
    if not store.is_plain or value.op != "add" or not value.dtype.is_floating_point:
        return None
    left, right = value.args
    return (left, right) if left.op == right.op == "load" and left.dtype == right.dtype == value.dtype else None
