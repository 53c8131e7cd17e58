"""What a script is measured as. In: what the user writes after --against. Out: a `Side`, and a commit's packages."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import litz
from litz.driver.plugin_options import plugin_options
from litz_plugins import Plugins
from litz_tools.errors import BisectError

Backend = Literal["litz", "eager", "inductor"]


@dataclass(frozen=True)
class Side:
    """A way to run the script: by which backend, with which options besides the script's own, by which litz.

    path: folders to import litz and its plugins from, () for this one.
    """

    name: str
    backend: Backend = "litz"
    options: Mapping[str, Any] = field(default_factory=dict)
    commit: str = ""
    path: tuple[str, ...] = ()


def side_of(text: str, plugins: Plugins) -> Side:
    """The side that `--against TEXT` names: "eager", "inductor", options ("fusion=false, autotune.budget_s=10") or a
    commit of the checkout that litz is imported from. Errors: BisectError, and those of options."""
    if text == "eager":
        return Side("eager", "eager")
    if text == "inductor":
        return Side("inductor", "inductor")
    if "=" in text:
        options = parse_options(text)
        plugin_options(plugins, None, options)  # a wrong one is found now, not in each run
        return Side(text, options=options)
    checkout = checkout_of_litz()
    commit = "" if checkout is None else _git(checkout, "rev-parse", "--verify", "--quiet", text + "^{commit}").strip()
    if checkout is None or not commit:
        where = "litz is not imported from a git checkout" if checkout is None else f"{checkout} has no such commit"
        raise BisectError(
            f"there is nothing called {text!r} to bisect against",
            where=where,
            todo='write --against eager, inductor, a commit of litz, or options such as "fusion=false"',
        )
    return Side(f"commit {text}", commit=commit, options={"on_plugin_error": "disable"})


def parse_options(text: str) -> dict[str, Any]:
    """Returns options read from a text such as "fusion=false, sizes=64;128": Python's words, numbers and text;
    semicolons separate the items of a list. Errors: BisectError."""
    found: dict[str, Any] = {}
    for item in filter(None, map(str.strip, text.split(","))):
        name, equals, value = item.partition("=")
        if not equals or not name.strip():
            raise BisectError(
                f"{item!r} is not an option and its value",
                where="--against",
                todo='write name=value, as "fusion=false"',
            )
        parts = [_value(part.strip()) for part in value.split(";")]
        found[name.strip()] = parts[0] if len(parts) == 1 else tuple(parts)
    return found


_WORDS: Mapping[str, Any] = {"true": True, "false": False, "none": None}


def _value(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    return found if isinstance(found, (int, float, str)) else text


def checkout_of_litz() -> Path | None:
    """Returns the git checkout that this litz is imported from; None if it is not imported from a checkout."""
    folder = Path(litz.__file__).resolve().parent
    found = _git(folder, "rev-parse", "--show-toplevel").strip()
    return Path(found) if found and _git(Path(found), "ls-files", str(Path(litz.__file__).resolve())).strip() else None


def _git(folder: Path, *arguments: str) -> str:
    """Returns the output of a git command; '' where git fails or is not installed."""
    try:
        line = ["git", "-C", str(folder), *arguments]
        done = subprocess.run(line, capture_output=True, text=True, encoding="utf-8", errors="replace", timeout=120)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


@contextmanager
def checked_out(commit: str, folder: Path) -> Iterator[tuple[str, ...]]:
    """The folders to import a commit's litz and plugins from, in a git worktree below `folder` while the `with` lasts.
    Errors: BisectError."""
    checkout = checkout_of_litz()
    tree = folder / "commit"
    made = "" if checkout is None else _git(checkout, "worktree", "add", "--detach", str(tree), commit)
    if checkout is None or not (tree / "core").is_dir():
        raise BisectError(
            f"commit {commit} could not be checked out",
            where=made.strip() or str(checkout),
            todo=f"try `git worktree add --detach /tmp/tree {commit}` and see what it says",
        )
    try:
        yield tuple(map(str, package_folders(tree)))
    finally:
        _git(checkout, "worktree", "remove", "--force", str(tree))


def package_folders(checkout: Path) -> Sequence[Path]:
    """Returns the folders of a checkout that have the dists' packages."""
    return sorted(checkout.glob("*/src"))


__all__ = ["Side", "checked_out", "checkout_of_litz", "package_folders", "parse_options", "side_of"]
