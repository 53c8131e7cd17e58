"""The whole compiler on one page: a graph goes down this page, and each stage is called by its name.

    dynamo's graph --capture--> Graph --prepare_graph--> Graph --lower_graph--> Program --schedule_program--> Schedule
                   --plan_schedule--> ExecutionPlan --generate, generate_wrapper--> KernelSources, WrapperSource
                   --load_kernels--> launch functions --keep--> CompiledGraph

Each stage is a function of its input, the options and the plugins; what it decided is in what it returns or in the
report. `compile_backend` compiles what dynamo captured; AOTAutograd calls `compile_graph` for each graph that it makes.
What stands around the stages (retries, failures, the graph cache) is in `litz.driver`. `litz.backend` begins at
`litz.driver.entry` and imports this page for the first graph that is in no cache.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from litz import graph_cache, logs
from litz.capture import torch_api
from litz.capture.eager import run_eagerly
from litz.capture.graph import Graph
from litz.capture.layout import changed_strides
from litz.capture.provenance import by_position, mark_positions, positions_of
from litz.codegen.wrapper import WrapperSource, annotated, generate_wrapper, named_of, words_of
from litz.driver.code import build, describe_code, generate, other_files, programs_of
from litz.driver.code_loading import graph_of
from litz.driver.compiler import Compiler, make_compiler
from litz.driver.dry_run import schedule_only
from litz.driver.eager_fallback import with_way_out
from litz.driver.entry import enter
from litz.driver.failures import eager_warning, explain_failure, may_run_eagerly
from litz.driver.garbage import young_objects_only
from litz.driver.graph_store import Kept, from_cache, keep, kernel_texts, publish
from litz.driver.kernel_loading import Loads, load_kernels, prepare
from litz.driver.retry import starting_over
from litz.driver.size_cases import merge_equal
from litz.driver.stages import (
    allowed,
    decompositions,
    lower_graph,
    plan_schedule,
    prepare_graph,
    schedule_graph,
    schedule_program,
)
from litz.driver.unused_options import recording_notes
from litz.driver.variants import Lowered, Search, Variant, choose_variant
from litz.execution import ExecutionPlan
from litz.report.log import Log
from litz.report.make import make_report
from litz.report.unmet import unmet
from litz.runtime.background import Replaceable
from litz.runtime.compiled_graph import CompiledGraph, Entry
from litz.runtime.frozen import refusing
from litz_plugins import VETOED, KernelSource
from litz_plugins.manager import Plugins

Compiled = Callable[[list[Any]], Sequence[Any]]
"""A function that runs a graph: from its inputs, which it may clear from the list, to its outputs."""


# ---------------------------------------------------------------------------------------------------- dynamo calls this


def compile_backend(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    plugins: Plugins | None = None,
) -> Callable[..., Any]:
    """Compiles what dynamo captured, and returns the function that dynamo calls. mode, options: as `torch.compile` has
    them. plugins: instead of the installed ones. Errors: LitzError, of the stage that failed."""
    return enter(gm, example_inputs, compile_graph, mode, options, plugins)


# ----------------------------------------------------------------------------------------------- AOTAutograd calls this


def compile_graph(graph: Graph, compiler: Compiler) -> Compiled:
    """Returns one graph, from the graph cache or through all stages; begun anew, without it, where a plugin fails that
    may be left out. With `fallback="eager"` a graph that litz itself fails on runs as it was captured."""
    made = starting_over(partial(_find_or_make, graph), compiler)
    if not isinstance(made, CompiledGraph):
        return made
    whole = compiler.fresh()
    made = with_way_out(made, graph, whole, lambda: compile_graph(graph, compiler))
    # Who traced this had all plugins: AOTAutograd's cache must not lead others who have them to a graph without.
    return replace(made, key="") if whole is not compiler else made


def _find_or_make(graph: Graph, compiler: Compiler) -> Compiled:
    log = Log()
    try:
        # A backward is compiled when it is first called.
        with compiler.watched(graph.name) as log.watchers, young_objects_only():
            with log.stage("graph cache"):
                found = graph_cache.look_up(graph, compiler)
            if found.found and not compiler.options.debug:
                compiled = from_cache(found, graph, compiler, log)
                if compiled is not None:
                    return compiled
            return make_graph_code(graph, compiler, log, found).compiled
    except Exception as error:
        if torch_api.is_restart(error):
            raise
        compiler.check_whole()
        failure = explain_failure(error, graph, log.running, compiler.options, compiler.plugins)
        if not may_run_eagerly(failure, compiler.options):
            if failure is error:
                raise
            raise failure from error
        warnings.warn(eager_warning(graph, failure), stacklevel=2)
        return run_eagerly(graph)


# ----------------------------------------------------------------------------------------------------------- the stages


@dataclass(frozen=True)
class Made:
    """The graph and what each stage made of it: plan, sources, wrapper, compiled graph."""

    graph: Graph
    plan: ExecutionPlan
    sources: Mapping[str, KernelSource]
    wrapper: WrapperSource
    compiled: CompiledGraph


def make_graph_code(
    graph: Graph, compiler: Compiler, log: Log | None = None, found: graph_cache.Lookup = graph_cache.OFF
) -> Made:
    """One graph, through all stages; what a stage raises is passed on. found: what the graph cache says of it; what
    becomes of it is kept there if it has a key."""
    log = log or Log()
    known = torch_api.guard_count(graph.shape_env)
    compiler.plugins.compile_started(graph, compiler.options)
    if compiler.start_seconds:  # the first graph's
        log.seconds["start"] = compiler.start_seconds.pop()
    if found.key is not None and not found.found:  # the kernels of a graph that is never kept may all be there
        prepare(graph, compiler)
    mark_positions(graph)

    prepared = prepare_graph(graph, compiler, log)
    program = lower_graph(prepared, compiler, log)
    lowered = Lowered(prepared, program, log.branch())  # other variants begin here
    schedule = schedule_program(prepared, program, compiler, log)
    variant, search = choose_variant(graph, Variant(lowered, schedule, log), compiler)
    try:
        made = _make_code(graph, variant, compiler, found, known)
    finally:
        log.running = variant.log.running
    return made if search is None else replace(made, compiled=_improving(graph, made.compiled, search, compiler))


def _make_code(
    graph: Graph, variant: Variant, compiler: Compiler, found: graph_cache.Lookup = graph_cache.OFF, known: int = 0
) -> Made:
    """The stages from a schedule to code that runs. found: what the graph cache says of the graph. known: how many
    guards there were before the compile."""
    plugins, log = compiler.plugins, variant.log
    prepared = variant.lowered.graph
    logs.show("graph", graph.name, lambda: str(prepared))
    plan = plan_schedule(variant.schedule, compiler, log)
    logs.show("schedule", graph.name, lambda: "\n".join(map(str, plan.variants)))
    able = allowed(compiler, "cuda_graphs", log.gate)
    with Loads(able) as loads:
        with log.stage("generate"):  # each kernel's build begins as soon as there is its text
            plan, sources = merge_equal(plan, generate(plan, compiler, log.note, loads.begin), log.note)
            wrapper, words, programs = generate_wrapper(plan, sources), words_of(plan), programs_of(plan)
        commented = annotated(wrapper, words)
        logs.show("output_code", graph.name, lambda: commented.text)
        logs.show("kernel_code", graph.name, lambda: kernel_texts(sources))
        named = named_of(plan, wrapper, positions_of(prepared), by_position(graph))
        entry = describe_code(plan, sources, wrapper, able, named)
        if able is not compiler:
            entry = replace(entry, facts=replace(entry.facts, obstacle=VETOED))
        log.decisions += recording_notes(graph.name, able.options, entry.facts, plan.targets.values())
        with compiler.stage("build", log):  # whole, before anything is kept under a key that names all plugins
            loaded = load_kernels(loads, entry, programs, words, log.built)

    log.running = "report"
    for decision in unmet(log.gate, compiler.preferences):
        log.note(decision)
    report = make_report(
        graph,
        plan,
        None,
        sources,
        log.decisions,
        plugins=plugins.names(),
        attachments=log.attachments,
        gate=log.gate,
        contractions=log.contractions,
    )
    strides, others = changed_strides(graph, prepared), other_files(plan)
    with log.stage("keep"):
        code, found = keep(entry, Kept(graph, known, strides, report, others, programs), loaded, able, found, log)
    compiled = graph_of(code, graph.name, lambda: words, able, strides, "" if found.key is None else found.key.digest)
    if graph.frozen_values:
        names = graph.input_names
        frozen = [(at, names[at], value) for at, value in graph.frozen_values.items()]
        compiled = compiled.inside(lambda entry: refusing(entry, graph.name, frozen))
    publish(lambda: report, compiled, found, compiler, log, sources)
    return Made(graph, plan, sources, commented, compiled)


def _improving(graph: Graph, compiled: CompiledGraph, search: Search, compiler: Compiler) -> CompiledGraph:
    """Returns the compiled graph with a search in the background for a better variant."""

    def better(stopped: Callable[[], bool]) -> Entry | None:
        found = search(stopped)
        if found is None:
            return None
        other = _make_code(graph, found, compiler).compiled
        if other.output_strides != compiled.output_strides:
            return None  # the backward is compiled for what is saved as it is now
        return other.entry

    return replace(compiled, entry=Replaceable(compiled.entry, better, graph.name))


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
