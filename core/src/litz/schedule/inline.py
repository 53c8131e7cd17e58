"""Inlining: a pointwise loop's body into the loops that read its result, at whatever positions they read it.

In and out: a Program. Works where fusion over one iteration space does not: broadcast, transposed, gathered, guarded,
and for readers that end in different kernels. A loop is inlined where computing a value again is cheaper than writing
it once and reading it back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import sympy
import torch

from litz.ir import Loop, Node, Operation, Program, Store, build
from litz.ir.comparisons import simplest
from litz.ir.complexity import MAX_INDEX, MAX_LOADS, excess, is_worse, substituted_terms
from litz.ir.index import (
    ONE,
    ZERO,
    Expr,
    FloorDiv,
    Mod,
    PythonMod,
    Symbol,
    bounds,
    is_placeholder,
    known_nonnegative,
    placeholder,
    placeholder_number,
    product,
    substitute,
)
from litz.ir.intervals import Contents
from litz.ir.node import rewrite, walk, with_args
from litz.ir.operation import expressions
from litz.ir.ops import flops_of
from litz.ir.pattern import STORED, fits, match_loop
from litz.ir.transform import replace_loads
from litz.ir.verify import loose_positions
from litz.target import Room, figures_of
from litz_plugins import VETOED, PassContext

from .estimate import Cost, CostModel, deciding
from .fusion_size import exceeds, most_operations, too_large
from .simplify import with_operations


@dataclass(frozen=True)
class InlineFigures(Room):
    """Figures of inlining, which `target/figures/any/inline.toml` explains."""

    table = "inline"
    cheap_flops: int
    later_times: float


MAX_GROWTH = 8
"""How many times `MAX_INDEX` a position may have before it is simplified: reshapes of reshapes often cancel."""

Change = tuple[Loop, Loop]
"""A reader, and what it becomes."""


def inline_pointwise(program: Program, context: PassContext) -> Program:
    """Inlines pointwise loops into the loops that read them (a pass)."""
    if not getattr(context.options, "fusion", True):
        return program
    return _Inliner(program, context).run()


class _Inliner:
    def __init__(self, program: Program, context: PassContext) -> None:
        self.program, self.context = program, context
        self.costs, self.most = CostModel(program, context.target_of, context.ask), most_operations(context.options)
        self.operations: list[Operation | None] = list(program.operations)
        self.roots = program.roots
        self.writers: dict[str, list[int]] = {}
        self.readers: dict[str, set[int]] = {}
        self.kept: dict[int, str] = {}
        """The loops that were not inlined into several readers, by position, and what they store."""
        for position, operation in enumerate(program.operations):
            for name in operation.writes:
                self.writers.setdefault(self.roots.get(name, name), []).append(position)
            for name in operation.reads:
                self.readers.setdefault(name, set()).add(position)

    def run(self) -> Program:
        changed = False
        for position, operation in enumerate(self.operations):
            if isinstance(operation, Loop):
                changed |= self._consider(position, operation)
        # What each of several readers would have computed again is computed once where they have become one.
        for position, name in tuple(self.kept.items()):
            operation = self.operations[position]
            if isinstance(operation, Loop) and len(self.readers[name]) == 1:
                changed |= self._consider(position, operation)
        if not changed:
            return self.program
        return with_operations(self.program, tuple(o for o in self.operations if o is not None))

    # --------------------------------------------------------------------------------------------------- choosing

    def _consider(self, position: int, loop: Loop) -> bool:
        """Inline one loop where that is legal and pays. True if the program changed."""
        body = Body.of(loop)
        if body is None:
            return False
        name = body.store.buffer
        if not fits("temporary unshared", name, self.program) or len(self.writers[name]) != 1:
            return False
        if any(self._is_written_after(read, position) for read in loop.reads):
            return False
        users = {n: self.operations[n] for n in sorted(self.readers.get(name, ()))}
        readers = {n: user for n, user in users.items() if isinstance(user, Loop) and user.device == loop.device}
        stays = name in self.program.output_buffers or len(readers) < len(users)
        free = not loop.loads and sum(map(flops_of, loop.nodes)) <= self._limits(loop).cheap_flops
        if not readers or (stays and not free):
            return False
        changes: dict[int, Change] = {}
        try:
            changes.update((n, (reader, body.into(reader))) for n, reader in readers.items())
            reason, by = self._obstacle(loop, changes.values()), "core"
        except TooComplex as found:
            reason, by = str(found), "core"
        given, costs = "", tuple[tuple[str, float], ...]()
        if reason is None and free:
            reason = None if self.context.allows(loop.name) else VETOED
        elif reason is None:
            before, after, by = self._weighed(loop, changes)
            # A tie goes to fusion, which computes once; unless there is one reader, and it is the same either way.
            pays = after < before or (len(changes) == 1 and after <= before)
            pays, given = self.context.weigh(loop.name, pays, before, after)
            by = "core" if given else by
            reason = None if pays else given or "computing it again costs more than the memory traffic that it saves"
            costs = (("kept", before), ("inlined", after))
        if reason is not None:
            if len(changes) > 1:
                self.kept[position] = name
            self.context.record(f"{loop.name} into its readers", "kept", reason, costs, plugin=by, about=loop.name)
            return False
        for n, change in changes.items():
            self._replace(n, *change)
        names = ", ".join(result.name for _, result in changes.values())
        reason = given or "computing it again costs less than writing and reading it"
        self.context.record(f"{loop.name} into {names}", "inlined", reason, plugin=by, about=loop.name)
        if not stays:
            self.operations[position] = None
            for read in loop.reads:
                self.readers[read].discard(position)
        return True

    def _is_written_after(self, name: str, position: int) -> bool:
        writers = self.writers.get(self.roots.get(name, name))
        return writers is not None and writers[-1] >= position

    def _obstacle(self, loop: Loop, changes: Collection[Change]) -> str | None:
        """Returns what forbids inlining whatever the gain; None for nothing."""
        target = self.costs.target(loop.device)
        if any(exceeds(self.most, result) for _, result in changes):
            return too_large(self.most)
        if _loses_checks(loop, [reader for reader, _ in changes]):
            return "it checks indices of elements that none of its readers reads"
        for reader, result in changes:
            beyond = excess(result)
            if beyond is not None and is_worse(result, reader):
                return f"{result.name} would have {beyond}"
            if len({*result.reads, *result.writes}) > target.most_buffers:
                return f"too many reads: {result.name} would touch more than {target.most_buffers} buffers"
            if any(loose_positions(result, self.program.buffers, self.contents)):
                return f"what it stores keeps a position inside, and in {result.name} that is not proved"
        return None

    @cached_property
    def contents(self) -> Contents:
        """Returns what is known of the program's temporaries, which hold the same whatever is inlined."""
        known = Contents()
        for operation in self.program.operations:
            known.add(operation, self.program.buffers)
        return known

    def _limits(self, loop: Loop) -> InlineFigures:
        return figures_of(self.costs.target(loop.device), InlineFigures)

    def _weighed(self, loop: Loop, changes: Mapping[int, Change]) -> tuple[float, float, str]:
        """Returns the times (µs) of the loop and its readers as they are, where a value is written and read, and
        inlined, where it is computed again; and who decides."""
        points = self.costs.hint(loop.numel)
        own = self.costs.cost(loop)
        asked: list[Cost] = [own]
        apart, fused, after, partner = own.us, 0.0, 0.0, False
        for reader, result in changes.values():
            new, old = self.costs.cost(result), self.costs.cost(reader)
            asked += [new, old]
            # At best the loop is fused with one reader, and only written for the others.
            goes = not partner and self._goes_with(reader, loop, points)
            partner = partner or goes
            fused += max(new.us, old.us) if goes else old.us
            apart += old.us
            after += new.us
        makers = {n for name in loop.reads for n in self.writers.get(self.roots.get(name, name), ())}
        if not partner and points == 1 and any(self._is_number(self.operations[n]) for n in makers):
            # One launch makes both numbers; and what each thread would compute again is not all hidden by memory.
            again = sum(each.flops for each in asked[1::2]) - sum(each.flops for each in asked[2::2])
            target = self.costs.target(loop.device)
            apart, after = apart - target.launch_us, after + again / target.usual_flops
        if partner and len(changes) > 1:
            fused += self.costs.nbytes(loop.stores[0].buffer) / self.costs.target(loop.device).usual_bandwidth
        return min(self._limits(loop).later_times * apart, fused) if partner else apart, after, deciding(*asked)

    def _is_number(self, operation: Operation | None) -> bool:
        return isinstance(operation, Loop) and not operation.reduction_ranges and self.costs.hint(operation.numel) == 1

    def _goes_with(self, reader: Loop, loop: Loop, points: int) -> bool:
        """Returns whether the two could be fused over one iteration space."""
        if self.costs.hint(reader.numel) * self.costs.hint(reader.reduction_numel) != points:
            return False
        loads = {node.index for node in reader.loads if node.buffer == loop.stores[0].buffer}
        return len(loads) == 1

    def _replace(self, number: int, old: Loop, result: Loop) -> None:
        for name in old.reads:
            self.readers[name].discard(number)
        for name in result.reads:
            self.readers.setdefault(name, set()).add(number)
        self.operations[number] = result


