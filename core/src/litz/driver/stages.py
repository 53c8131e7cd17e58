"""The stages in front of code: a function for each, from its noun, the compiler and the log to the next noun.

    dynamo's graph --capture--> Graph --prepare_graph--> Graph --lower_graph--> Program
                   --schedule_program--> Schedule --plan_schedule--> ExecutionPlan

`litz.pipeline` calls them one after the other; `litz.driver.code` has the stages behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from litz import logs
from litz.capture.decompositions import drawn_in_eager
from litz.capture.graph import Graph
from litz.capture.layout import apply_layout
from litz.capture.layout_needs import LayoutNeeds
from litz.capture.passes.check_pass import check_pass
from litz.capture.passes.decompose import added_ops, decompose
from litz.capture.passes.freezing import fold_frozen, freeze
from litz.driver.capturing import capture as capture
from litz.driver.capturing import decompositions, passed_on
from litz.driver.capturing import earlier_stages as earlier_stages
from litz.driver.compiler import Compiler
from litz.driver.size_cases import case_log, of_same_communication, other_sizes, size_grid, with_cases
from litz.driver.template_choice import choose_contractions
from litz.errors import VerifyError
from litz.execution import ExecutionPlan, check_plan, plan_execution
from litz.ir import Program
from litz.ir.verify import RULES, IllegalProgram, Rule, positions_inside, verify
from litz.lower import lower
from litz.lower.bodies import bodies_of
from litz.lower.promised import blame as blame_lowering
from litz.lower.promised import owners as owners_of
from litz.report.log import Log
from litz.schedule import check_schedule, make_schedule
from litz.schedule.check import check_steps
from litz.schedule.schedule import Schedule, Step
from litz_plugins import Decision, Estimate, Gate, LayoutPlan
from litz_plugins.blame import Blamed


def lowerings(compiler: Compiler) -> Mapping[Any, Callable[..., Any]]:
    """Returns the lowerings, by op. An op that is not in the table becomes a library call."""
    table = compiler.plugins.lowerings(options=compiler.options)
    return drawn_in_eager(table) if compiler.options.fallback_random else table


def prepare_graph(graph: Graph, compiler: Compiler, log: Log) -> Graph:
    """Returns the graph after the graph passes, with its tensors in the layouts that a plugin chose."""
    options, plugins = compiler.options, compiler.plugins
    log.gate = replace(log.gate, graph=graph.name, vetoes=compiler.vetoes, preferences=compiler.preferences)
    log.include(graph.earlier)
    tensors = (node.meta.get("val") for node in graph.nodes)
    for device in {value.device for value in tensors if isinstance(value, torch.Tensor)}:
        compiler.target_of(device)  # a mistake in an option about a device is not the fault of the first pass that asks
    with compiler.stage("graph passes", log):
        if options.freezing:
            graph = freeze(graph)
            if not graph.frozen_values:
                reason = "only inference graphs are, of parameters whose values are known (torch.no_grad())"
                log.note(Decision("graph", graph.name, "parameters not frozen", reason))
        watched: dict[str, Any] = {"accept": check_pass, "watch": log.pass_ran, "attach": log.attachments.__setitem__}
        passed = plugins.run_passes("graph", graph, **passed_on(compiler, log), **watched)
        added = added_ops(graph, passed)
        graph = decompose(passed, added, decompositions(compiler), _kept_whole(compiler)) if added else passed
        needs = _layout_needs(compiler, lowerings(compiler))
        planned = plugins.select_layout(graph, options, needs.of, compiler.target_of, needs.lowered)
        if planned is not None:
            with plugins.blaming(planned[0], "litz_select_layout"):
                graph = _with_layouts(graph, *planned, log, needs)
        bodies = bodies_of(graph, log.note)
    return _with_bodies(graph, bodies, compiler, log) if bodies else graph


def _with_bodies(graph: Graph, bodies: Mapping[str, Graph], compiler: Compiler, log: Log) -> Graph:
    """Returns the graph with the bodies of its higher-order ops, each after the graph passes."""
    gate, prepared = log.gate, {name: prepare_graph(body, compiler, log) for name, body in bodies.items()}
    log.gate = gate
    return replace(graph, bodies=prepared)


def _with_layouts(graph: Graph, plugin: str, plan: LayoutPlan, log: Log, needs: LayoutNeeds) -> Graph:
    """Returns the graph in the layouts of a plan, or the graph itself where the plan is not applied."""
    if plan.strides or plan.conversions:
        applied, why = log.gate.weigh("layout", "", plan.pays, *(plan.us or (None, None)))
        if not applied:
            log.attachments.update(plan.attachments)
            notes = [] if why else plan.decisions
            for note in notes or [Decision("graph", graph.name, "layouts left alone", why, plugin=plugin)]:
                log.note(note)
            return graph
        if why:
            plan = replace(plan, decisions=(Decision("graph", graph.name, "layouts planned", why),))
    graph = apply_layout(graph, plan, plugin, log.note, needs.of)
    log.attachments.update(plan.attachments)
    return fold_frozen(graph) if graph.frozen_values else graph  # the conversions of weights


def _kept_whole(compiler: Compiler) -> frozenset[Any]:
    """Ops that are lowered as they are, or that a plugin wants whole."""
    rules = compiler.plugins.decompositions(options=compiler.options).items()
    return frozenset(lowerings(compiler)).union(op for op, rule in rules if rule is None)


def _layout_needs(compiler: Compiler, lowered: Iterable[Any]) -> LayoutNeeds:
    return LayoutNeeds(compiler.plugins.layout_needs(), frozenset(lowered))


def lower_graph(graph: Graph, compiler: Compiler, log: Log) -> Program:
    """Returns the program of a graph that is final: ATen ops become loops and library calls."""
    with compiler.stage("lower", log):
        table, gate = lowerings(compiler), log.gate
        needs = _layout_needs(compiler, table).of
        program = lower(graph, table, compiler.options, needs, log.note, compiler.target_of, gate)
        # What a lowering leaves unchecked would be read or written outside of a buffer: that is looked at always.
        owners = owners_of(graph, table)
        _verify(program, graph, RULES if compiler.options.debug or owners else (positions_inside,), owners)
    logs.show("program", graph.name, lambda: str(program))
    return program


def schedule_program(graph: Graph, program: Program, compiler: Compiler, log: Log) -> Schedule:
    """Returns the schedule of a lowered graph, with cases for the sizes that the options name."""
    grid = size_grid(graph, program, compiler.options.sizes, log)
    first = _with_regions(_schedule(program, compiler, log), compiler, log)
    if grid is None:
        return first
    others = {}
    for number, resized in other_sizes(grid, graph, program).items():
        with case_log(log, grid.at(number)) as own:
            other = _schedule(resized, compiler, own)
        others[number] = of_same_communication(first, other, grid.at(number), log)
    return with_cases(first, grid, others)


def _with_regions(schedule: Schedule, compiler: Compiler, log: Log) -> Schedule:
    """Returns the schedule of a program with those of its regions."""
    program = schedule.program
    if not program.regions:
        return schedule
    regions = {n: _with_regions(_schedule(p, compiler, log), compiler, log) for n, p in program.regions.items()}
    program = replace(program, regions={name: each.program for name, each in regions.items()})
    return replace(schedule, program=program, regions=regions)


def _schedule(program: Program, compiler: Compiler, log: Log) -> Schedule:
    """From a program to its schedule, both for the program's hints."""
    options, plugins = compiler.options, compiler.plugins
    # Core's passes are checked in debug mode; a plugin's always: it must not be able to make a program wrong.
    known = passed_on(compiler, log)
    check: dict[str, Any] = {"verify": verify, "verify_builtin": options.debug, "watch": log.pass_ran}
    check["attach"] = log.attachments.__setitem__
    with compiler.stage("program passes", log):
        program = plugins.run_passes("program", program, **known, **check, accept=compiler.accept_program)
        program = choose_contractions(program, compiler, log)
    with compiler.stage("schedule", log):
        schedule = make_schedule(program, **known)
        check |= {"verify": check_schedule}
        return plugins.run_passes("schedule", schedule, **known, **check, accept=check_steps)


