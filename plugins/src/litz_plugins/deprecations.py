"""What the plugin API had and gives up: a table. In: the name that a plugin uses. Out: a warning, or why it is gone.

A row stays in the table for good. The row warns in the minor version that it names and in the next one, while the old
name works; from then on the old name is an error that says what took its place.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from litz_plugins.versions import API_VERSION, minor

WARNS_FOR = 2
"""Minor versions in which a deprecated name works and warns."""

Kind = Literal["hook", "parameter", "name"]


class PluginDeprecationWarning(DeprecationWarning):
    """A plugin uses what a later version of litz-plugins will not have. pytest and `litz doctor` show it."""


@dataclass(frozen=True)
class Deprecation:
    """A name that is given up.

    kind: a "hook" ("litz_x"), a hook's "parameter" ("litz_x.y"), or a "name" of the package litz_plugins ("Y"). since:
    the first minor version that warns. instead: what to write now, as a sentence for the author. new: the hook or name
    that the old one stands for while it works; '' for one that nothing replaces.
    """

    kind: Kind
    old: str
    since: str
    instead: str
    new: str = ""

    @property
    def gone_in(self) -> str:
        """Returns the first minor version that does not have the name."""
        major, number = minor(self.since)
        return f"{major}.{number + WARNS_FOR}"

    def works(self, version: str = API_VERSION) -> bool:
        """Returns whether the old name still works, with a warning, in `version`."""
        return minor(version) < minor(self.gone_in)

    def __str__(self) -> str:
        return f"the {self.kind} {self.old!r} is deprecated since litz-plugins {self.since}: {self.instead}"


DEPRECATIONS: tuple[Deprecation, ...] = ()
"""Everything that was given up since 0.1."""


def find(kind: Kind, old: str, table: Iterable[Deprecation] | None = None) -> Deprecation | None:
    """Returns the row of a deprecated name; None for a name that is not deprecated."""
    rows = DEPRECATIONS if table is None else table
    return next((row for row in rows if row.kind == kind and row.old == old), None)


def current_hook(hook: str) -> str:
    """Returns the hook that a name stands for: itself, or its successor while the old name works."""
    row = find("hook", hook)
    return row.new if row is not None and row.new and row.works() else hook


def why_gone(hook: str) -> str:
    """Returns why litz no longer has a hook and what to write; '' for a name that was never a hook or still works."""
    row = find("hook", hook)
    return "" if row is None or row.works() else f"it was given up in litz-plugins {row.gone_in}: {row.instead}"


def warn_of(kind: Kind, old: str, by: str = "", stacklevel: int = 3) -> None:
    """Warns where a name is deprecated. by: who uses the name, such as "plugin 'gentle' (litz-gentle 1.0)"."""
    row = find(kind, old)
    if row is not None and row.works():
        user = f"{by}: " if by else ""
        message = f"{user}{row}. It works until litz-plugins {row.gone_in}"
        warnings.warn(message, PluginDeprecationWarning, stacklevel=stacklevel)


__all__ = [
    "DEPRECATIONS",
    "WARNS_FOR",
    "Deprecation",
    "PluginDeprecationWarning",
    "current_hook",
    "find",
    "warn_of",
    "why_gone",
]
