"""Calls of compiled graphs that call functions of plugins, with `on_plugin_error="disable"`.

In: a compiled graph, and how to compile it without a plugin. Out: the graph; where such a function fails, or returns
what was not promised, its plugin is left out, and the call goes to the graph without it, on inputs as they were. A
function that changed an argument in place, and not in its first call, is an error: what the argument held is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from litz.capture.graph import Graph
from litz.driver.compiler import Compiler
from litz.errors import PluginHookError
from litz.origins.plugin_call import PluginCall
from litz.runtime.compiled_graph import CompiledGraph, Entry
from litz.runtime.wrapper_support import copy_to
from litz_plugins.blame import LeftOut

Compile = Callable[[], Callable[[list[Any]], Any]]


def with_way_out(made: CompiledGraph, graph: Graph, compiler: Compiler, compile_again: Compile) -> CompiledGraph:
    """Returns the graph, with a way out where it calls functions of plugins that may be left out."""
    if not needs_way_out(made.code.entry.objects, compiler):
        return made
    written = tuple(sorted({*graph.mutated_inputs, *graph.owned_inputs, *made.code.entry.overwritten}))
    strides = _strides(made, graph)
    return made.inside(lambda entry: _WayOut(entry, compiler, written, strides, compile_again))


def needs_way_out(objects: Mapping[str, Any], compiler: Compiler) -> bool:
    """Returns whether a graph may have to run without a plugin. objects: what its wrapper names."""
    return compiler.plugins.goes_on and any(isinstance(value, PluginCall) for value in objects.values())


class _WayOut:
    """written: positions of inputs that the graph may write. strides: what each output has to have, where it is not as
    the graph was traced."""

    def __init__(
        self, entry: Entry, compiler: Compiler, written: tuple[int, ...], strides: Any, compile_again: Compile
    ) -> None:
        self._entry, self._compiler, self._written = entry, compiler, written
        self._strides, self._compile = strides, compile_again
        self._other: Callable[[list[Any]], Any] | None = None

    def __call__(self, args: list[Any]) -> tuple[Any, ...]:
        if self._other is not None:
            return self._call_other(args)
        given = list(args)
        copies = {at: given[at].clone() for at in self._written if isinstance(given[at], torch.Tensor)}
        try:
            return self._entry(args)
        except PluginHookError as error:
            if not error.inputs_whole:  # nothing right can be made of what is left
                raise
            self._leave_out(error)
        for at, copy in copies.items():
            given[at].copy_(copy)
        self._other = self._compile()
        return self._call_other(given)

    def _leave_out(self, error: PluginHookError) -> None:
        plugins = self._compiler.plugins
        try:
            with plugins.blaming(error.plugin, error.hook):
                raise error.__cause__ if isinstance(error.__cause__, Exception) else TypeError(error.cause)
        except LeftOut:
            return

    def _call_other(self, args: list[Any]) -> tuple[Any, ...]:
        assert self._other is not None
        outputs = tuple(self._other(args))
        return tuple(map(_laid_out, outputs, self._strides or (None,) * len(outputs)))


def _strides(made: CompiledGraph, graph: Graph) -> Any:
    """Strides of the outputs where the backward was compiled for others than traced. Only numbers: sizes that vary are
    not known here, and strides as traced are right for them wherever no plan has changed them."""
    if made.output_strides is None:
        return None
    known = (item if all(isinstance(step, int) for step in item or ()) else None for item in made.output_strides)
    return tuple(known)


def _laid_out(value: Any, strides: tuple[int, ...] | None) -> Any:
    if strides is None or not isinstance(value, torch.Tensor) or value.stride() == strides:
        return value
    return copy_to(value, tuple(value.shape), strides)