def _loses_checks(loop: Loop, readers: Sequence[Loop]) -> bool:
    """Returns whether an index out of range is an error in the loop, and in none of the readers that would inline it: a
    reader reads a slice of what the loop makes, and the loop checks more than that slice."""
    checks = [node for node in loop.nodes if node.op == "bounded"]
    if not checks:
        return False
    store = loop.stores[0]
    own = {s for node in walk(*checks) for expr in expressions(node) for s in expr.free_symbols}
    dims = [(dim, loop.extents[var]) for dim, var in enumerate(store.index) if var in own and var in loop.extents]
    return not any(
        all(_reads_all(node.index[dim], extent, reader.extents) for dim, extent in dims)
        for reader in readers
        for node in reader.loads
        if node.buffer == store.buffer
    )


def _reads_all(position: Expr, extent: Expr, extents: Mapping[Symbol, Expr]) -> bool:
    """Returns whether a position takes on every value from 0 to `extent`. Values outside of that are masked off."""
    if any(is_placeholder(symbol) for symbol in position.free_symbols):
        return False
    low, high = bounds(position, extents)
    points = product(extents[var] for var in extents if var in position.free_symbols)
    if low is None or high is None:
        return known_nonnegative(points - extent)
    return all(map(known_nonnegative, (-low, high - extent + 1, points - extent)))


