"""TorchInductor's names of settings, and what litz has in their place: for docs/from_inductor.md and error messages.

In: a name that litz does not have. Out: what to write instead, or why there is nothing, by inductor_names.toml.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources


@dataclass(frozen=True)
class Equivalent:
    """A row of inductor_names.toml, which says what the fields are. sentence: what an error says, by the row's kind."""

    names: tuple[str, ...]
    sentence: str
    kind: str
    ours: str = ""
    note: str = ""


@cache
def equivalents() -> tuple[Equivalent, ...]:
    """Returns the rows that cover every setting of TorchInductor's. The first row that has a name counts."""
    text = (resources.files(__package__) / "inductor_names.toml").read_text(encoding="utf-8")
    data = tomllib.loads(text)
    return tuple(Equivalent(tuple(row.pop("names")), data["kinds"][row["kind"]], **row) for row in data["setting"])


def row_of(name: str) -> Equivalent | None:
    """Returns the row of a TorchInductor setting; None if no row has the name."""
    return next((row for row in equivalents() if any(fnmatchcase(name, each) for each in row.names)), None)


def in_litz(name: str) -> str:
    """Returns words, for an error message, on litz's counterpart of a TorchInductor setting; '' if unknown."""
    row = row_of(name)
    if row is None:
        return ""
    said = row.sentence.format(name=name, ours=row.ours, note=row.note)
    return (f"{said} ({row.note})" if row.ours and row.note else said).replace("`", "")
