"""Code for several sizes. In: a program with dynamic sizes, and the option `sizes`. Out: a schedule that has a case for
each; the wrapper chooses one when it is called.

What is decided by likely sizes (kernels measured, loops fused, tiles) is decided anew for each point of a grid: the
sizes first seen and those of the option. Points whose code comes out equal share it. Every code is right for all sizes,
so the choice is one of speed alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import sympy

from litz.capture import torch_api
from litz.capture.graph import Graph, symbol_ranges
from litz.codegen.dispatch import size_source
from litz.execution import ExecutionPlan
from litz.execution.equal import code_key
from litz.ir import Collective, Program
from litz.ir.index import Symbol
from litz.logs.units import count_text, time_text
from litz.report.log import Log
from litz.schedule.schedule import Cases, Schedule
from litz.schedule.sizes import SizeGrid
from litz_plugins import Decision, KernelSource

MOST_CASES = 16
"""Points of a grid; one with more is not used."""


def size_grid(graph: Graph, program: Program, sizes: tuple[int, ...], log: Log) -> SizeGrid | None:
    """Returns the sizes that a program is scheduled for, each beside those first seen; None where one schedule is for
    all. sizes: of the option. The log has why the sizes are not used."""
    if not sizes or not program.hints:
        return None
    grid = make_grid(graph, program, sizes)
    problem = _problem(grid, sizes)
    if problem:
        log.note(Decision("schedule", program.name, "one code for all sizes", problem))
        return None
    return grid


def other_sizes(grid: SizeGrid, graph: Graph, program: Program) -> Mapping[int, Program]:
    """Returns the program with the hints of each point of a grid but the first seen, by the point's number. A point
    that the graph's guards exclude is left out."""
    holds, home = _guards(graph), grid.number(program.hints)
    points = {number: {**program.hints, **point} for number, point in enumerate(grid.points) if number != home}
    return {number: replace(program, hints=hints) for number, hints in points.items() if holds(hints)}


@contextmanager
def case_log(log: Log, at: str) -> Iterator[Log]:
    """Yields a log for the case of the sizes `at`; what is decided goes on the log's record with them."""
    own = replace(log, decisions=[], contractions=[])
    try:
        yield own
    finally:
        log.running = own.running
        log.decisions += [replace(decision, subject=f"{decision.subject} at {at}") for decision in own.decisions]
        log.contractions += [replace(record, at=at) for record in own.contractions]


def of_same_communication(first: Schedule, other: Schedule, at: str, log: Log) -> Schedule:
    """Returns the schedule of another size, or `first` where the other would communicate in another order: ranks may
    have different sizes at a time, and all have to communicate in one order."""
    if _communication(other) == _communication(first):
        return other
    reason = "its communication would come in another order"
    log.note(Decision("schedule", first.program.name, f"no code of its own for {at}", reason))
    return first


def with_cases(first: Schedule, grid: SizeGrid, others: Mapping[int, Schedule]) -> Schedule:
    """Returns a schedule with those of other sizes as its `cases`, if they differ. others: by the number of a point of
    the grid; `first` is for all other points."""
    cases = Cases(grid, tuple(others.get(number, first) for number in range(grid.count)))
    return replace(first, cases=cases) if len(cases.distinct) > 1 else first


def _problem(grid: SizeGrid, sizes: tuple[int, ...]) -> str:
    """Returns why a grid is not used; "" if it is."""
    if not grid.axes:
        return f"no dynamic size of the inputs may be {' or '.join(map(str, sizes))}, by its range and guards"
    if grid.count > MOST_CASES:
        symbols = ", ".join(str(symbol) for symbol, _ in grid.axes)
        cases = f"{symbols} make {grid.count} cases, more than {MOST_CASES}"
        return f"the dynamic sizes {cases}: name fewer in the option sizes, or mark fewer as dynamic"
    return ""


def make_grid(graph: Graph, program: Program, sizes: tuple[int, ...]) -> SizeGrid:
    """Returns the dynamic sizes of the inputs, each with the values to compile for: the one first seen, and those of
    `sizes` that it may have by its range and its guards. A size without such is left out."""
    ranges, holds = symbol_ranges(graph), _guards(graph)
    axes = []
    for symbol in sorted(program.hints, key=str):
        if size_source(program, symbol) is None:
            continue
        low, high = ranges.get(symbol, (1, sympy.oo))
        possible = {size for size in sizes if low <= size <= high and holds({**program.hints, symbol: size})}
        values = tuple(sorted(possible | {program.hints[symbol]}))
        axes += [(symbol, values)] if len(values) > 1 else []
    return SizeGrid(tuple(axes))


def _guards(graph: Graph) -> Callable[[Mapping[Symbol, int]], bool]:
    """Returns a function that says whether the graph's guards let it be called with given sizes."""
    guards = torch_api.guards_since(graph.shape_env, 0)
    return lambda sizes: not any(guard.xreplace(dict(sizes)) == sympy.false for guard in guards)


def _communication(schedule: Schedule) -> list[tuple[Any, ...]]:
    calls = [call for call in schedule.externs if isinstance(call, Collective) or torch_api.is_collective(call.target)]
    return [(call.name, call.target, call.reads) for call in calls]


# Once there is code.


def merge_equal(
    plan: ExecutionPlan, sources: Mapping[str, KernelSource], note: Callable[[Decision], None]
) -> tuple[ExecutionPlan, Mapping[str, KernelSource]]:
    """Returns the plan and its sources with cases of equal code made one; the first schedule's case is preferred."""
    if plan.cases is None:
        return plan, sources
    made: dict[Any, ExecutionPlan] = {}
    kept: dict[int, ExecutionPlan] = {}
    for variant in sorted(plan.cases.distinct, key=lambda variant: variant.steps is not plan.steps):
        kept[id(variant)] = made.setdefault(code_key(variant, sources), variant)
    merged = Cases(plan.cases.grid, tuple(kept[id(variant)] for variant in plan.cases.each))
    _note_cases(merged, plan.program.name, note)
    plan = replace(plan, cases=merged if len(made) > 1 else None)
    used = {kernel.name for variant in (*made.values(), *plan.inner.values()) for kernel in variant.launched}
    return plan, {name: source for name, source in sources.items() if name in used}


def _note_cases(cases: Cases[ExecutionPlan], name: str, note: Callable[[Decision], None]) -> None:
    grid = cases.grid
    if len(cases.distinct) == 1:
        made_for = "; ".join(map(grid.at, range(grid.count)))
        note(Decision("schedule", name, "one code for all sizes", f"the best code is the same for {made_for}"))
        return
    for number, plan in enumerate(cases.distinct):
        points = [point for point, own in enumerate(cases.numbers) if own == number]
        kernels, calls = len(plan.launched), len(plan.steps) - len(plan.launched)
        us = sum(found.us for found in plan.estimates.values())
        expected = f", {time_text(us)} expected there" if us and len(points) == 1 else ""
        reason = (
            f"runs where {grid.where(points)}: {count_text(kernels, 'kernel')} and {count_text(calls, 'call')}, "
            f"made for {' and '.join(map(grid.at, points))}{expected}"
        )
        note(Decision("schedule", name, f"code {number + 1} of {len(cases.distinct)} by size", reason))
