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
from litz.ir.pattern import Pattern, Value, find, fits
from litz.schedule.estimate import Cost, CostModel, deciding
from litz.schedule.merge import merge
from litz.target import Room, figures_of
from litz_plugins import PassContext


@dataclass(frozen=True)
class SumFigures(Room):
    """Figures of joined sums, which `figures/any/join_sums.toml` explains."""

    table = "join_sums"
    least_loops: int
    most_buffers: int
    waiting_bytes: int


OWN = "temporary unshared unreturned read_once"
SUMMAND = Pattern(OWN, "plain")
ADDITION = Pattern(
    loop="pointwise plain", value=Value("add", (Value("load", name="left"), Value("load", name="right")), words="real")
)
ROW_SUMS = Pattern(value=Value("reduce", (Value(words="plain", name="rows"),), "sum", "real", "sum"))

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
        if "blocks" not in self.costs.target(loop.device).abilities or not self._added(loop):
            return
        total = loop.stores[0].buffer
        if fits(OWN, total, self.program) and self._added(self.program.readers[total][0]):
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
            for node in self._added(loop):
                found = find(SUMMAND, node.buffer, self.program) if not node.args else None
                writer = None if found is None else found.loop
                if writer is None or writer.ranges != root.ranges or writer.device != root.device:
                    return None
                if writer.stores[0].index != node.index or self.program.buffers[node.buffer].dtype != node.dtype:
                    return None
                if self._added(writer):
                    open_ones.append(writer)
                    continue
                term = self._term(writer)
                if term is None or (terms and term.loop.reduction_ranges != terms[0].loop.reduction_ranges):
                    return None
                terms.append(term)
        return terms, additions

    def _added(self, operation: Operation) -> tuple[Node, ...]:
        """Returns the two loads that a loop adds, where it does nothing else; else nothing."""
        found = find(ADDITION, operation, self.program)
        return () if found is None else (found["left"], found["right"])

    def _term(self, loop: Loop) -> _Term | None:
        """Returns a loop as a sum of rows that are in memory in any case; None for any other loop."""
        found = find(ROW_SUMS, loop, self.program)
        if found is None or not self.costs.reduces_columns(loop):
            return None
        rows = found["rows"].buffer
        # Written for this sum alone, the rows are better not written at all.
        made_here = any(isinstance(writer, Loop) for writer in self.program.writers[rows])
        return None if made_here and fits(OWN, rows, self.program) else _Term(loop, found["sum"], rows)

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
        """Returns the costs of a sum as it is: with the loop that makes its rows, less that loop's own; or alone."""
        alone = self.costs.cost(term.loop)
        writer = self.program.maker(term.buffer)
        if writer is None:
            return (alone,)
        target = self.costs.target(term.loop.device)
        fused = merge(writer, term.loop, lambda name: True, self.program.roots, target.most_buffers)
        if isinstance(fused, str):
            return (alone,)
        both, first = self.costs.cost(fused), self.costs.cost(writer)
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
