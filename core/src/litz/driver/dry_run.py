"""A compile that stops at the schedule: what litz would run, without a compiler and without a device.

In: a function and its arguments, which may be fake. Out: the `Schedule` of each of its graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from litz.capture import torch_api
from litz.capture.eager import run_eagerly
from litz.capture.graph import Graph
from litz.capture.layout import changed_strides
from litz.driver.compiler import Compiler, make_compiler
from litz.driver.retry import starting_over
from litz.driver.stages import capture, prepare_graph, schedule_prepared
from litz.report.log import Log
from litz.schedule import Schedule
from litz_plugins.manager import Plugins


def schedule_only(
    fn: Callable[..., Any],
    fake_args: Sequence[Any],
    options: Mapping[str, Any] | None = None,
    plugins: Plugins | None = None,
    dynamic: bool | None = None,
    log: Log | None = None,
) -> list[Schedule]:
    """Returns the schedules of every graph in `fn(*fake_args)`, none of them built: works for CUDA tensors without a
    GPU.

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
        eager = run_eagerly(graph)

        def run(args: list[Any]) -> Sequence[Any]:
            with torch_api.fake_mode_around(args):  # what the graph makes itself has to be fake too
                return eager(args)

        run.output_strides = changed_strides(graph, prepared)  # type: ignore[attr-defined]
        return run

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return starting_over(lambda own: capture(gm, inputs, keep, own), compiler)

    torch.compile(fn, backend=backend, dynamic=dynamic)(*fake_args)
    return schedules
