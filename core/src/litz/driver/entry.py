"""Where dynamo enters: in, what dynamo captured; out, the callable that dynamo runs.

What is found in the caches needs no more than this imports; whoever calls says what compiles the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from litz import logs
from litz.capture import torch_api
from litz.capture.graph import Graph
from litz.driver.capturing import capture
from litz.driver.compiler import Compiler, make_compiler
from litz.driver.graph_store import graph_store
from litz.driver.retry import starting_over
from litz_plugins.manager import Plugins

CompileGraph = Callable[[Graph, Compiler], Callable[[list[Any]], Sequence[Any]]]
"""`litz.pipeline.compile_graph`, or what imports it."""


def enter(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    compile_graph: CompileGraph,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    plugins: Plugins | None = None,
) -> Callable[..., Any]:
    """Returns the callable for what dynamo captured. compile_graph: is called for each Graph that is not found without
    a trace. For the rest see `litz.pipeline.compile_backend`."""
    logs.register()
    compiler = replace(make_compiler(mode, options, plugins), frame=torch_api.frame_of(gm))
    return starting_over(partial(_capture, gm, example_inputs, compile_graph), compiler)


def _capture(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], compile_graph: CompileGraph, compiler: Compiler
) -> Callable[..., Any]:
    """Compiles what dynamo captured, as Graphs, each by `compile_graph`, and returns the callable."""
    freezing, store = compiler.options.freezing, graph_store(gm, compiler)
    compiler.check_whole()
    if torch_api.is_saved_by_torch() and (save := compiler.plugins.select_saver(compiler.options)):
        if compiled := save(gm, example_inputs, compiler):
            return compiled
    with compiler.watched("") as watchers:
        compiler = replace(compiler, watchers=watchers)
        return capture(
            gm, example_inputs, lambda graph: compile_graph(graph, compiler), compiler, freezing, store, True
        )
