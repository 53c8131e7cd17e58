"""No file of Python is too long to have one job, and the core neither grows nor names a plugin's modules."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from litz_plugins.words import OWN_DISTS

ROOT = Path(__file__).parents[2]
MOST = 600
"""Lines. A file that gets longer is split by job (CONTRIBUTING.md)."""
CORE, CORE_FILES = 45_000, 5
"""Lines of `core/src`, and files that lie loose in it. The goal is 45,000 lines. Lower CORE when the core shrinks.
Raise it only for what no hook can add, and say why in the commit."""
CONTRACTIONS = 11_129
"""Lines of `plugins_contractions/src`, which may only shrink. The goal is 4,500 (docs/tiles.md)."""
WHERE = (
    "core/src",
    "plugins/src",
    "plugins_*/src",
    "testing/src",
    "tests",
    "benchmarks",
    "website",
    "release",
    "examples",
)


@pytest.mark.parametrize("where", WHERE)
def test_no_file_is_too_long(where: str) -> None:
    files = [path for folder in ROOT.glob(where) for path in folder.rglob("*.py")]
    lengths = {str(path.relative_to(ROOT)): path.read_bytes().count(b"\n") for path in files}
    assert files and {name: lines for name, lines in lengths.items() if lines > MOST} == {}


def test_the_core_does_not_grow() -> None:
    lines = sum(path.read_bytes().count(b"\n") for path in (ROOT / "core/src").rglob("*.py"))
    assert CORE - 500 < lines <= CORE, "lower CORE" if lines <= CORE else "put it behind a hook (CONTRIBUTING.md)"
    assert len([*(ROOT / "core/src/litz").glob("*.py")]) <= CORE_FILES


def test_contractions_shrink() -> None:
    lines = sum(path.read_bytes().count(b"\n") for path in (ROOT / "plugins_contractions/src").rglob("*.py"))
    assert CONTRACTIONS - 100 < lines <= CONTRACTIONS, "lower CONTRACTIONS" if lines <= CONTRACTIONS else "unite"


def test_the_core_names_no_module_of_a_plugin() -> None:
    """What a plugin does comes by a hook. But others look for attributes of the package that are litz-aot's."""
    dists, core = {f"litz_{plugin}" for plugin in OWN_DISTS}, ROOT / "core/src/litz"
    named = {
        (str(path.relative_to(core)), name)
        for path in core.rglob("*.py")
        for name in modules_named(ast.parse(path.read_text(encoding="utf-8")))
        if name.partition(".")[0] in dists
    }
    assert named == {("__init__.py", "litz_aot")}


def modules_named(tree: ast.AST) -> set[str]:
    """What a file imports, and texts that are the name of a module and nothing else."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found |= {each.name for each in names}
            case ast.ImportFrom(module=str(module)):
                found.add(module)
            case ast.Constant(value=str(text)) if text.replace(".", "_").isidentifier():
                found.add(text)
    return found