# ---------------------------------------------------------------------------------------------------- substituting


class TooComplex(Exception):
    """Raised where the expression in place of a load would be too complex; the message says why."""


@dataclass(frozen=True)
class Body:
    """The value that a pointwise loop stores, as a function of the position that is read. dims: for each variable, the
    dimension of the position that it is; None for one that is always 0."""

    loop: Loop
    dims: Mapping[Symbol, int | None]

    @property
    def store(self) -> Store:
        """Returns the loop's only store."""
        return self.loop.stores[0]

    @property
    def origins(self) -> tuple[str, ...]:
        """Returns the names of the graph's nodes that the loop computes."""
        return self.loop.origins

    @staticmethod
    def of(loop: Loop) -> Body | None:
        """Returns the Body of a pointwise loop with one plain store, at the loop's variables themselves in some order;
        None for any other loop."""
        if isinstance(found := match_loop(STORED, loop), str):
            return None
        dims: dict[Symbol, int | None] = {r.var: None for r in loop.ranges if r.size == ONE}
        wanted = {r.var for r in loop.ranges if r.size != ONE}
        for dim, expr in enumerate(found.store.index):
            if expr in wanted and expr not in dims:
                dims[expr] = dim
            elif not (expr.is_Integer or (expr.is_Symbol and dims.get(expr, 0) is None)):
                return None
        return Body(loop, dims) if len(dims) == len(loop.ranges) else None

    def into(self, reader: Loop) -> Loop:
        """Returns the reader with every load of the buffer replaced by the value. Errors: TooComplex if the reader
        would have too many loads."""
        extents = reader.extents
        before = len(reader.loads)
        found: set[Node] = set()

        def value(node: Node) -> Node | None:
            if node.buffer != self.store.buffer:
                return None
            if self.reads_as_written(node, extents):
                new = self.store.value
                found.update(self.loop.loads)
            else:
                new = self.at(node, extents)
                found.update(each for each in walk(new) if each.op == "load")
            if len(found) > before + MAX_LOADS:
                raise TooComplex(f"{reader.name} would have more than {MAX_LOADS} loads in one kernel")
            return new

        origins = tuple(dict.fromkeys((*self.origins, *reader.origins)))
        return replace(reader, stores=replace_loads(reader.stores, value), origins=origins)

    def reads_as_written(self, load: Node, extents: Mapping[Symbol, Expr]) -> bool:
        """Returns whether the load reads the element that the same iteration of the loop writes, in the loop's own
        variables. The load is then the loop's value as it stands, and nothing has to be worked out."""
        if load.args or load.index != self.store.index or None in self.dims.values():
            return False
        return all(extents.get(var) == size for var, size in self.loop.extents.items())

    def at(self, load: Node, extents: Mapping[Symbol, Expr]) -> Node:
        """Returns the expression in place of a load of the buffer. Errors: TooComplex if a position in the expression
        has too many terms."""
        position = {var: ZERO if dim is None else load.index[dim] for var, dim in self.dims.items()}
        value = _substituted(self.store.value, position, load.indirect, extents)
        value = build.with_checks(value, load.indirect)
        if load.mask is None:
            return value
        return build.call("where", load.mask, build.guard(value, load.mask), build.const(0, load.dtype))


