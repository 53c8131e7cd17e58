"""TorchInductor's names of settings, and what litz has in their place: for docs/from_inductor.md and error messages.

In: a name that litz does not have. Out: what to write instead, or why there is nothing, by inductor_names.toml.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True)
class Equivalent:
    """A row. names: of `torch._inductor.config`. ours: litz's option or mode, as Markdown; "none" where litz has no
    switch. note: how the two differ, or why there is no switch."""

    names: tuple[str, ...]
    ours: str
    note: str = ""


@cache
def equivalents() -> tuple[Equivalent, ...]:
    """Returns every setting of TorchInductor's that litz's users may look for."""
    text = (resources.files(__package__) / "inductor_names.toml").read_text(encoding="utf-8")
    return tuple(Equivalent(tuple(row.pop("names")), **row) for row in tomllib.loads(text)["setting"])


def in_litz(name: str) -> str:
    """Returns words, for an error message, on litz's counterpart of a TorchInductor setting; '' if unknown."""
    row = next((row for row in equivalents() if name in row.names), None)
    if row is None:
        return ""
    ours, note = row.ours.replace("`", ""), row.note.replace("`", "")
    if ours == "none":
        return f"TorchInductor's {name} has no counterpart in litz: {note}"
    return f"TorchInductor's {name} is litz's {ours}" + (f" ({note})" if note else "")
