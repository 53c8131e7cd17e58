"""Compiles that begin as in a new process, with a graph cache of a test's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sympy
import torch

from litz import graph_cache, pipeline
from litz import report as reports
from litz.capture import torch_api
from litz.driver.builtin import builtin_plugins
from litz.ir.index import Mod
from litz_plugins import Pass, hookimpl
from litz_plugins.manager import Plugins, make_plugins
from support.own_plugins import CONTRACTIONS


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


def product(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.relu(x @ w)
    return y.sum(1), y * 2


def of_product() -> Any:
    return called_with(torch.randn(8, 16), torch.randn(16, 4))


class Guarding:
    """A pass that takes for granted that the first size is a multiple of `multiple`, and puts that on record."""

    def __init__(self, multiple: int = 4, says: Any = "4") -> None:
        self.multiple, self.says = multiple, says

    @hookimpl
    def litz_register_passes(self, options: Any) -> list[Pass]:
        return [Pass("granted", "graph", self.look)]

    @hookimpl
    def litz_cache_fingerprint(self, options: Any) -> Any:
        return self.says

    def look(self, graph: Any, context: Any) -> Any:
        if graph.shape_env is not None and graph.hints:
            size = torch_api.sympy_of(graph.placeholders[0].meta["val"])
            torch_api.evaluate_with_guard(graph.shape_env, sympy.Eq(Mod(size, self.multiple), 0))
        return graph


def with_plugin(plugin: object) -> Any:
    return make_plugins(builtin_plugins(), extra=[CONTRACTIONS, ("guarding", plugin)], entry_points=())
