"""What became of a graph's decisions, and where it is kept. In: a graph's key. Out: a `Tuned`, if there is one.

JSON in litz's disk cache, as measurements of contractions are. An entry never changes: what a later process adds,
within its own budget, is an entry of its own after the others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from litz.cache.disk import Cache, digest
from litz.logs.units import count_text, time_text

KIND = "autotune-decisions"
"""The cache's kind of these entries, as `litz cache info` lists it."""
FILE = "decisions.json"
FORMAT, VERSION = "litz-autotune-decisions", 1


@dataclass(frozen=True)
class Tried:
    """An alternative that was tried. us: of what differs, as it is and otherwise, None where it was not measured;
    whole: that was all of the graph. won, reason: what was decided, and why."""

    name: str
    won: bool
    reason: str
    us: tuple[float, float] | None = None
    whole: bool = False

    def __str__(self) -> str:
        times = "" if self.us is None else f"{time_text(self.us[0])} -> {time_text(self.us[1])}: "
        return f"{'*' if self.won else ' '} {self.name}: {times}{self.reason}"


@dataclass(frozen=True)
class Tuned:
    """ways: what is taken otherwise than by the estimates, by key without the graph. tried: all that was tried.
    complete: there was time for all that was worth it. label: what it is of, to be read. key: of the graph."""

    ways: Mapping[str, str] = field(default_factory=dict)
    tried: tuple[Tried, ...] = ()
    complete: bool = True
    label: str = ""
    key: str = ""

    def __str__(self) -> str:
        won = sum(each.won and not each.whole for each in self.tried)
        rest = "" if self.complete else "; the budget was spent before all were, the next process goes on"
        lines = [f"{count_text(len(self.tried), 'alternative')} tried, {won} taken{rest}", *map(str, self.tried)]
        if self.ways:
            lines += ["", "as an option:", f"  prefer={[f'{key}={way}' for key, way in self.ways.items()]}"]
        return "\n".join(lines)

    def to_json(self) -> str:
        """Returns the record as JSON with the name and version of its format."""
        return json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)}, sort_keys=True)

    @staticmethod
    def from_json(text: str | bytes) -> Tuned:
        """Returns the record in a JSON text. Raises ValueError for anything that is no record of this version."""
        try:
            data = json.loads(text)
            if (data["format"], data["version"]) != (FORMAT, VERSION):
                raise ValueError(f"format {data['format']!r} {data['version']!r}")
            ways = {str(key): str(way) for key, way in data["ways"].items()}
            tried = tuple(_tried(each) for each in data["tried"])
            return Tuned(ways, tried, bool(data["complete"]), str(data["label"]), str(data["key"]))
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"no record of tuned decisions: {error!r}") from error


def _tried(data: Any) -> Tried:
    us = None if data["us"] is None else (float(data["us"][0]), float(data["us"][1]))
    return Tried(str(data["name"]), bool(data["won"]), str(data["reason"]), us, bool(data["whole"]))


def find(cache: Cache, key: str) -> tuple[Tuned | None, int]:
    """Returns the last record of a graph (None if there is none), and the number of records."""
    tuned, count = None, 0
    while (folder := cache.find(KIND, digest(key, str(count)), (FILE,))) is not None:
        tuned, count = _read(folder) or tuned, count + 1
    return tuned, count


def put(cache: Cache, key: str, tuned: Tuned, count: int) -> None:
    """Stores a record after `count` others."""
    tuned = replace(tuned, key=key)

    def write(folder: Path) -> None:
        (folder / FILE).write_text(tuned.to_json(), encoding="utf-8")

    cache.build(KIND, digest(key, str(count)), write, (FILE,))


def known_entries(root: Path) -> list[str]:
    """Returns the keys of all entries in a disk cache."""
    folder = root / KIND
    return sorted(path.parent.name for path in folder.glob(f"*/{FILE}")) if folder.is_dir() else []


def latest(cache: Cache) -> list[Tuned]:
    """Returns the last record of each graph, sorted by label."""
    folder = cache.root / KIND
    found = [_read(path.parent) for path in folder.glob(f"*/{FILE}")] if folder.is_dir() else []
    last: dict[str, Tuned] = {}
    for each in found:
        if each is not None and len(each.tried) >= len(last.get(each.key, each).tried):
            last[each.key] = each
    return sorted(last.values(), key=lambda each: each.label)


def _read(folder: Path) -> Tuned | None:
    try:
        return Tuned.from_json((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
