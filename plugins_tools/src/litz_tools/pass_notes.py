"""What a report has of passes. In: each pass as it has run, or a report. Out: notes for the report, or what is in them.

Nobody is told of passes whose report nobody reads: to count and to print nouns takes as long as a pass.
"""

from __future__ import annotations

from dataclasses import dataclass

from litz.report import CompileReport
from litz_plugins import Pass
from litz_plugins.nouns import Noun

from .changes import Change, Texts
from .effects import Effect, effect


@dataclass(frozen=True)
class PassNote:
    """plugin, name: of a pass that changed something. effect: what, counted. change: the lines, where the report is
    written to files."""

    plugin: str
    name: str
    effect: Effect
    change: Change | None = None


class PassNotes:
    """Makes the notes of one graph's passes. lines: with the lines that came and went."""

    def __init__(self, lines: bool) -> None:
        self._texts = Texts() if lines else None

    def __call__(self, pass_: Pass, before: Noun, after: Noun, seconds: float) -> PassNote | None:
        """Returns the note of a pass that has run, in `seconds`; None where it returned what it was given."""
        if after is before:
            return None
        change = None if self._texts is None else self._texts.change(pass_, before, after, seconds)
        return PassNote(pass_.plugin, pass_.name, effect(before, after), change)


def changes_of(report: CompileReport) -> tuple[Change, ...]:
    """Returns what each pass changed, in the order of the passes."""
    return tuple(note.change for note in report.noted if isinstance(note, PassNote) and note.change is not None)


def effects_of(report: CompileReport) -> dict[tuple[str, str], Effect]:
    """Returns what passes changed in all their runs, by plugin and pass."""
    found: dict[tuple[str, str], Effect] = {}
    for note in report.noted:
        if isinstance(note, PassNote):
            key = note.plugin, note.name
            found[key] = found[key] + note.effect if key in found else note.effect
    return found


__all__ = ["PassNote", "PassNotes", "changes_of", "effects_of"]
