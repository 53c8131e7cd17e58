"""What a plugin is told of a compile while the compile runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from litz_plugins.nouns import Noun
from litz_plugins.records.passes import Pass


@dataclass(frozen=True)
class Watcher:
    """Functions that are called while a graph is captured or compiled; what a plugin does not want to know is None.

    stage: called with the name of each stage that begins ("lower", "build"); the stage before it has ended. built:
    called once for each kernel that is built, by any thread, with the number of all. passed: called after each pass
    with the pass, what it was given, what it returned, and its seconds; a result that is not None is noted in the
    report of the variant that runs (``report.noted``), as a dataclass that `dataclasses.asdict` makes JSON of. ended:
    called without arguments at the end, after a failure too. plugin: filled in by the manager.
    """

    stage: Callable[[str], None] | None = None
    built: Callable[[int], None] | None = None
    passed: Callable[[Pass, Noun, Noun, float], Any] | None = None
    ended: Callable[[], None] | None = None
    plugin: str = ""


__all__ = ["Watcher"]
