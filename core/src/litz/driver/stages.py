"""The stages in front of code: a function for each, from its noun, the compiler and the log to the next noun.

    dynamo's graph --capture--> Graph --prepare_graph--> Graph --lower_graph--> Program
                   --schedule_lowered--> Schedule --plan_schedule--> ExecutionPlan

`litz.pipeline` calls them one after the other; `litz.driver.code` has the stages behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from litz import logs
from litz.capture import torch_api, written_attention
from litz.capture.aot import compile_with_aot
from litz.capture.decompositions import drawn_in_eager
from litz.capture.graph import Graph
from litz.capture.kept import GraphStore
from litz.capture.layout import apply_layout
from litz.capture.layout_needs import LayoutNeeds
from litz.capture.passes.check_pass import check_pass
from litz.capture.passes.decompose import added_ops, decompose
from litz.capture.passes.freezing import fold_frozen, freeze
from litz.capture.promised import checked
from litz.driver.compiler import Compiler
from litz.driver.size_cases import schedule_by_size
from litz.driver.template_choice import choose_contractions
from litz.driver.variants import Lowered
from litz.errors import VerifyError
from litz.execution import ExecutionPlan, check_plan, plan_execution
from litz.ir import Program
from litz.ir.verify import RULES, IllegalProgram, Rule, positions_inside, verify
from litz.lower import lower
from litz.lower.promised import blame as blame_lowering
from litz.lower.promised import owners as owners_of
from litz.report.log import Log
from litz.schedule import check_schedule, make_schedule
from litz.schedule.check import check_steps
from litz.schedule.schedule import Schedule, Step
from litz_plugins import Decision, Estimate, Gate, LayoutPlan
from litz_plugins.blame import Blamed
from litz_plugins.vetoes import key_of


def capture(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    compile_graph: Callable[[Graph], Callable[[list[Any]], Sequence[Any]]],
    compiler: Compiler,
    freezing: bool = False,
    store: GraphStore | None = None,
    seen_by_modes: bool = False,
) -> Callable[..., Any]:
    """Returns a callable for the module that dynamo captured: `compile_graph` compiles each of its Graphs. See
    `compile_with_aot`."""
    return compile_with_aot(
        gm,
        example_inputs,
        compile_graph=compile_graph,
        decompositions=torch_api.Later(lambda: decompositions(compiler)),
        freezing=freezing,
        eager_random=compiler.options.fallback_random,
        store=store,
        forbids=lambda graph, softmax: compiler.vetoes.forbid(graph, written_attention.MAKER, softmax),
        target_of=compiler.target_of,
        seen_by_modes=seen_by_modes,
    )


def decompositions(compiler: Compiler) -> dict[Any, Callable[..., Any]]:
    """Returns the decompositions for capture, by op. An op for which a plugin registers None stays whole."""
    rules = compiler.plugins.decompositions()
    compiler.check_whole()
    table = {op: checked(op, rule) for op, rule in rules.items() if rule is not None}
    return drawn_in_eager(table) if compiler.options.fallback_random else table


def lowerings(compiler: Compiler) -> Mapping[Any, Callable[..., Any]]:
    """Returns the lowerings, by op. An op that is not in the table becomes a library call."""
    table = compiler.plugins.lowerings()
    return drawn_in_eager(table) if compiler.options.fallback_random else table


def schedule_graph(graph: Graph, compiler: Compiler, log: Log | None = None) -> Schedule:
    """Returns the schedule of a graph, by the stages that need no compiler and no device."""
    log = log or Log()
    return schedule_prepared(prepare_graph(graph, compiler, log), compiler, log)


def prepare_graph(graph: Graph, compiler: Compiler, log: Log) -> Graph:
    """Returns the graph after the graph passes, with its tensors in the layouts that a plugin chose."""
    options, plugins = compiler.options, compiler.plugins
    log.gate = Gate(
        graph.name, compiler.vetoes, log.gate.taken, log.gate.left_out, compiler.preferences, log.gate.weighed
    )
    for softmax, why in graph.attentions.items():
        if log.gate.take(written_attention.MAKER, softmax):
            key = key_of(graph.name, written_attention.MAKER, softmax)
            log.note(Decision("graph", softmax, "one call of scaled_dot_product_attention", why, key=key))
    with log.stage("graph passes"):
        if options.freezing:
            graph = freeze(graph)
            if not graph.frozen_values:
                reason = "only inference graphs are, of parameters whose values are known (torch.no_grad())"
                log.note(Decision("graph", graph.name, "parameters not frozen", reason))
        watched: dict[str, Any] = {"accept": check_pass, "watch": log.pass_ran}
        passed = plugins.run_passes("graph", graph, **_passed_on(compiler, log), **watched)
        added = added_ops(graph, passed)
        graph = decompose(passed, added, decompositions(compiler), _kept_whole(compiler)) if added else passed
        needs = _layout_needs(compiler)
        planned = plugins.select_layout(graph, options, needs.of, compiler.target_of)
        if planned is not None:
            with plugins.blaming(planned[0], "litz_select_layout"):
                graph = _with_layouts(graph, *planned, log, needs)
    compiler.check_whole()
    return graph


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
    rules = compiler.plugins.decompositions().items()
    return frozenset(lowerings(compiler)).union(op for op, rule in rules if rule is None)


def _layout_needs(compiler: Compiler) -> LayoutNeeds:
    return LayoutNeeds(compiler.plugins.layout_needs(), frozenset(lowerings(compiler)))


def schedule_prepared(graph: Graph, compiler: Compiler, log: Log) -> Schedule:
    """Returns the schedule of a graph that is final, with cases for other sizes where the options name some."""
    return schedule_lowered(Lowered(graph, _lowered(graph, compiler, log), log), compiler, log)


def lower_graph(graph: Graph, compiler: Compiler, log: Log) -> Lowered:
    """Runs the stages that depend on the graph alone: its passes, layouts and lowering."""
    prepared = prepare_graph(graph, compiler, log)
    return Lowered(prepared, _lowered(prepared, compiler, log), log)


def _lowered(graph: Graph, compiler: Compiler, log: Log) -> Program:
    with log.stage("lower"):
        table, needs, gate = lowerings(compiler), _layout_needs(compiler).of, log.gate
        program = lower(graph, table, compiler.options, needs, log.note, compiler.target_of, gate)
        # What a lowering leaves unchecked would be read or written outside of a buffer: that is looked at always.
        owners = owners_of(graph, table)
        _verify(program, graph, RULES if compiler.options.debug or owners else (positions_inside,), owners)
    logs.show("program", graph.name, lambda: str(program))
    return program


def schedule_lowered(lowered: Lowered, compiler: Compiler, log: Log) -> Schedule:
    """Returns the schedule of a lowered program, with cases for the sizes that the options name."""
    return schedule_by_size(
        lowered.graph,
        lowered.program,
        compiler.options.sizes,
        lambda program, log: _schedule_program(program, compiler, log),
        log,
    )


def _schedule_program(program: Program, compiler: Compiler, log: Log) -> Schedule:
    """From a program to its schedule, both for the program's hints."""
    options, plugins = compiler.options, compiler.plugins
    with log.stage("program passes"):
        # Core's passes are checked in debug mode; a plugin's always: it must not be able to make a program wrong.
        known = _passed_on(compiler, log)
        check: dict[str, Any] = {"verify": verify, "verify_builtin": options.debug, "watch": log.pass_ran}
        program = plugins.run_passes("program", program, **known, **check, accept=compiler.accept_program)
        program = choose_contractions(program, compiler, log)
    with log.stage("schedule"):
        schedule = make_schedule(program, **known)
        schedule = plugins.run_passes(
            "schedule", schedule, **known, **check | {"verify": check_schedule}, accept=check_steps
        )
    compiler.check_whole()
    return schedule


def _passed_on(compiler: Compiler, log: Log) -> dict[str, Any]:
    """What every pass, and fusion, is handed beside its noun."""
    shared = {"options": compiler.options, "note": log.note, "target_of": compiler.target_of, "ask": compiler.ask}
    return {**shared, "gate": log.gate}


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

    with log.stage("plan"):
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
