"""A compile that failed: from whatever was raised to an error that says where, and how to see it again.

In: the exception, the graph, the stage. Out: a LitzError. Unless the cause is the caller's own (a misspelt option, no
compiler), the graph is written as a script that compiles it again, and the error names the command that runs it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from litz.cache.disk import folder_for_texts
from litz.capture import torch_api
from litz.capture.graph import Graph
from litz.capture.script import graph_script
from litz.errors import NOT_OURS, CompileError, LitzError, LoweringError, PluginHookError
from litz.options import Options
from litz_plugins import Secret

NOT_REPEATED = frozenset({"cache", "cache_dir", "fallback", "progress", "report_dir", "threads"})
"""Options that decide where things lie and what is done about a failure, and not what fails."""


def explain_failure(error: Exception, graph: Graph, stage: str, options: Options) -> LitzError:
    """Returns `error` if it is a LitzError, else a LitzError that names the stage and the graph."""
    failure = error if isinstance(error, LitzError) else CompileError(graph.name, stage, error)
    if isinstance(failure, (LoweringError, PluginHookError)) and failure.node and not failure.origin:
        node = next((node for node in graph.nodes if node.name == failure.node), None)
        if node is not None and (origin := torch_api.origin_of(node)):
            failure.set_origin(str(origin))
    if not isinstance(failure, NOT_OURS) and not failure.reproduce:
        path = _write_script(graph, failure, options)
        if path is not None:
            failure.set_reproduction(f"{sys.executable or 'python'} {path}  ({graph.name}, stage {stage})")
    return failure


def eager_warning(graph: Graph, failure: LitzError) -> str:
    """Returns the text of the warning that a graph runs in eager mode because it failed to compile."""
    lines = [f"litz runs {graph.name} in eager mode: {failure.what}"]
    lines += [f"  from: {failure.origin}"] if failure.origin else []
    lines += [f"  where: {failure.where}"] if failure.where else []
    lines += [f"  reproduce: {failure.reproduce}"] if failure.reproduce else []
    return "\n".join(lines)


def _write_script(graph: Graph, failure: LitzError, options: Options) -> Path | None:
    """The script's path; None where there can be none: it must not hide the error that it is about."""
    try:
        path = folder_for_texts(options.cache_dir) / f"{graph.name}.py"
        path.write_text(graph_script(graph, str(path), str(failure), changed_options(options)), encoding="utf-8")
        return path
    except Exception:
        return None


def changed_options(options: Options) -> Mapping[str, Any]:
    """Returns the options that are not at their defaults and that a failure may depend on."""
    found = {row.name: value for row, value in options.changed() if row.name not in NOT_REPEATED}
    plugins = {name: options[name] for name in options.plugin_changed}
    return found | {name: value for name, value in plugins.items() if not isinstance(value, Secret)}
