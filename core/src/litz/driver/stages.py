"""The stages in front of code: a function for each, from its noun, the compiler and the log to the next noun.

    dynamo's graph --capture--> Graph --prepare_graph--> Graph --lower_graph--> Program
                   --schedule_program--> Schedule --plan_schedule--> ExecutionPlan

`litz.pipeline` calls them one after the other; `litz.driver.code` has the stages behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from litz import logs
from litz.capture import torch_api
from litz.capture.aot import compile_with_aot
from litz.capture.decompositions import drawn_in_eager
from litz.capture.earlier import EarlierStages
from litz.capture.graph import Graph
from litz.capture.joint import JointGraph
from litz.capture.joint.check import check_joint, check_modules
from litz.capture.kept import GraphStore
from litz.capture.layout import apply_layout
from litz.capture.layout_needs import LayoutNeeds
from litz.capture.passes.check_pass import check_pass
from litz.capture.passes.decompose import added_ops, decompose
from litz.capture.passes.freezing import fold_frozen, freeze
from litz.capture.promised import checked
from litz.driver.compiler import Compiler
from litz.driver.size_cases import case_log, of_same_communication, other_sizes, size_grid, with_cases
from litz.driver.template_choice import choose_contractions
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
from litz_plugins.records import Stage


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
        earlier=partial(earlier_stages, compiler),
        seen_by_modes=seen_by_modes,
    )


def earlier_stages(compiler: Compiler, label: str) -> EarlierStages:
    """Returns the stages in front of the graphs of what dynamo captured, as `label` names it. What they decide is on
    the record of the forward or inference graph, and has the forward's name in its keys."""
    log = Log(watchers=compiler.watchers)
    log.gate = Gate(f"{label}_forward", compiler.vetoes, preferences=compiler.preferences)
    plugins, options = compiler.plugins, compiler.options

    def run(stage: Stage, noun: Any) -> Any:
        plugins.settle(options)  # who is left out for what it registers must have had no part in the trace
        with compiler.stage("partition" if stage == "partitioned" else f"{stage} passes", log):
            known: dict[str, Any] = {"accept": check_joint, "watch": log.pass_ran}
            return plugins.run_passes(stage, noun, **_passed_on(compiler, log), **known)

    def partition(joint: JointGraph) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
        with compiler.stage("partition", log):
            asked = plugins.asks("litz_partition")  # a plugin's partitioner may change the graph that it is handed
            found = plugins.partition(joint.copy() if asked else joint, options, partial(check_modules, joint))
        if found is None:
            return torch_api.min_cut(joint)
        plugin, halves = found
        if not plugins.is_builtin(plugin):
            log.note(Decision("partitioned", joint.name, f"the partitioner of {plugin}", "it answered", plugin=plugin))
        return halves

    return EarlierStages(run, partition, log)


def decompositions(compiler: Compiler) -> dict[Any, Callable[..., Any]]:
    """Returns the decompositions for capture, by op. An op for which a plugin registers None stays whole."""
    compiler.plugins.settle(compiler.options)  # all they register: who is left out must have had no part in the trace
    rules = compiler.plugins.decompositions()
    compiler.check_whole()
    table = {op: checked(op, rule) for op, rule in rules.items() if rule is not None}
    return drawn_in_eager(table) if compiler.options.fallback_random else table


def lowerings(compiler: Compiler) -> Mapping[Any, Callable[..., Any]]:
    """Returns the lowerings, by op. An op that is not in the table becomes a library call."""
    table = compiler.plugins.lowerings()
    return drawn_in_eager(table) if compiler.options.fallback_random else table


def prepare_graph(graph: Graph, compiler: Compiler, log: Log) -> Graph:
    """Returns the graph after the graph passes, with its tensors in the layouts that a plugin chose."""
    options, plugins = compiler.options, compiler.plugins
    log.gate = Gate(
        graph.name, compiler.vetoes, log.gate.taken, log.gate.left_out, compiler.preferences, log.gate.weighed
    )
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
        watched: dict[str, Any] = {"accept": check_pass, "watch": log.pass_ran}
        passed = plugins.run_passes("graph", graph, **_passed_on(compiler, log), **watched)
        added = added_ops(graph, passed)
        graph = decompose(passed, added, decompositions(compiler), _kept_whole(compiler)) if added else passed
        needs = _layout_needs(compiler, lowerings(compiler))
        planned = plugins.select_layout(graph, options, needs.of, compiler.target_of, needs.lowered)
        if planned is not None:
            with plugins.blaming(planned[0], "litz_select_layout"):
                graph = _with_layouts(graph, *planned, log, needs)
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
    first = _schedule(program, compiler, log)
    if grid is None:
        return first
    others = {}
    for number, resized in other_sizes(grid, graph, program).items():
        with case_log(log, grid.at(number)) as own:
            other = _schedule(resized, compiler, own)
        others[number] = of_same_communication(first, other, grid.at(number), log)
    return with_cases(first, grid, others)


def _schedule(program: Program, compiler: Compiler, log: Log) -> Schedule:
    """From a program to its schedule, both for the program's hints."""
    options, plugins = compiler.options, compiler.plugins
    # Core's passes are checked in debug mode; a plugin's always: it must not be able to make a program wrong.
    known = _passed_on(compiler, log)
    check: dict[str, Any] = {"verify": verify, "verify_builtin": options.debug, "watch": log.pass_ran}
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
