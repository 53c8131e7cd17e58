"""Compiles that begin as in a new process, with a graph cache of a test's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from litz import graph_cache, pipeline
from litz import report as reports
from litz_plugins.manager import Plugins


@dataclass
class Runs:
    """folder: of the disk cache. said: what the last run's reports say of the graph cache, graph by graph. compiled:
    what it called."""

    folder: Path
    plugins: Plugins | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    reports: list[reports.CompileReport] = field(default_factory=list)
    compiled: Any = None

    @property
    def said(self) -> list[str]:
        return [report.graph_cache.partition(" ")[0] for report in self.reports]

    def run(self, call: Callable[[Callable[..., Any]], Any], fn: Any, dynamic: bool | None = False, **more: Any) -> Any:
        """What `call` returns of `fn`, compiled. more: options, with _ for a dot."""
        torch._dynamo.reset()
        graph_cache.forget()
        return self.again(call, fn, dynamic, **more)

    def again(
        self, call: Callable[[Callable[..., Any]], Any], fn: Any, dynamic: bool | None = False, **more: Any
    ) -> Any:
        """As `run`, with what this process has loaded."""
        given = {name.replace("__", "."): value for name, value in more.items()}
        # Qualifying a compiler takes ten seconds for each folder.
        options = {"cache_dir": self.folder, "graph_cache": True, "cpp.qualify": False, **self.options, **given}

        def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
            return pipeline.compile_backend(gm, inputs, None, options, self.plugins)

        with reports.collect() as self.reports:
            self.compiled = torch.compile(fn, backend=backend, dynamic=dynamic)
            return call(self.compiled)

    def entries(self) -> list[Path]:
        """The folders of kept graphs."""
        return sorted(path.parent for path in self.folder.glob("graph/*/graph.json"))


def called_with(*args: Any) -> Callable[[Callable[..., Any]], Any]:
    """A call with clones of the arguments; gives what it returned and what the arguments are afterwards."""

    def call(fn: Callable[..., Any]) -> Any:
        own = [_clone(value) for value in args]
        return fn(*own), own

    return call


def _clone(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    base = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype)
    return base.copy_(value).requires_grad_(value.requires_grad)
