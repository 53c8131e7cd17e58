"""A device's file of figures: in, the file that is there and what was measured; out, its text with the new tables.

Tables that were not measured now stay as they are, word for word, with their comments.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from litz.target import load_calibration

_HEADER = re.compile(r"^\[([\w.-]+)\][ \t]*$", re.MULTILINE)


@dataclass(frozen=True)
class Measured:
    """A table of a file: name ("measured", "cpp.most_columns"), what it holds, and how that was found."""

    name: str
    values: Mapping[str, Any]
    source: str
    date: str
    command: str

    def __str__(self) -> str:
        said = {"source": self.source, "date": self.date, "command": self.command}
        rows = [f"{key} = {_toml(value)}" for key, value in {**self.values, **said}.items()]
        return "\n".join([f"[{self.name}]", *rows]) + "\n"


def speeds_of(figures: Mapping[str, float], source: str, date: str, command: str) -> Measured:
    """Returns the table of a device's speeds. figures: by name ("bandwidth_gb_s", "matrix_tflops.bf16")."""
    values: dict[str, Any] = {}
    for name, value in figures.items():
        table, _, kind = name.partition(".")
        if kind:
            values.setdefault(table, {})[kind] = value
        else:
            values[table] = value
    return Measured("measured", values, source, date, command)


def write_file(path: Path, type: str, name: str, tables: Sequence[Measured]) -> None:
    """Writes what was measured of a device into its file, in place of the tables of the same names, and reads the file
    as a compile does where it is a calibration file. type, name: of the device, for a file that is not there yet.
    Errors: OSError; CalibrationError for a file that was no calibration file before."""
    new = f"type = {_toml(type)}\nname = {_toml(name)}\n"
    text = path.read_text(encoding="utf-8") if path.exists() else new
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(rewritten(text, tables), encoding="utf-8")
    if "[datasheet]" not in text:
        load_calibration(path)


def rewritten(text: str, tables: Sequence[Measured]) -> str:
    """Returns a file's text with these tables in place of those of the same names, new ones at the end."""
    left = {table.name: str(table) for table in tables}
    ends = [*(match.start() for match in _HEADER.finditer(text)), len(text)]
    blocks = [text[a:b] for a, b in itertools.pairwise([0, *ends])]
    for number, block in enumerate(blocks):
        header = _HEADER.match(block)
        if header is not None and header[1] in left:
            blocks[number] = left.pop(header[1]) + "\n"
    return "\n".join([("".join(blocks)).rstrip() + "\n", *left.values()])


def _toml(value: Any) -> str:
    """Returns a value as TOML has it: a number, a bool, a text, a list, or a table in one line."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
