"""What `litz check-plugins` says. In: the plugins as a compile would load them. Out: `Check` rows.

Two questions: does all that they register, apart and together, make sense; and does a small program compile and compute
the right thing with core alone, with each plugin, and with all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from litz.cli.common import current_options, no_plugin_warnings
from litz.options import Options
from litz_plugins import Plugins, make_plugins
from litz_plugins.errors import LitzError, go_on_without, in_short
from litz_plugins.loading import Source

from .checks import Check

TOLERANCE = 1e-4
"""Relative and absolute error of the small program, in float32."""


def check_registering(loaded: Plugins) -> list[Check]:
    """Returns a row for each fault in what the plugins register: a hook that raises, a clash of two plugins, a cycle of
    passes."""
    failed = {error.plugin for error in loaded.errors()}
    rows: dict[str, Check] = {}
    with no_plugin_warnings():
        for ask in _questions(loaded):
            try:
                ask()
            except LitzError as cause:
                rows.setdefault(cause.what, Check(_whose(cause), "fail", cause.what, cause.todo))
    for error in loaded.errors():
        if error.plugin not in failed:
            rows.setdefault(error.what, Check(f"plugin {error.plugin}", "fail", error.what, error.todo))
    return list(rows.values())


def _questions(loaded: Plugins) -> Iterator[Callable[[], Any]]:
    """A call for each hook that registers something, and its merge."""
    yield loaded.options
    options: list[Options] = []
    yield lambda: options.append(current_options(loaded))
    given = options[0] if options else Options()
    yield from (loaded.decompositions, loaded.lowerings, loaded.layout_needs, loaded.commands)
    for ask in (loaded.passes, loaded.templates, loaded.targets, loaded.cache_fingerprints):
        yield partial(ask, given)


def _whose(cause: LitzError) -> str:
    """Returns "plugin a", "plugins a, b"; "plugins" where the error names nobody."""
    one = getattr(cause, "plugin", "")
    names = [one] if one else sorted({name for name in getattr(cause, "plugins", ()) if name})
    return f"plugin{'s' if len(names) > 1 else ''} {', '.join(names)}" if names else "plugins"


def check_compiling(loaded: Plugins, together: bool = True) -> list[Check]:
    """Returns whether the small program compiles and is right: with core's plugins alone, with each other one, and with
    all. together: False where all of them are known to clash."""
    if failure := _failure(make_plugins(_builtins(loaded), entry_points=())):
        return [Check("core", "fail", f"a small program with core's plugins alone: {failure}", "report this as a bug")]
    rows = []
    others = [source for source in loaded.deciders() if source.status == "external"]
    for source in others:
        todo = f"repair or uninstall it ({source.origin}); {go_on_without(source.name)}"
        rows.append(_compiled(f"plugin {source.name}", loaded, [source], todo))
    if together and len(others) > 1 and all(row.status == "ok" for row in rows):
        todo = "two of them do not go together: leave one out with LITZ_DISABLE_PLUGINS=NAME"
        rows.append(_compiled("plugins together", loaded, others, todo))
    return rows


def _compiled(name: str, loaded: Plugins, others: Sequence[Source], todo: str) -> Check:
    start = time.perf_counter()
    plugins = make_plugins(_builtins(loaded), extra=[(one.name, one.obj) for one in others], entry_points=())
    failure = _failure(plugins)
    seconds = time.perf_counter() - start
    if failure:
        return Check(name, "fail", f"a small program with it: {failure}", todo)
    return Check(name, "ok", f"compiles a small program, in {seconds:.1f} s")


def _builtins(loaded: Plugins) -> list[tuple[str, object]]:
    return [(source.name, source.obj) for source in loaded.sources() if source.status == "builtin"]


def _failure(plugins: Plugins) -> str:
    """Returns what goes wrong with the small program, '' for nothing; on the CPU and, where there is one, a GPU."""
    import torch

    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    return next(filter(None, (_failure_on(device, plugins) for device in devices)), "")


def _failure_on(device: str, plugins: Plugins) -> str:
    import torch

    from litz.pipeline import compile_backend

    def program(x: Any, weight: Any) -> Any:
        return torch.softmax(torch.relu(x @ weight) + x, -1)

    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(8, 8, generator=generator).to(device) for _ in range(2)]
    backend = partial(compile_backend, options=_SETTINGS, plugins=plugins)
    torch.compiler.reset()
    try:
        with torch.no_grad():
            got, want = torch.compile(program, backend=backend)(*inputs), program(*inputs)
    except Exception as cause:
        return in_short(cause)
    finally:
        torch.compiler.reset()
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"its result is {got.dtype} {tuple(got.shape)}, eager's {want.dtype} {tuple(want.shape)}"
    if not torch.allclose(got, want, rtol=TOLERANCE, atol=TOLERANCE):
        return f"its result is off by {(got - want).abs().max().item():.3g}"
    return ""


_SETTINGS: Mapping[str, Any] = {"graph_cache": False, "fallback": "error", "on_plugin_error": "raise", "debug": True}


__all__ = ["check_compiling", "check_registering"]
