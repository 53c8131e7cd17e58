"""A plugin project to start from: `scaffold` writes one of a kind (a pass, a lowering, ...) that works, with tests.

In: a name and a kind. Out: files. The templates are the example dists in `projects/`, a folder for each kind (the
repository shows them as examples/plugins/): the plugin there is called ``my_KIND``, and the scaffold puts the new name
wherever that stands. Files that all kinds share are in `project_files/`.
"""

from __future__ import annotations

import importlib.util
import keyword
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from litz_plugins.errors import LitzError, nearest
from litz_plugins.loading import installed_entry_points
from litz_plugins.words import CORE_COMMANDS, CORE_PLUGINS, CORE_VARIABLES, OWN_COMMANDS, OWN_PLUGINS

PROJECTS = Path(__file__).parent / "projects"
DEFAULT_KIND = "pass"

_SHARED = {"tests.yml": ".github/workflows/tests.yml", "gitignore": ".gitignore"}
"""Files of `project_files/`, and where they go."""
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_LONGEST = 60
_DISTS = {"plugins": "litz-plugins is the plugin API", "testing": "litz-testing is what tests litz"}
_MADE = re.compile(r"__pycache__|\.pytest_cache|build|dist|.*\.egg-info")
"""Folders beside a project's own files once somebody has installed or tested the project."""


class ScaffoldError(LitzError):
    """The project cannot be written: the name is unsuitable or taken, there is no such kind, or something is there."""


def kinds() -> dict[str, str]:
    """Returns the kinds of projects, sorted, each with what its example does."""
    return {folder.name: _description(folder) for folder in sorted(PROJECTS.iterdir()) if folder.is_dir()}


def _description(folder: Path) -> str:
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["description"]).removeprefix("A plugin of litz: ")


def scaffold(path: str | Path, name: str, kind: str = DEFAULT_KIND) -> list[Path]:
    """Writes the plugin ``name`` as a new project in the folder ``path``, which must be empty or absent.

    name: lower-case letters, digits and underscores (hyphens count as underscores). The distribution is litz-NAME, the
    package litz_NAME. kind: one of `kinds()`. Returns the files written, sorted. Errors: ScaffoldError.
    """
    name = plugin_name(name)
    check_name(name)
    known = kinds()
    if kind not in known:
        near = nearest(kind, known)
        raise ScaffoldError(
            f"there is no kind {kind!r} of plugins" + (f"; did you mean {near!r}?" if near else ""),
            todo=f"name one of {', '.join(known)}",
        )
    root = Path(path)
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise ScaffoldError(f"{root} is there already and not empty", todo="name a new folder")
    written = []
    for where, text in project_files(kind, name).items():
        file = root / where
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        written.append(file)
    return sorted(written)


def plugin_name(name: str) -> str:
    """Returns the plugin's name "my_cost" for what a user writes: "my-cost", "litz-my-cost" or "my_cost"."""
    return name.replace("-", "_").removeprefix("litz_")


def project_files(kind: str, name: str) -> dict[str, str]:
    """Returns the text of each file of a new project, by its path in the project."""
    example = f"my_{kind.replace('-', '_')}"
    words = {example: name, example.replace("_", "-"): name.replace("_", "-"), example.upper(): name.upper()}

    def renamed(text: str) -> str:
        for word, new in words.items():
            text = text.replace(word, new)
        return text

    folder = PROJECTS / kind
    texts = {str(file.relative_to(folder)): file.read_text(encoding="utf-8") for file in own_files(folder)}
    texts |= {
        where: (PROJECTS.parent / "project_files" / file).read_text(encoding="utf-8") for file, where in _SHARED.items()
    }
    return {renamed(where): renamed(text) for where, text in texts.items()}


def own_files(folder: Path) -> Iterator[Path]:
    """Yields the files of a project in ``folder``, without what an installation or a test run has left there."""
    for file in sorted(folder.rglob("*")):
        if file.is_file() and not any(_MADE.fullmatch(part) for part in file.relative_to(folder).parts):
            yield file


def check_name(name: str) -> None:
    """Raises ScaffoldError unless a new plugin can have the name. Names of core's and of installed things are taken."""
    if not _NAME.fullmatch(name) or keyword.iskeyword(name) or len(name) > _LONGEST:
        raise ScaffoldError(
            f"{name!r} cannot be a plugin's name",
            todo=f"use lower-case letters, digits and underscores, {_LONGEST} at most, as in my_cost_model",
        )
    why = _litzs(name) or _installed(name)
    if why:
        raise ScaffoldError(f"the name {name!r} is taken: {why}", todo="choose another name")


def _litzs(name: str) -> str:
    """Returns what of litz's own has the name, '' if nothing has."""
    if name in _DISTS:
        return _DISTS[name]
    if name in CORE_PLUGINS:
        return "core has a plugin of that name"
    if name in OWN_PLUGINS:
        return f"litz-{name} is a plugin of litz's own"
    command = name.replace("_", "-")
    if command in CORE_COMMANDS or command in OWN_COMMANDS:
        has_it = f"litz-{OWN_COMMANDS[command]}" if command in OWN_COMMANDS else "core"
        return f"{has_it} has the command `litz {command}`"
    # A plugin's option is the variable LITZ_PLUGIN_OPTION: the option `dir` of a plugin `cache` would be core's own.
    variable = f"LITZ_{name.upper()}"
    theirs = next((found for found in CORE_VARIABLES if f"{found}_".startswith(f"{variable}_")), "")
    return f"core reads the variable {theirs}, which the plugin's options would share" if theirs else ""


def _installed(name: str) -> str:
    """Returns what is installed under the name, '' if nothing is."""
    for point in installed_entry_points():
        if point.name == name:
            dist = point.dist
            return "a plugin of that name is installed" + (f", by {dist.name} {dist.version}" if dist else "")
    if importlib.util.find_spec(f"litz_{name}") is not None:
        return f"a package litz_{name} is installed"
    return ""
