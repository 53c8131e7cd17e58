"""What `torch._dynamo.reset()` makes litz forget: every large memo, of whichever module."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

from litz.backend import MEMOS, litz
from litz.ir.index import loop_var, stride_of

ROOT = Path(__file__).parents[2]
LARGE = 1024
"""Answers that a memo of expressions, loads or layouts holds at least; memos of the machine hold fewer."""


def memos(file: Path) -> Iterator[str]:
    """The functions of a module that remember at least `LARGE` answers, or as many as a constant says."""
    for node in ast.walk(ast.parse(file.read_text())):
        for each in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
            if isinstance(each, ast.Call) and ast.unparse(each.func) in ("lru_cache", "functools.lru_cache"):
                (size,) = (*each.args, *(keyword.value for keyword in each.keywords))
                names = any(isinstance(part, ast.Name) for part in ast.walk(size))
                if names or eval(ast.unparse(size)) >= LARGE:
                    yield node.name


def test_every_large_memo_is_named() -> None:
    found = {}
    for file in [*ROOT.glob("core/src/**/*.py"), *ROOT.glob("plugins*/src/**/*.py")]:
        parts = file.with_suffix("").parts
        if names := set(memos(file)):
            found[".".join(parts[parts.index("src") + 1 :])] = names
    assert found == {module: set(names) for module, names in MEMOS.items()}, "add it to litz.backend.MEMOS"
    for module, names in MEMOS.items():
        assert all(hasattr(getattr(importlib.import_module(module), name), "cache_clear") for name in names)


def test_a_reset_forgets_them() -> None:
    stride_of(3 * loop_var(0), loop_var(0))
    assert stride_of.cache_info().currsize
    litz.reset()  # type: ignore[attr-defined]
    assert not stride_of.cache_info().currsize
