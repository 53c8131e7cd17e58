"""litz in torchtitan's graph trainer: a pipeline of graph passes whose last pass is litz's.

    python -m torchtitan.train ... --compile.pass_pipeline litz

The trainer takes pipelines by name from its own registry, into which `register` puts this one. A configuration's module
calls `register()`, or imports this module by `--override.imports`. `litz_pass` alone is a pass as torchtitan's others:
(gm, example_inputs) -> gm. Importing this module imports nothing of torchtitan's.

Without the graph trainer no part of this is needed: `--compile.backend litz` compiles each block.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

import litz

NAME = "litz"
"""Of the pipeline, for --compile.pass_pipeline."""


def register() -> None:
    """Makes the pipeline "litz" known to torchtitan's graph trainer. A second call does nothing."""
    from torchtitan.experiments.graph_trainer.registry import register_pass_pipeline

    register_pass_pipeline(NAME)(pipeline)


def pipeline(traced_result: Any, config: Any, *, parallel_dims: Any = None) -> list[Callable[..., Any]]:
    """Returns torchtitan's own passes over the train step's graph, but for those that hand regions to Inductor, and at
    the end litz's.

    The trainer records no CUDA graph around it: the passes that do so look for Inductor's regions.
    """
    from torchtitan.experiments.graph_trainer.passes import compile_time_passes

    passes: list[Callable[..., Any]] = compile_time_passes(
        traced_result, config, use_cudagraph=False, parallel_dims=parallel_dims, include_inductor=False
    )
    return [*passes, litz_pass]


def litz_pass(
    gm: fx.GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> fx.GraphModule:
    """Compiles the whole graph, and returns a module of one call: no pass may follow that looks into the graph.

    gm: a graph of ATen ops whose placeholders have `meta["val"]`, of a forward, a backward, or both. example_inputs:
    one for each placeholder. options: as `torch.compile(backend="litz", options=...)`. The returned module has the
    placeholders and the outputs of `gm`; `module.litz.run` is the compiled callable, with `serialize()` and
    `save(path)`. Errors: LitzError.
    """
    inputs = [node.meta.get("val", value) for node, value in zip(_placeholders(gm), example_inputs, strict=True)]
    # The graph holds its backward: no gradients are to be recorded around it.
    run = litz.standalone_compile(gm, inputs, dynamic_shapes="from_graph", options=options)
    return _around(gm, run)


class Compiled(torch.nn.Module):
    """A compiled graph as a module: returns the leaves of what the graph returns, in one list."""

    def __init__(self, run: Callable[..., Any]) -> None:
        super().__init__()
        self.run = run

    def forward(self, *inputs: Any) -> list[Any]:
        """Runs the graph."""
        return list(pytree.tree_leaves(self.run(*inputs)))


def _around(gm: fx.GraphModule, run: Callable[..., Any]) -> fx.GraphModule:
    """A graph with the inputs and outputs of `gm`, and one call between them."""
    graph = fx.Graph()
    inputs = []
    for node in _placeholders(gm):
        inputs.append(graph.placeholder(node.name))
        inputs[-1].meta = dict(node.meta)
    call = graph.call_module(NAME, tuple(inputs))
    leaves, spec = pytree.tree_flatten(gm.graph.output_node().args[0])
    outputs: list[Any] = []
    for place, leaf in enumerate(leaves):
        outputs.append(leaf)
        if isinstance(leaf, fx.Node):
            outputs[-1] = graph.call_function(operator.getitem, (call, place))
            outputs[-1].meta = dict(leaf.meta)
    graph.output(pytree.tree_unflatten(outputs, spec))
    made = fx.GraphModule({NAME: Compiled(run)}, graph)
    made.meta.update(gm.meta)
    return made


def _placeholders(gm: fx.GraphModule) -> list[fx.Node]:
    return list(gm.graph.find_nodes(op="placeholder"))
