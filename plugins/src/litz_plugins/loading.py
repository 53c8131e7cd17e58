"""Finding plugins: in, entry points and the names to leave out; out, imported plugin objects with where they came from.

Sorted by name, so that the order of plugins never depends on the order of directories on disk.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from litz_plugins import quarantine
from litz_plugins.errors import DuplicatePluginError, PluginError, PluginLoadError, PluginVersionError
from litz_plugins.versions import VERSION, unmet

ENTRY_POINT_GROUP = "litz"

Status = Literal["builtin", "external", "blocked", "failed", "missing"]
"""Of a plugin. missing: expected, and not installed (`litz_plugins.missing`); no source has this one."""


@dataclass(frozen=True)
class Source:
    """The source of a plugin. obj: the module or object with the hooks, None if it was blocked or failed.

    dist, version: of the distribution that offers it, '' for a plugin that was passed in. error: why it failed. tried:
    it failed earlier in this process, and was not imported again. target: what the entry point names
    ("litz_gentle:plugin"), '' without one.
    """

    name: str
    obj: Any
    status: Status
    dist: str = ""
    version: str = ""
    error: PluginError | None = None
    tried: bool = False
    target: str = ""

    @property
    def origin(self) -> str:
        """Returns where the plugin comes from, for messages: "litz-autotune 0.1.0", "built into litz", or "passed in by
        the caller"."""
        if self.dist:
            return f"{self.dist} {self.version}".strip()
        return "built into litz" if self.status == "builtin" else "passed in by the caller"


def installed_entry_points() -> list[importlib.metadata.EntryPoint]:
    """Returns the entry points of group "litz" of every installed dist. The dists are looked for again when `sys.path`
    or one of its folders has changed: each compile asks, and a look takes as long as a small schedule."""
    return list(_found(tuple(map(_state, sys.path))))


@functools.lru_cache(maxsize=8)
def _found(state: tuple[tuple[str, int], ...]) -> tuple[importlib.metadata.EntryPoint, ...]:
    """Returns what `sys.path` in this state has; a dist that is installed or removed changes the time of its folder."""
    return tuple(importlib.metadata.entry_points(group=ENTRY_POINT_GROUP))


def _state(folder: str) -> tuple[str, int]:
    try:
        return folder, os.stat(folder or ".").st_mtime_ns
    except OSError:
        return folder, 0


def load_entry_points(
    entry_points: Iterable[importlib.metadata.EntryPoint], disable: Collection[str] = (), quarantined: bool = False
) -> list[Source]:
    """Imports what the entry points name, sorted by name.

    A plugin whose import fails has status "failed" and its PluginLoadError. A plugin whose dist asks for another
    version of litz-plugins is not imported, and has status "failed" and a PluginVersionError. The caller decides
    whether to raise. A name in ``disable`` is not imported at all; nor, if ``quarantined``, what failed earlier in this
    process. Errors: DuplicatePluginError, when two dists share a name that is not disabled.
    """
    by_name: dict[str, dict[tuple[str, str], _Offered]] = defaultdict(dict)
    for offered in map(_offered, entry_points):
        # A dist that is on sys.path twice (installed, and as a checkout's egg-info) is one plugin, not two.
        by_name[offered.point.name].setdefault((offered.dist, offered.point.value), offered)
    sources = []
    for name, candidates in sorted(by_name.items()):
        offered = next(iter(candidates.values()))
        if name in disable:
            sources.append(Source(name, None, "blocked", offered.dist, offered.version))
        elif len(candidates) > 1:
            # Sorted: the order of directories differs from machine to machine, and the message should not.
            raise DuplicatePluginError(
                name, sorted(f"{each.dist} {each.version} ({each.point.value})" for each in candidates.values())
            )
        else:
            sources.append(_load(offered, quarantined))
    return sources


@dataclass(frozen=True)
class _Offered:
    """An entry point and what its dist says of itself."""

    point: importlib.metadata.EntryPoint
    dist: str = "an unknown dist"
    version: str = ""
    requires: tuple[str, ...] = ()


def _offered(point: importlib.metadata.EntryPoint) -> _Offered:
    return _Offered(point) if point.dist is None else _Offered(point, *_about(point.dist))


@functools.lru_cache(maxsize=64)
def _about(dist: importlib.metadata.Distribution) -> tuple[str, str, tuple[str, ...]]:
    """A dist's name, version and requirements; each look at its metadata parses the text anew."""
    about = dist.metadata
    requires = about.get_all("Requires-Dist") or dist.requires or ()  # an egg-info has them elsewhere
    return str(about["Name"]), str(about["Version"]), tuple(requires)


def _load(offered: _Offered, quarantined: bool) -> Source:
    entry_point, dist, version = offered.point, offered.dist, offered.version
    known = quarantine.entry_reason(dist, version, entry_point.value) if quarantined else None
    if known is not None:
        return Source(entry_point.name, None, "failed", dist, version, known, tried=True)
    needs = unmet(offered.requires, VERSION)
    if needs:
        version_error = PluginVersionError(entry_point.name, f"{dist} {version}".strip(), needs, VERSION)
        return Source(entry_point.name, None, "failed", dist, version, version_error)
    try:
        obj = entry_point.load()
    except (Exception, SystemExit) as cause:  # a module that exits on import must not take the process along
        repair = _repair(cause, entry_point.module, dist)
        error = PluginLoadError(
            entry_point.name, f"{dist} {version}".strip(), cause, entry_point=entry_point.value, repair=repair
        )
        error.__cause__ = cause
        if quarantined:
            quarantine.add_entry(dist, version, entry_point.value, error)
        return Source(entry_point.name, None, "failed", dist, version, error)
    return Source(entry_point.name, obj, "external", dist, version, target=entry_point.value)


def _repair(cause: BaseException, module: str, dist: str) -> str:
    """Returns what to do about an import that failed, '' where that is unknown."""
    name = cause.name if isinstance(cause, ModuleNotFoundError) else None
    if not name:
        return ""
    if name == module or module.startswith(f"{name}."):
        return f"{dist} is installed without {name}: install it again, with pip's --force-reinstall --no-deps"
    return f"install the dist that has the module {name}, which {dist} imports"
