"""What is installed, read once for each list of folders that it may lie in.

Each compile asks which plugins there are, and each of them for its dist's name and version: 6 ms, of the 80 that a
small compile takes. A process under test that starts by itself does so; tests in one process share an answer.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import sys
from typing import Any


def read_once() -> None:
    """Has `importlib.metadata.entry_points` answer as before while `sys.path` and its folders are what they were, and
    a dist's metadata be read once."""
    ask, answers = importlib.metadata.entry_points, dict[Any, Any]()

    @functools.wraps(ask)
    def entry_points(**asked: Any) -> Any:
        key = (*map(_state, sys.path), *sorted(asked.items()))
        if key not in answers:
            answers[key] = ask(**asked)
        return answers[key]

    importlib.metadata.entry_points = entry_points
    dist: Any = importlib.metadata.Distribution
    kept = functools.cached_property(dist.metadata.fget)
    kept.__set_name__(dist, "metadata")
    dist.metadata = kept


def _state(folder: str) -> tuple[str, int]:
    try:
        return folder, os.stat(folder or ".").st_mtime_ns
    except OSError:
        return folder, 0


__all__ = ["read_once"]
