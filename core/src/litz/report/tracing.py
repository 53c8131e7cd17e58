"""Who watches calls of plugins. In: compiles, as they begin. Out: each call as it ends, to whoever asked.

    with tracing(print):
        torch.compile(model, backend="litz")(x)

Kept in a context variable, as those who collect reports are: a compile passes on what it found when it began.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from litz_plugins import Plugins
from litz_plugins.blame import Called

Tracer = Callable[[Called], None]

_tracers: ContextVar[tuple[Tracer, ...]] = ContextVar("litz_plugin_tracers", default=())


@contextmanager
def tracing(tracer: Tracer) -> Iterator[None]:
    """Calls `tracer` with each call of a plugin, core's own hooks too, of compiles that begin inside the `with`."""
    token = _tracers.set((*_tracers.get(), tracer))
    try:
        yield
    finally:
        _tracers.reset(token)


def trace(plugins: Plugins) -> None:
    """Adds the tracers of the present context to the watchers of a compile's plugins."""
    for tracer in _tracers.get():
        if tracer not in plugins.watchers:
            plugins.watchers.append(tracer)
            plugins.traced = True


__all__ = ["Tracer", "trace", "tracing"]
