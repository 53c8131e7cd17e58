"""A compile that failed: from whatever was raised to an error that says where, and how to see it again.

In: the exception, the graph, the stage. Out: a LitzError. Unless the cause is the caller's own (a misspelt option, no
compiler), plugins are asked for a command that repeats the failure (`litz_compile_failed`), and the error has it.
"""

from __future__ import annotations

from contextlib import suppress

from litz.capture import torch_api
from litz.capture.graph import Graph
from litz.errors import (
    NOT_OURS,
    CompileError,
    DuplicateRegistrationError,
    InvalidOptionError,
    LitzError,
    LoweringError,
    PassOrderError,
    PluginError,
    PluginHookError,
    UnknownOptionError,
)
from litz.options import Options
from litz.target import CalibrationError
from litz_plugins import Plugins

MISTAKES: tuple[type[LitzError], ...] = (
    UnknownOptionError,
    InvalidOptionError,
    CalibrationError,
    PluginError,
    DuplicateRegistrationError,
    PassOrderError,
)
"""Errors about an option or a plugin, which eager mode would only hide."""


def explain_failure(error: Exception, graph: Graph, stage: str, options: Options, plugins: Plugins) -> LitzError:
    """Returns `error` if it is a LitzError, else a LitzError that names the stage and the graph."""
    failure = error if isinstance(error, LitzError) else CompileError(graph.name, stage, error)
    if isinstance(failure, (LoweringError, PluginHookError)) and failure.node and not failure.origin:
        node = next((node for node in graph.nodes if node.name == failure.node), None)
        if node is not None and (origin := torch_api.origin_of(node)):
            failure.set_origin(str(origin))
    if not isinstance(failure, NOT_OURS) and not failure.reproduce:
        with suppress(LitzError):  # of a plugin: it must not hide the error that it is asked about
            command = plugins.compile_failed(graph, failure, options)
            if command:
                failure.set_reproduction(f"{command}  ({graph.name}, stage {stage})")
    return failure


def may_run_eagerly(failure: LitzError, options: Options) -> bool:
    """Returns whether a graph that failed to compile runs in eager mode. A mistake in an option or a plugin is an error
    all the same: the option `on_plugin_error` goes on without the plugin, and not without litz."""
    own = isinstance(failure, PluginHookError) and failure.builtin  # a plugin of core's
    return options.fallback == "eager" and (own or not isinstance(failure, MISTAKES))


def eager_warning(graph: Graph, failure: LitzError) -> str:
    """Returns the text of the warning that a graph runs in eager mode because it failed to compile."""
    lines = [f"litz runs {graph.name} in eager mode: {failure.what}"]
    lines += [f"  from: {failure.origin}"] if failure.origin else []
    lines += [f"  where: {failure.where}"] if failure.where else []
    lines += [f"  reproduce: {failure.reproduce}"] if failure.reproduce else []
    return "\n".join(lines)
