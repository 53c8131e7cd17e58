"""No file of Python is too long to have one job."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST = 600
"""Lines. A file that gets longer is split by job (CONTRIBUTING.md)."""
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
