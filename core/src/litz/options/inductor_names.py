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
    """A row. names: of `torch._inductor.config`, or patterns of names. kind, ours, note: as inductor_names.toml says;
    ours and note are Markdown."""

    names: tuple[str, ...]
    kind: str
    ours: str = ""
    note: str = ""


SENTENCES = {
    "plugin": "in place of TorchInductor's {name}, write a plugin with the hook {ours}",
    "unneeded": "drop the option: litz needs no counterpart of TorchInductor's {name}",
    "missing": "drop the option: litz has no counterpart of TorchInductor's {name}",
}
"""What an error says of a name, by its row's kind. Of every other kind it names litz's option."""


@cache
def equivalents() -> tuple[Equivalent, ...]:
    """Returns the rows that cover every setting of TorchInductor's. The first row that has a name counts."""
    text = (resources.files(__package__) / "inductor_names.toml").read_text(encoding="utf-8")
    return tuple(Equivalent(tuple(row.pop("names")), **row) for row in tomllib.loads(text)["setting"])


def row_of(name: str) -> Equivalent | None:
    """Returns the row of a TorchInductor setting; None if no row has the name."""
    return next((row for row in equivalents() if any(fnmatchcase(name, each) for each in row.names)), None)


def in_litz(name: str) -> str:
    """Returns words, for an error message, on litz's counterpart of a TorchInductor setting; '' if unknown."""
    row = row_of(name)
    if row is None:
        return ""
    said = SENTENCES.get(row.kind, "TorchInductor's {name} is litz's {ours}").format(name=name, ours=row.ours)
    note = f". {row.note[:1].upper()}{row.note[1:]}" if row.kind in SENTENCES else f" ({row.note})"
    return (said + note if row.note else said).replace("`", "")
