"""Capture, and what it calls while it captures: the first stages, whose functions import what only a trace uses.

In: what dynamo hands to a backend. Out: the callable that dynamo runs; a process that finds its graphs compiled calls
nothing else of these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from litz.capture import torch_api
from litz.capture.aot import compile_with_aot
from litz.capture.earlier import EarlierStages
from litz.capture.graph import Graph
from litz.capture.kept import GraphStore
from litz.driver.compiler import Compiler
from litz.driver.kept_regions import keeps_region
from litz.report.log import Log
from litz_plugins import Decision, Gate, PassContext
from litz_plugins.blame import Blamed
from litz_plugins.records import Stage

if TYPE_CHECKING:
    from litz.capture.joint import JointGraph
    from litz.execution import ExecutionPlan

Modules = tuple[torch.fx.GraphModule, torch.fx.GraphModule]


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
        # A trace is sure without a store. torch merges a dict with its own, and of another mapping hashes each op anew.
        decompositions=decompositions(compiler) if store is None else torch_api.Later(lambda: decompositions(compiler)),
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
        from litz.capture.joint.check import check_joint

        plugins.settle(options)  # who is left out for what it registers must have had no part in the trace
        with compiler.stage("partition" if stage == "partitioned" else f"{stage} passes", log):
            known: dict[str, Any] = {"accept": check_joint, "watch": log.pass_ran}
            known["attach"] = log.attachments.__setitem__
            return plugins.run_passes(stage, noun, **passed_on(compiler, log), **known)

    def partition(joint: JointGraph) -> Modules:
        from litz.capture.joint.check import check_modules

        with compiler.stage("partition", log):
            asked = plugins.asks("litz_partition")  # a plugin's partitioner may change the graph that it is handed
            given, planned = (joint.copy() if asked else joint), partial(plans_of, compiler, label, joint)
            known: dict[str, Any] = {"attach": log.attachments.__setitem__, **passed_on(compiler, log)}
            context = PassContext(stage="joint", pass_name="partition", **known)
            found = plugins.partition(given, options, planned, context, partial(check_modules, joint))
        if found is None:
            return torch_api.min_cut(joint)
        plugin, halves = found
        if not plugins.is_builtin(plugin):
            log.note(Decision("partitioned", joint.name, f"the partitioner of {plugin}", "it answered", plugin=plugin))
        return halves

    return EarlierStages(run, partition, log, partial(keeps_region, compiler, log))


def plans_of(compiler: Compiler, label: str, joint: JointGraph, modules: Modules) -> tuple[ExecutionPlan, ...]:
    """Returns the plans that the halves of a joint graph would have, which become nothing else: (forward, backward).
    Their decisions are on no record, and questions about sizes leave no guard."""
    from litz.capture.graph import make_graph, saved_names, saved_positions
    from litz.driver.stages import plan_schedule, schedule_graph

    halves = earlier_stages(compiler, label).finished(label, modules, joint.forward_outputs)
    static = frozenset(joint.more.get("static_lifetime_input_indices") or ())
    visible, (first, second) = frozenset(range(joint.forward_outputs)), (halves.forward, halves.backward)
    known: dict[str, Any] = saved_positions(second, saved_names(first, static, visible))
    forward = make_graph(f"{label}_forward", first, "forward", static_inputs=static, visible_outputs=visible)
    plans = []
    for graph in (forward, make_graph(f"{label}_backward", second, "backward", **known)):
        with torch_api.real_mode(), torch_api.without_guards(graph.shape_env):
            plans.append(plan_schedule(schedule_graph(graph, compiler, Log()), compiler, Log()))
    return tuple(plans)


def decompositions(compiler: Compiler) -> dict[Any, Callable[..., Any]]:
    """Returns the decompositions for capture, by op. An op for which a plugin registers None stays whole."""
    from litz.capture.decompositions import drawn_in_eager
    from litz.capture.promised import checked

    compiler.plugins.settle(compiler.options)  # all they register: who is left out must have had no part in the trace
    table = compiler.plugins.decompositions(options=compiler.options)
    compiler.check_whole()
    for op, rule in [*table.items()]:  # another dict would hash each of a thousand ops, and few rules are plugins'
        if rule is None:
            del table[op]
        elif isinstance(rule, Blamed):
            table[op] = checked(op, rule)
    return drawn_in_eager(table) if compiler.options.fallback_random else table


def passed_on(compiler: Compiler, log: Log) -> dict[str, Any]:
    """Returns what every pass, and fusion, is handed beside its noun."""
    shared = {"options": compiler.options, "note": log.note, "target_of": compiler.target_of, "ask": compiler.ask}
    return {**shared, "gate": log.gate}
