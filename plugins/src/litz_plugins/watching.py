"""Watchers of graphs as the plugins' that made them. In: a `Watcher`. Out: one whose failures name the plugin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from litz_plugins.nouns import Noun
from litz_plugins.records import Pass, Watcher
from litz_plugins.roster import Roster
from litz_plugins.unchanged import Snapshot


def owned_watcher(plugins: Roster, plugin: str, watcher: Watcher) -> Watcher:
    """Returns a plugin's watcher; what goes wrong in its functions, which must leave nouns as they are, is that
    plugin's."""

    def owned(name: str, **more: Any) -> Callable[..., Any] | None:
        function = getattr(watcher, name)
        return function and plugins.blamed(plugin, f"the function {name!r} of its Watcher", function, **more)

    def handed(pass_: Pass, before: Noun, after: Noun, seconds: float) -> list[Snapshot]:
        return plugins.snapshots([before, after], deep=True)

    given = {name: owned(name) for name in ("stage", "built", "ended")}
    return Watcher(**given, passed=owned("passed", handed=handed), plugin=plugin)


__all__ = ["owned_watcher"]