def schedule_prepared(graph: Graph, compiler: Compiler, log: Log) -> Schedule:
    """Returns the schedule of a graph that is final: what `lower_graph` and `schedule_program` make of it."""
    return schedule_program(graph, lower_graph(graph, compiler, log), compiler, log)


def schedule_graph(graph: Graph, compiler: Compiler, log: Log | None = None) -> Schedule:
    """Returns the schedule of a graph, by the stages that need no compiler and no device."""
    log = log or Log()
    return schedule_prepared(prepare_graph(graph, compiler, log), compiler, log)


def allowed(compiler: Compiler, option: str, gate: Gate) -> Compiler:
    """Returns the compiler, with the option switched off where the option `veto` names it."""
    options = compiler.options
    if not getattr(options, option) or gate.take({"memory_planning": "plan_memory"}.get(option, option)):
        return compiler
    return replace(compiler, options=options.replace(**{option: False}))


def plan_schedule(schedule: Schedule, compiler: Compiler, log: Log | None = None) -> ExecutionPlan:
    """Returns the plan, which the wrapper prints, of a schedule that is final and of its cases."""
    log = log or Log()

    def estimate(step: Step, program: Program) -> Estimate | None:
        return compiler.plugins.estimate_runtime(step, compiler.target_of(step.device), program, compiler.options)

    with compiler.stage("plan", log):
        plan = plan_execution(
            schedule,
            estimate=estimate,
            options=allowed(compiler, "memory_planning", log.gate).options,
            note=log.note,
            target_of=compiler.target_of,
        )
        if compiler.options.debug:
            check_plan(plan)
    return plan


def _verify(program: Program, graph: Graph, rules: Sequence[Rule], owners: Mapping[str, Blamed]) -> None:
    try:
        verify(program, rules)
    except IllegalProgram as error:
        blame_lowering(error, program, owners)
        raise VerifyError("program", graph.name, error.complaints) from error
