"""The callable that torch.compile finds under the name "litz". Nothing but glue."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import _lru_cache_wrapper, cache, lru_cache
from typing import Any

import torch

from litz.driver.garbage import young_objects_only

LARGE_MEMO = 1024
"""Answers that a memo of expressions, loads or layouts holds at least; memos of the machine hold fewer."""


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
        from litz import pipeline  # here, so that listing the backends does not load the compiler
        from litz.capture import torch_api
        from litz.errors import NOT_OURS

        torch_api.reset_with_dynamo(litz)
        try:
            return pipeline.compile_backend(gm, example_inputs, mode, options)
        except NOT_OURS as error:
            # Where in litz a misspelt option or a missing compiler was found is of no use; fifty lines would hide what
            # is.
            raise error.with_traceback(None) from error.__cause__


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
    for memo in _large_memos(len(sys.modules)):
        memo.cache_clear()


@lru_cache(maxsize=1)
def _large_memos(modules: int) -> tuple[_lru_cache_wrapper[Any], ...]:
    """Returns litz's large memos, looked for again where there are more or fewer modules than before."""
    own = [module for name, module in list(sys.modules.items()) if name.startswith("litz")]
    memos = (memo for module in own for memo in list(vars(module).values()) if isinstance(memo, _lru_cache_wrapper))
    return tuple(memo for memo in memos if (memo.cache_parameters()["maxsize"] or 0) >= LARGE_MEMO)


litz.reset = _reset  # type: ignore[attr-defined]
