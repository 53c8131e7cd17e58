"""Ways to run a function with a set of plugins, judged by eager and float64. In: a function, its inputs. Out: what is
wrong, in words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from litz import pipeline
from litz import report as reports
from litz.capture.graph import Graph
from litz.capture.layout import changed_strides
from litz.driver import stages
from litz.ir import KernelCall
from litz.ir.interpret import interpret
from litz.report.log import Log
from litz.schedule.schedule_program import unscheduled
from litz_plugins import Plugins
from litz_plugins.errors import in_short
from litz_testing.conformance.call import clones, doubled
from litz_testing.conformance.runs import Run, compare_runs, run_once
from litz_testing.torch_compile import torch_compiled

Inputs = Sequence[torch.Tensor]
Function = Callable[..., Any]


class NotInterpreted(Exception):
    """A schedule has a kernel that came as source, which only a device runs."""


@dataclass(frozen=True)
class Under:
    """The conditions under which litz compiles: plugins, and options."""

    plugins: Plugins
    options: Mapping[str, Any] = field(default_factory=dict)

    def backend(self, **options: Any) -> Callable[..., Any]:
        """Returns litz with these plugins, as a backend for torch.compile."""
        given = {"fallback": "error", "graph_cache": False, **self.options, **options}
        return partial(pipeline.compile_backend, options=given, plugins=self.plugins)

    def interpreting(self) -> Callable[..., Any]:
        """Returns a backend that compiles up to the schedule, which the IR's interpreter runs: nothing is built."""

        def backend(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
            given = {"debug": True, "fallback": "error", **self.options}
            compiler = pipeline.make_compiler(None, given, self.plugins)
            return stages.capture(gm, inputs, lambda graph: _interpreted(graph, compiler), compiler)

        return backend


def _interpreted(graph: Graph, compiler: pipeline.Compiler) -> Callable[[list[Any]], Sequence[Any]]:
    log = Log()
    compiler.plugins.compile_started(graph, compiler.options)
    prepared = stages.prepare_graph(graph, compiler, log)
    program = unscheduled(stages.schedule_prepared(prepared, compiler, log))
    if any(isinstance(operation, KernelCall) for operation in program.operations):
        raise NotInterpreted

    def run(arguments: list[Any]) -> Sequence[Any]:
        values = list(arguments)
        arguments.clear()
        return interpret(program, values)

    run.output_strides = changed_strides(graph, prepared)  # type: ignore[attr-defined]
    return run


def problem_of(fast: Function, function: Function, inputs: Inputs, train: bool = False, values: bool = True) -> str:
    """Returns what is wrong with `fast(*inputs)`; '' if it is as good as eager's `function(*inputs)`."""
    expected = run_once(function, clones(inputs), train=train)

    def exact() -> Run | None:
        try:
            return run_once(function, doubled(inputs), train=train)
        except Exception:  # an op without float64
            return None

    try:
        actual = run_once(fast, clones(inputs), train=train)
    except Exception as error:
        if _is_of(error, NotInterpreted):
            raise NotInterpreted from None
        return in_short(error)
    return "; ".join(compare_runs(actual, expected, exact, values))


def _is_of(error: BaseException, kind: type[BaseException]) -> bool:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, kind) or isinstance(getattr(cause, "inner_exception", None), kind):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def problems(
    under: Under, way: str, function: Function, inputs: Sequence[Inputs], train: bool = False, values: bool = True
) -> str:
    """Returns what is wrong with a function, run in a way, for each of several inputs in turn; '' if nothing. way: a
    row of `WAYS`. Errors: NotInterpreted."""
    return WAYS[way](under, function, inputs, train, values)


def _once(
    under: Under,
    function: Function,
    inputs: Sequence[Inputs],
    train: bool,
    values: bool,
    interpreted: bool = False,
    dynamic: bool = False,
) -> str:
    torch.compiler.reset()
    backend = under.interpreting() if interpreted else under.backend(debug=True)
    fast = torch_compiled(function, backend, dynamic, data=True)
    found = (problem_of(fast, function, given, train, values) for given in inputs)
    return next((text for text in found if text), "")


def torch_fails(function: Function, inputs: Sequence[Inputs], dynamic: bool) -> bool:
    """Returns whether torch itself fails to trace the function, with nothing of litz's behind it."""
    torch.compiler.reset()
    fast = torch_compiled(function, "aot_eager", dynamic, data=True)
    try:
        for given in inputs:
            run_once(fast, clones(given))
    except Exception:
        return True
    return False


def _kept(under: Under, function: Function, inputs: Sequence[Inputs], train: bool, values: bool) -> str:
    """Into the graph cache, and from there."""
    for fetched in (False, True):
        torch.compiler.reset()
        fast = torch_compiled(function, under.backend(graph_cache=True), False, data=True)
        with reports.collect() as collected:
            problem = problem_of(fast, function, inputs[0], train, values)
        if problem:
            return f"{'from the graph cache' if fetched else 'before it is kept'}: {problem}"
        said = {report.name: report.graph_cache for report in collected}
        if any(text.startswith("not cacheable") for text in said.values()):
            return ""  # which is a plugin's good right
        missed = [f"{name}: {text}" for name, text in said.items() if fetched and not text.startswith("hit")]
        if missed:
            return f"was not found in the graph cache: {', '.join(missed)}"
    return ""


WAYS: Mapping[str, Callable[[Under, Function, Sequence[Inputs], bool, bool], str]] = {
    "interpreted": partial(_once, interpreted=True),
    "interpreted, dynamic": partial(_once, interpreted=True, dynamic=True),
    "built": _once,
    "built, dynamic": partial(_once, dynamic=True),
    "kept": _kept,
}
"""How a function is run, by name. With dynamic sizes it is run for all inputs, else each compile is for one of them."""

__all__ = ["WAYS", "NotInterpreted", "Under", "problem_of", "problems", "torch_fails"]
