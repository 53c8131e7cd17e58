"""docs/security.md: each statement names tests that are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_each_statement_has_a_test() -> None:
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    tables = re.findall(r"\| statement \|.*\n\|---.*\n((?:\|.*\n)+)", page)
    rows = [row for table in tables for row in table.splitlines()]
    assert len(tables) >= 2 and len(rows) >= 20
    for row in rows:
        file, cell = "", row.rstrip("|").rpartition("|")[2]
        named = re.findall(r"`(?:([\w/]+\.py)::)?(test_\w+)`", cell)
        assert named, row
        for path, name in named:
            file = path or file
            assert name in found_in(file), f"{file} has no {name}"


def found_in(file: str) -> set[str]:
    place = next(path for path in (ROOT / "tests" / "security" / file, ROOT / "tests" / file) if path.is_file())
    tree = ast.parse(place.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
