"""Plugins that somebody expects and that are not there. In: a plugin's name, a folder, or a variable. Out: what to
do about it.

A plugin is found by its dist's entry point. So one whose dist is not installed says nothing at all: an option of its
own is unknown, a variable is read by nobody, and a project in the working folder is never imported.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from litz_plugins.loading import ENTRY_POINT_GROUP
from litz_plugins.strict import variable
from litz_plugins.words import CORE_VARIABLES, OWN_DISTS, install


@dataclass(frozen=True)
class Missing:
    """A plugin that is not installed. dist: that has it. what: why it is expected. todo: how to install it. wanted:
    somebody has asked for it, by more than that litz offers it."""

    plugin: str
    dist: str
    what: str
    todo: str
    wanted: bool = True


def how_to_install(plugin: str) -> str:
    """Returns what to do where no dist has a plugin of this name."""
    if plugin in OWN_DISTS:
        return f"its plugin {plugin!r} is not installed: {install(plugin)}"
    return f"no installed plugin is called {plugin!r}: install the plugin's dist (`litz plugins` lists what there is)"


def own_dists(known: Collection[str]) -> list[Missing]:
    """Returns litz's own dists that are not installed. known: the names of the plugins that are there."""
    return [
        Missing(plugin, dist, f"not installed; it {does}", install(plugin), wanted=False)
        for plugin, (dist, does) in OWN_DISTS.items()
        if plugin not in known
    ]


def projects(folder: Path, known: Collection[str]) -> list[Missing]:
    """Returns plugin projects that are not installed, in this folder, in one inside, or in one above."""
    found: dict[str, Missing] = {}
    for file in _project_files(folder):
        try:
            project = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {})
            names = [*project.get("entry-points", {}).get(ENTRY_POINT_GROUP, {})]
            dist = str(project.get("name", file.parent.name))
        except (OSError, ValueError, AttributeError, TypeError):  # whose file it is finds out what is wrong with it
            continue
        for name in sorted(set(names) - set(known)):
            what, todo = f"the project in {file.parent} has it, and is not installed", f"pip install -e {file.parent}"
            found.setdefault(name, Missing(name, dist, what, todo))
    return list(found.values())


def _project_files(folder: Path) -> Iterator[Path]:
    try:
        inside = sorted(each for each in folder.iterdir() if each.is_dir())
    except OSError:
        inside = []
    for each in (folder, *inside, *folder.parents):
        file = each / "pyproject.toml"
        if file.is_file():
            yield file


def variables(given: Iterable[str], options: Iterable[str], known: Collection[str]) -> list[Missing]:
    """Returns the variables that are set for options of litz's own plugins, which are not installed. given: the names
    of all that are set. options: the names of the options that there are."""
    read = {*CORE_VARIABLES, *map(variable, options)}
    found = []
    for name in sorted(set(given) - read):
        for plugin, (dist, _) in OWN_DISTS.items():
            if plugin not in known and name.startswith(f"{variable(plugin)}_"):
                what = f"{name} is set, and its plugin {plugin!r} is not installed: nobody reads it"
                found.append(Missing(plugin, dist, what, f"{install(plugin)}, or unset {name}"))
    return found


__all__ = ["Missing", "how_to_install", "own_dists", "projects", "variables"]
