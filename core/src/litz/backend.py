"""The callable that torch.compile finds under the name "litz". Nothing but glue."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch

from litz.driver.garbage import young_objects_only

MEMOS: Mapping[str, Sequence[str]] = {
    "litz.capture.torch_api.origins": ("_user_frame", "user_name"),
    "litz.cost.contractions": ("_schema_of",),
    "litz.cost.work": ("_static_sizes",),
    "litz.ir.accesses": ("_load",),
    "litz.ir.complexity": ("terms", "_occurrences"),
    "litz.ir.index": ("symbols_in", "_substitute", "recombine", "flat_index", "stride_of"),
}
"""The functions, by module, that remember answers about expressions, loads or layouts of graphs."""


def litz(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compiles one graph that dynamo captured; dynamo calls this, users write `torch.compile(model, backend="litz")`.

    gm, example_inputs: the graph and the fake inputs to compile it for. mode: as in `torch.compile(mode=...)`; dynamo
    does not pass "default" on, so None is the default mode. options: as in `torch.compile(options={...})`.
    `torch.compile` itself refuses mode and options together (RuntimeError), so at most one of them arrives; to combine
    them, write `options={"mode": "reduce-overhead", ...}`. Two keys never arrive: torch.compile takes
    "guard_filter_fn" and "use_aoti" out of options for itself.

    Returns what dynamo runs in place of the graph. A plain function, since dynamo compares backends by identity (and
    mode and options by value) when it looks for code that it compiled before.
    """
    with young_objects_only():
        from litz.capture import torch_api  # here, so that listing the backends does not load the compiler
        from litz.driver.entry import enter
        from litz.errors import NOT_OURS

        torch_api.reset_with_dynamo(litz)
        try:
            return enter(gm, example_inputs, _compile_graph, mode, options)
        except NOT_OURS as error:
            # Where in litz a misspelt option or a missing compiler was found is of no use; fifty lines would hide what
            # is.
            raise error.with_traceback(None) from error.__cause__


def _compile_graph(graph: Any, compiler: Any) -> Callable[[list[Any]], Sequence[Any]]:
    """`litz.pipeline.compile_graph`, which a process that finds all of its graphs does without."""
    from litz.pipeline import compile_graph

    return compile_graph(graph, compiler)


def backend_with(**plugins: object) -> Callable[..., Any]:
    """Returns the backend with core's plugins and these, and none of those that are installed: for tests, and to try a
    plugin that is not installed.

        backend = backend_with(mine=my_module)
        torch.compile(f, backend=backend, options={"mine.level": 2})

    plugins: a module or an object with hooks, by the plugin's name. The options `disable_plugins`,
    `on_plugin_error` and `plugin_seconds` count as for installed plugins. Errors: those of `litz_plugins.make_plugins`.
    """
    from litz.driver.builtin import builtin_plugins
    from litz.options import PluginSettings, make_plugin_settings
    from litz.pipeline import compile_backend
    from litz_plugins import Plugins, make_plugins
    from litz_plugins.loading import installed_entry_points

    installed = {point.name for point in installed_entry_points()} - set(plugins)

    @cache
    def made(settings: PluginSettings) -> Plugins:
        disable = [name for name in settings.disable if name not in installed]  # those are left out in any case
        known: dict[str, Any] = {"on_plugin_error": settings.on_error, "seconds": settings.seconds}
        return make_plugins(builtin_plugins(), extra=tuple(plugins.items()), disable=disable, entry_points=(), **known)

    def backend(
        gm: torch.fx.GraphModule,
        example_inputs: Sequence[Any],
        *,
        mode: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Callable[..., Any]:
        return compile_backend(gm, example_inputs, mode, options, made(make_plugin_settings(options)))

    made(make_plugin_settings())  # a plugin that is not well formed is an error here
    return backend


def _reset() -> None:
    """Forgets, when `torch._dynamo.reset()` is called, what was found out about expressions of the graphs that are
    gone."""
    for module, names in MEMOS.items():
        for name in names if module in sys.modules else ():  # who compiled nothing has nothing to forget
            getattr(sys.modules[module], name).cache_clear()


litz.reset = _reset  # type: ignore[attr-defined]
