"""Plugins that failed in this process and are left out of it (``on_plugin_error="disable"``).

Every compile makes its own `Plugins`; what failed in one is not tried again in the next, which would fail alike.
Compiles share nothing else.
"""

from __future__ import annotations

from typing import Any

from litz_plugins.errors import PluginError

_objects: list[tuple[Any, PluginError]] = []
_entries: dict[tuple[str, str, str], PluginError] = {}
"""By (dist, version, entry point) of what could not even be imported."""
_closed: list[Any] = []
"""Plugins whose stores of graphs have failed: nothing else of theirs is left out."""


def add(obj: Any, error: PluginError) -> None:
    """Notes that a plugin has failed, unless that is noted. obj: the module or object with its hooks."""
    if reason(obj) is None:
        _objects.append((obj, error))


def reason(obj: Any) -> PluginError | None:
    """Returns why a plugin is left out; None if it is not."""
    return next((error for known, error in _objects if known is obj), None)


def add_entry(dist: str, version: str, value: str, error: PluginError) -> None:
    """Notes that an entry point could not be imported."""
    _entries[dist, version, value] = error


def entry_reason(dist: str, version: str, value: str) -> PluginError | None:
    """Returns why an entry point is not imported; None if it is."""
    return _entries.get((dist, version, value))


def close_store(obj: Any) -> None:
    """Notes that what a plugin keeps of graphs is not asked for again."""
    if not is_closed(obj):
        _closed.append(obj)


def is_closed(obj: Any) -> bool:
    """Returns whether what a plugin keeps of graphs is out of use."""
    return any(known is obj for known in _closed)


def size() -> int:
    """Returns how many plugins have failed."""
    return len(_objects)


def forget() -> None:
    """Forgets all failures, so that plugins are tried again: for tests."""
    _objects.clear()
    _closed.clear()
    _entries.clear()
