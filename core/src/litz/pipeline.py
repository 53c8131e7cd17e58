"""The whole compiler on one page: capture -> lower -> schedule -> plan -> generate -> build, and the hooks between.

    dynamo's graph --capture--> Graph --lower--> Program --schedule--> Schedule --plan--> ExecutionPlan
                                              --generate--> KernelSources, WrapperSource --build--> CompiledGraph

Each stage is a function of its input, the options and the plugins; what it decided is in what it returns or in the
report. `compile_backend` is what `litz.backend` calls.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from litz import graph_cache, logs, progress
from litz import report as reports
from litz.building import (
    build,
    describe_code,
    generate,
    graph_of,
    other_files,
    programs_of,
)
from litz.by_size import merge_equal, schedule_by_size
from litz.capture import torch_api
from litz.capture.aot import compile_with_aot
from litz.capture.decompositions import drawn_in_eager
from litz.capture.graph import Graph
from litz.capture.kept import GraphStore
from litz.capture.layout import apply_layout, changed_strides
from litz.capture.layout_needs import LayoutNeeds
from litz.capture.passes.check_pass import check_pass
from litz.capture.passes.decompose import added_ops, decompose
from litz.capture.passes.freezing import fold_frozen, freeze
from litz.capture.promised import checked
from litz.capture.provenance import by_position, mark_positions, positions_of
from litz.choosing import choose_contractions
from litz.codegen.wrapper import WrapperSource, annotated, generate_wrapper, named_of, words_of
from litz.collecting import young_objects_only
from litz.compiler import Compiler, make_compiler
from litz.errors import VerifyError
from litz.execution import ExecutionPlan, check_plan, plan_execution
from litz.failures import eager_warning, explain_failure
from litz.ir import Program
from litz.ir.verify import RULES, IllegalProgram, Rule, positions_inside, verify
from litz.keeping import Kept, from_cache, graph_store, keep, kernel_texts, publish
from litz.loading import Loads, load_kernels, prepare
from litz.lower import lower
from litz.lower.promised import blame as blame_lowering
from litz.lower.promised import owners as owners_of
from litz.options import distributed_rank
from litz.report.changes import Changes
from litz.report.effects import Effects
from litz.report.log import Log
from litz.report.unmet import unmet
from litz.report.write import kernel_place
from litz.runtime.background import Replaceable
from litz.runtime.compiled_graph import CompiledGraph, Entry
from litz.runtime.frozen import refusing
from litz.schedule import check_schedule, make_schedule
from litz.schedule.check import check_steps
from litz.schedule.schedule import Schedule, Step
from litz.starting_over import starting_over
from litz.tuning import Lowered, Tuning, Variant
from litz.way_out import with_way_out
from litz.wrapper_bench import wrapper_data
from litz_plugins import Decision, Estimate, Gate, KernelSource, LayoutPlan
from litz_plugins.blame import Blamed
from litz_plugins.manager import Plugins


def compile_backend(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    plugins: Plugins | None = None,
) -> Callable[..., Any]:
    """Compile what dynamo captured. See `litz.backend.litz`."""
    logs.register()

    def compiled(compiler: Compiler) -> Callable[..., Any]:
        freezing, store = compiler.options.freezing, graph_store(gm, compiler)
        compiler.check_whole()
        with progress.BOARD.job("", _shows_progress(compiler)):
            return capture(gm, example_inputs, lambda graph: compile_graph(graph, compiler), compiler, freezing, store)

    return starting_over(compiled, replace(make_compiler(mode, options, plugins), frame=torch_api.frame_of(gm)))


def _shows_progress(compiler: Compiler) -> bool:
    rank, _ = torch_api.rank() or (distributed_rank(), None)
    return compiler.options.progress and progress.can_be_seen(rank)


def capture(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    compile_graph: Callable[[Graph], Callable[[list[Any]], Sequence[Any]]],
    compiler: Compiler,
    freezing: bool = False,
    store: GraphStore | None = None,
) -> Callable[..., Any]:
    """What dynamo captured, each Graph of it compiled by `compile_graph`. See `compile_with_aot`."""
    return compile_with_aot(
        gm,
        example_inputs,
        compile_graph=compile_graph,
        decompositions=torch_api.Later(lambda: decompositions(compiler)),
        freezing=freezing,
        eager_random=compiler.options.fallback_random,
        store=store,
    )


def decompositions(compiler: Compiler) -> dict[Any, Callable[..., Any]]:
    """The table for capture. A plugin that registers None for an op keeps it whole."""
    rules = compiler.plugins.decompositions()
    compiler.check_whole()
    table = {op: checked(op, rule) for op, rule in rules.items() if rule is not None}
    return drawn_in_eager(table) if compiler.options.fallback_random else table


def lowerings(compiler: Compiler) -> Mapping[Any, Callable[..., Any]]:
    """The table for lowering. What is not in the table is a library call."""
    table = compiler.plugins.lowerings()
    return drawn_in_eager(table) if compiler.options.fallback_random else table


@dataclass(frozen=True)
class Made:
    """What became of a graph, stage by stage."""

    graph: Graph
    plan: ExecutionPlan
    sources: Mapping[str, KernelSource]
    wrapper: WrapperSource
    compiled: CompiledGraph


def compile_graph(graph: Graph, compiler: Compiler) -> Callable[[list[Any]], Sequence[Any]]:
    """One graph, from the graph cache or through all stages; begun anew, without it, where a plugin fails that may be
    left out. With `fallback="eager"` a graph that litz fails on runs as it was captured."""

    def compiled(own: Compiler) -> Callable[[list[Any]], Sequence[Any]]:
        made = _compile_graph(graph, own)
        # Who traced this had all plugins: AOTAutograd's cache must not lead others who have them to a graph without.
        if not isinstance(made, CompiledGraph):
            return made
        made = with_way_out(made, graph, own, lambda: compile_graph(graph, compiler))
        return replace(made, key="") if own is not compiler else made

    return starting_over(compiled, compiler)


def _compile_graph(graph: Graph, compiler: Compiler) -> Callable[[list[Any]], Sequence[Any]]:
    log = Log(changes=Changes(compiler.options.report_dir is not None), effects=Effects(compiler.is_watched))
    try:
        # A backward is compiled when it is first called.
        with progress.BOARD.job(graph.name, _shows_progress(compiler)) as job, young_objects_only():
            log.watch, job.within = job.at, lambda: compiler.plugins.slow_call
            with log.stage("graph cache"):
                found = graph_cache.look_up(graph, compiler)
            if found.found and not compiler.options.debug:
                compiled = from_cache(found, graph, compiler, log)
                if compiled is not None:
                    return compiled
            return make_graph_code(graph, compiler, log, found, job.built).compiled
    except Exception as error:
        if torch_api.is_restart(error):
            raise
        compiler.check_whole()
        failure = explain_failure(error, graph, log.running, compiler.options)
        if compiler.options.fallback != "eager":
            if failure is error:
                raise
            raise failure from error
        warnings.warn(eager_warning(graph, failure), stacklevel=2)
        return _eager(graph)


def make_graph_code(
    graph: Graph,
    compiler: Compiler,
    log: Log | None = None,
    found: graph_cache.Lookup = graph_cache.OFF,
    built: Callable[[int], None] = lambda kernels: None,
) -> Made:
    """One graph, through all stages; what a stage raises is passed on. found: what the graph cache says of it; what
    becomes of it is kept there if it has a key. built: called once for each kernel that is built, with the number of
    all."""
    log = log or Log()
    known = torch_api.guard_count(graph.shape_env)
    compiler.plugins.compile_started(graph, compiler.options)
    if compiler.start_seconds:  # the first graph's
        log.seconds["start"] = compiler.start_seconds.pop()
    if found.key is not None and not found.found:  # the kernels of a graph that is never kept may all be there
        prepare(graph, compiler)

    mark_positions(graph)
    tuning = Tuning(graph, compiler, log, partial(_make_variant, graph))
    chosen = tuning.chosen()
    try:
        made = _make_code(graph, chosen, compiler, found, known, built)
    finally:
        log.running = chosen.log.running
    return replace(made, compiled=_improving(graph, made.compiled, tuning, compiler))


def _make_variant(graph: Graph, compiler: Compiler, log: Log, lowered: Lowered | None = None) -> Variant:
    """The first half of a compile: from the graph, or from where it was lowered before, to a schedule."""
    if lowered is None:
        lowered = lower_graph(graph, compiler, log)
        lowered = replace(lowered, log=log.branch())  # other variants begin here
    else:
        log = lowered.log.branch()
        log.gate.preferences = compiler.preferences
    return Variant(lowered, schedule_lowered(lowered, compiler, log), log)


def _improving(graph: Graph, compiled: CompiledGraph, tuning: Tuning, compiler: Compiler) -> CompiledGraph:
    """What a graph became, with the search in the background that tuning asked for."""
    job = tuning.job
    if job is None:
        return compiled

    def search(stopped: Callable[[], bool]) -> Entry | None:
        found = job(stopped)
        if found is None:
            return None
        other = _make_code(graph, found, compiler).compiled
        if other.output_strides != compiled.output_strides:
            return None  # the backward is compiled for what is saved as it is now
        return other.entry

    return replace(compiled, entry=Replaceable(compiled.entry, search, graph.name))


def _make_code(
    graph: Graph,
    variant: Variant,
    compiler: Compiler,
    found: graph_cache.Lookup = graph_cache.OFF,
    known: int = 0,
    built: Callable[[int], None] = lambda kernels: None,
) -> Made:
    """The second half of a compile: from a schedule to code that runs. found: what the graph cache says of the graph.
    known: how many guards there were before the compile. built: as of `make_graph_code`."""
    plugins, log = compiler.plugins, variant.log
    prepared = variant.lowered.graph
    logs.show("graph", graph.name, lambda: str(prepared))
    plan = plan_schedule(variant.schedule, compiler, log)
    logs.show("schedule", graph.name, lambda: "\n".join(map(str, plan.variants)))
    allowed = _allowed(compiler, "cuda_graphs", log.gate)
    with Loads(allowed) as loads:
        with log.stage("generate"):  # each kernel's build begins as soon as there is its text
            plan, sources = merge_equal(plan, generate(plan, compiler, log.note, loads.begin), log.note)
            wrapper, words, programs = generate_wrapper(plan, sources), words_of(plan), programs_of(plan)
        commented = annotated(wrapper, words)
        logs.show("output_code", graph.name, lambda: commented.text)
        logs.show("kernel_code", graph.name, lambda: kernel_texts(sources))
        named = named_of(plan, wrapper, positions_of(prepared), by_position(graph))
        entry = describe_code(plan, sources, wrapper, allowed, named)
        with log.stage("build"):
            loaded = load_kernels(loads, entry, programs, words, built)

    compiler.check_whole()  # before anything is kept under a key that names all plugins
    log.running = "report"
    for decision in unmet(log.gate, compiler.preferences):
        log.note(decision)
    runnable = ""
    if compiler.options.report_dir is not None:
        suffixes = {name: f".{source.suffix or source.language}" for name, source in sources.items()}
        kernel_places = {name: kernel_place(name, suffix) for name, suffix in suffixes.items()}
        runnable = wrapper_data(plan, sources, kernel_places, wrapper.objects, compiler.options)
    report = reports.make_report(
        graph,
        plan,
        None,
        sources,
        log.decisions,
        plugins=plugins.names(),
        attachments=log.attachments,
        gate=log.gate,
        contractions=log.contractions,
        wrapper_data=runnable,
    )
    strides, others = changed_strides(graph, prepared), other_files(plan, entry, compiler.options)
    with log.stage("keep"):
        code, found = keep(entry, Kept(graph, known, strides, report, others, programs), loaded, allowed, found, log)
    compiled = graph_of(code, graph.name, words, strides, "" if found.key is None else found.key.digest)
    if graph.frozen_values:
        names = graph.input_names
        frozen = [(at, names[at], value) for at, value in graph.frozen_values.items()]
        compiled = compiled.inside(lambda entry: refusing(entry, graph.name, frozen))
    publish(report, compiled, found, compiler, log, sources)
    return Made(graph, plan, sources, commented, compiled)


def schedule_graph(graph: Graph, compiler: Compiler, log: Log | None = None) -> Schedule:
    """The stages that need no compiler and no device: from the graph to its schedule."""
    log = log or Log()
    return schedule_prepared(prepare_graph(graph, compiler, log), compiler, log)


def prepare_graph(graph: Graph, compiler: Compiler, log: Log) -> Graph:
    """The graph after the graph passes, its tensors in the layouts that a plugin chose."""
    options, plugins = compiler.options, compiler.plugins
    log.gate = Gate(
        graph.name, compiler.vetoes, log.gate.taken, log.gate.left_out, compiler.preferences, log.gate.weighed
    )
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
    """The graph with a plan of layouts, unless that is to be left alone."""
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
    """From a graph that is final to its schedule, and to those for other sizes where the options name some."""
    return schedule_lowered(Lowered(graph, _lowered(graph, compiler, log), log), compiler, log)


def lower_graph(graph: Graph, compiler: Compiler, log: Log) -> Lowered:
    """The stages that depend on the graph alone: its passes, layouts and lowering."""
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
    """From a program to its schedule, and to those for other sizes."""
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


def _allowed(compiler: Compiler, option: str, gate: Gate) -> Compiler:
    """The compiler, with an option switched off that was vetoed."""
    options = compiler.options
    if not getattr(options, option) or gate.take({"memory_planning": "plan_memory"}.get(option, option)):
        return compiler
    return replace(compiler, options=options.replace(**{option: False}))


def plan_schedule(schedule: Schedule, compiler: Compiler, log: Log | None = None) -> ExecutionPlan:
    """The plan that the wrapper prints: of a schedule that is final, and of its cases."""
    log = log or Log()

    def estimate(step: Step, program: Program) -> Estimate | None:
        return compiler.plugins.estimate_runtime(step, compiler.target_of(step.device), program, compiler.options)

    with log.stage("plan"):
        plan = plan_execution(
            schedule,
            estimate=estimate,
            options=_allowed(compiler, "memory_planning", log.gate).options,
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


def schedule_only(
    fn: Callable[..., Any],
    fake_args: Sequence[Any],
    options: Mapping[str, Any] | None = None,
    plugins: Plugins | None = None,
    dynamic: bool | None = None,
    log: Log | None = None,
) -> list[Schedule]:
    """The schedules of every graph in `fn(*fake_args)`, none of them built: works for CUDA tensors without a GPU.

    The arguments are fake tensors of one FakeTensorMode (or real ones); the graphs run on them as they were captured.
    dynamic: as in torch.compile. log: for the decisions. `plan_schedule` makes the plan of each.
    """
    log = log or Log()
    compiler = make_compiler(None, options, plugins)
    schedules: list[Schedule] = []

    def scheduled(graph: Graph, compiler: Compiler) -> Graph:
        prepared = prepare_graph(graph, compiler, log)
        schedules.append(schedule_prepared(prepared, compiler, log))
        return prepared

    def keep(graph: Graph) -> Callable[[list[Any]], Sequence[Any]]:
        prepared = starting_over(partial(scheduled, graph), compiler)
        eager = _eager(graph)

        def run(args: list[Any]) -> Sequence[Any]:
            with torch_api.fake_mode_around(args):  # what the graph makes itself has to be fake too
                return eager(args)

        run.output_strides = changed_strides(graph, prepared)  # type: ignore[attr-defined]
        return run

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return starting_over(lambda own: capture(gm, inputs, keep, own), compiler)

    torch.compile(fn, backend=backend, dynamic=dynamic)(*fake_args)
    return schedules


def _eager(graph: Graph) -> Callable[[list[Any]], Sequence[Any]]:
    def run(args: list[Any]) -> Sequence[Any]:
        values = list(args)
        args.clear()
        outputs: Sequence[Any] = torch.fx.Interpreter(graph.module).run(*values, enable_io_processing=False)
        return outputs

    return run


__all__ = [
    "Compiler",
    "Made",
    "build",
    "compile_backend",
    "compile_graph",
    "decompositions",
    "from_cache",
    "generate",
    "make_compiler",
    "make_graph_code",
    "plan_schedule",
    "schedule_graph",
    "schedule_only",
]
