"""No file of Python is too long to have one job, and the core does not grow."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST = 600
"""Lines. A file that gets longer is split by job (CONTRIBUTING.md)."""
CORE, CORE_FILES = 45_000, 5
"""Lines of `core/src`, and files that lie loose in it. The goal is 45,000 lines. Lower CORE when the core shrinks.
Raise it only for what no hook can add, and say why in the commit."""
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
