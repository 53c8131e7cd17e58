"""The command `litz`, as a test runs it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from litz.cli.main import main


def make_runner(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Callable[..., Result]:
    """Returns what runs the command with a cache of its own in a folder, no setting of the caller's, and 80 columns."""
    for name in list(os.environ):
        if name.startswith("LITZ_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("LITZ_CACHE_DIR", str(folder / "cache"))
    monkeypatch.setenv("COLUMNS", "80")
    runner = CliRunner()
    return lambda *arguments, **more: runner.invoke(main, list(arguments), **more)


def width(text: str) -> int:
    """Returns how many columns the longest line has."""
    return max(map(len, text.splitlines()), default=0)
