"""The tables of docs/from_inductor.md, from core/src/litz/options/inductor_names.toml and litz's own options.

`python -m website.from_inductor` compares the page with the tables; with `--write` it writes the page. With `--names`
it adds the settings of the installed torch to tests/support/inductor_settings.txt: do so for each new version of torch.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from litz.options import core_options
from litz.options.inductor_names import Equivalent, equivalents

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "from_inductor.md"
NAMES = ROOT / "tests" / "support" / "inductor_settings.txt"
TABLE = re.compile(r"(<!-- settings: (\w+) -->\n)(.*?)(<!-- end of settings -->)", re.DOTALL)
NO_OPTION = {"unneeded": "not needed", "missing": "none"}


def settings_of_installed_torch() -> set[str]:
    """Returns the names that `torch._inductor.config` has; an import of typing's among them is none."""
    return {*importlib.import_module("torch._inductor.config")._config} - {"TYPE_CHECKING"}


def settings_by_version() -> dict[str, list[str]]:
    """Returns each setting that a supported torch has, with the versions ("2.13") that have it."""
    lines = NAMES.read_text(encoding="utf-8").splitlines()
    return {name: versions for name, *versions in map(str.split, lines) if name != "#"}


def tables() -> dict[str, str]:
    """Returns the page's tables by their marks' names."""
    rows = [row for row in equivalents() if not _is_aot(row)]

    def of(*kinds: str) -> Sequence[Equivalent]:
        return [row for row in rows if row.kind in kinds]

    return {
        "options": _three_columns("litz's", of("same", "name")),
        "different": _two_columns("what is different", of("different")),
        "plugin": _three_columns("hook", of("plugin")),
        "aot": _three_columns("litz_aot's", [row for row in equivalents() if _is_aot(row)]),
        "missing": _two_columns("what you lose", of("missing")),
        "unneeded": _two_columns("why litz needs none", of("unneeded")),
    }


def misleading() -> set[str]:
    """Returns litz's options that have the name of a setting of TorchInductor's, and are not said to mean the same."""
    said = {name for row in equivalents() if row.kind == "same" for name in row.names}
    return {row.name for row in core_options()} & {*settings_by_version()} - said


def with_tables(text: str) -> str:
    """Returns the page's text with its tables made anew."""
    made = tables()
    return TABLE.sub(lambda mark: f"{mark[1]}{made[mark[2]]}\n{mark[4]}", text)


def _is_aot(row: Equivalent) -> bool:
    return row.names[0].startswith("aot_inductor")


def _three_columns(ours: str, rows: Sequence[Equivalent]) -> str:
    lines = [f"| {_names(row)} | {row.ours or NO_OPTION[row.kind]} | {_cell(row.note)}|" for row in rows]
    return "\n".join([f"| Inductor's setting | {ours} | remarks |", "|---|---|---|", *lines])


def _two_columns(heading: str, rows: Sequence[Equivalent]) -> str:
    lines = [f"| {_names(row)} | {_cell(row.note)}|" for row in rows]
    return "\n".join([f"| Inductor's setting | {heading} |", "|---|---|", *lines])


def _names(row: Equivalent) -> str:
    return ", ".join(f"`{name}`" for name in row.names)


def _cell(note: str) -> str:
    return f"{note} " if note else ""


def _with_installed(known: Mapping[str, Sequence[str]]) -> str:
    version = ".".join(torch.__version__.split(".")[:2])
    here = settings_of_installed_torch()
    held = {
        name: {*known.get(name, ())} - {version} | ({version} if name in here else set())
        for name in known.keys() | here
    }
    lines = [f"{name} {' '.join(sorted(versions))}" for name, versions in sorted(held.items()) if versions]
    return "\n".join(["# Settings of torch._inductor.config, and the versions of torch that have them.", *lines, ""])


if __name__ == "__main__":
    if "--names" in sys.argv[1:]:
        NAMES.write_text(_with_installed(settings_by_version()), encoding="utf-8")
    text = PAGE.read_text(encoding="utf-8")
    if "--write" in sys.argv[1:]:
        PAGE.write_text(with_tables(text), encoding="utf-8")
    elif text != with_tables(text):
        sys.exit(f"{PAGE.name} differs from inductor_names.toml: python -m website.from_inductor --write")