def _substituted(root: Node, position: Mapping[Symbol, Expr], indirect: tuple[Node, ...], extents: Any) -> Node:
    """A body with its variables replaced by expressions, in which placeholders stand for the nodes `indirect`."""
    gathers = any(is_placeholder(s) for expr in position.values() for s in expr.free_symbols)

    def change(node: Node, args: tuple[Node, ...]) -> Node:
        if node.op == "load":
            own = len(node.indirect)
            mapping = _shifted(position, len(indirect), own) if gathers else position
            _check_growth(node.index, mapping)
            index = tuple(substitute(expr, mapping, extents) for expr in node.index)
            count = build.placeholders_in(index)
            extra = indirect[: max(0, count - own)]
            return build.load(
                node.buffer, index, node.dtype, (*args[:own], *extra), args[-1] if node.attrs[2] else None
            )
        if node.op == "index":
            _check_growth(node.attrs, position)
            expr = substitute(node.attrs[0], position, extents)
            if gathers and any(is_placeholder(s) for s in expr.free_symbols):
                return expression_node(expr, indirect)
            return build.index(expr)
        return simplest(with_args(node, args), extents)

    return rewrite((root,), change)[0]


def _check_growth(index: tuple[Expr, ...], position: Mapping[Symbol, Expr]) -> None:
    if substituted_terms(index, position) > MAX_GROWTH * MAX_INDEX:
        raise TooComplex(f"a position would have more than {MAX_INDEX} terms")


def _shifted(position: Mapping[Symbol, Expr], count: int, by: int) -> Mapping[Symbol, Expr]:
    """The positions with their placeholders numbered after those that a load has of its own."""
    if by == 0:
        return position
    moved = {placeholder(n): placeholder(n + by) for n in range(count)}
    return {var: expr.xreplace(moved) for var, expr in position.items()}


def expression_node(expr: Expr, indirect: tuple[Node, ...]) -> Node:
    """Returns an index expression with placeholders as arithmetic on int64 nodes. indirect: the nodes that the
    placeholders stand for."""
    if not any(is_placeholder(s) for s in expr.free_symbols):
        return build.index(expr)
    if expr.is_Symbol:
        return indirect[placeholder_number(expr)]
    parts = [expression_node(arg, indirect) for arg in expr.args]
    if isinstance(expr, FloorDiv):
        return build.call("floordiv", *parts)
    if isinstance(expr, (Mod, PythonMod)):
        return build.call("remainder", *parts)
    op = {sympy.Add: "add", sympy.Mul: "mul"}[expr.func]
    total = parts[0]
    for part in parts[1:]:
        total = build.call(op, total, part)
    assert total.dtype == torch.int64
    return total
