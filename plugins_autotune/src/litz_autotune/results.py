"""Results of measurements, and where they are kept. In: a key. Out: a `Record`, if one is there and undamaged.

A record is JSON: the problem and a measurement for each candidate. Decisions are not kept; they are taken anew from the
measurements each time, by the same rule. The local store is litz's disk cache: an entry is a folder of files with their
hashes, written aside and renamed into place under a lock, so that parallel writers do no harm.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from litz.cache.disk import Cache, digest

from .measurement import Measurement
from .problem import Problem

FORMAT = "litz-autotune"
VERSION = 1
KIND = "autotune"
"""The cache's kind of these entries, as `litz cache info` lists it."""
FILE = "record.json"
PARTIAL = "autotune-partial"
"""The kind of those that are not complete: each of them what was measured until then."""
PATIENCE = 600.0
"""Seconds to wait for another process that measures the same: two at once on one device disturb each other."""
LIBRARY = "library"
"""The name of the library call's own measurement; those of the call with its users begin with it."""
UNTUNED = "as worked out"
"""The name of the measurement of a generated kernel with the settings that the code generator works out."""


@dataclass
class Counters:
    """Counts since the plugin was loaded: problems found and not found, stored, and measured; by store. tuned:
    contractions measured; kernels: generated kernels whose settings were searched. Seconds
    are of whoever waits: for candidates to be screened, finals to be run, and for all of it, compiling them too."""

    local_hits: int = 0
    local_misses: int = 0
    local_puts: int = 0
    remote_hits: int = 0
    remote_misses: int = 0
    remote_puts: int = 0
    remote_failures: int = 0
    tuned: int = 0
    kernels: int = 0
    precompiled: int = 0
    races: int = 0
    screen_seconds: float = 0.0
    final_seconds: float = 0.0
    tuning_seconds: float = 0.0


@dataclass(frozen=True)
class Record:
    """The measurements for a problem, by candidate."""

    problem: Problem
    measured: Mapping[str, Measurement]

    def to_json(self) -> str:
        """Returns the record as JSON with the name and version of its format."""
        data = {
            "format": FORMAT,
            "version": VERSION,
            "problem": json.loads(self.problem.to_json()),
            "measured": {name: found.to_data() for name, found in self.measured.items()},
        }
        return json.dumps(data, sort_keys=True)

    @staticmethod
    def from_json(text: str | bytes) -> Record:
        """Returns the record in a JSON text. Raises ValueError for anything that is no record of this version."""
        try:
            data = json.loads(text)
            if data["format"] != FORMAT or data["version"] != VERSION:
                raise ValueError(f"format {data['format']!r} {data['version']!r}")
            measured = {str(name): Measurement.from_data(found) for name, found in data["measured"].items()}
            return Record(Problem.from_json(json.dumps(data["problem"])), measured)
        except (KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
            raise ValueError(f"no record of measurements: {error!r}") from error


class LocalStore:
    """Records in litz's disk cache."""

    def __init__(self, cache: Cache, counters: Counters) -> None:
        self.cache, self.counters = cache, counters

    def find(self, key: str) -> Record | None:
        """Returns the record, None if there is none or it is damaged."""
        folder = self.cache.find(KIND, key, (FILE,))
        return None if folder is None else _read(folder)

    def make(self, key: str, measure: Callable[[], tuple[Record, bool]]) -> Record:
        """Returns the record, from the store or from `measure()`, which also says whether it is complete and so worth
        keeping. Of several processes that ask at once one measures and the others wait for it."""
        kept: list[Record] = []

        def fill(folder: Path) -> None:
            self.counters.local_misses += 1
            record, complete = measure()
            kept.append(record)
            if not complete:
                raise _Incomplete
            (folder / FILE).write_text(record.to_json(), encoding="utf-8")

        try:
            folder = self.cache.build(KIND, key, fill, (FILE,), PATIENCE)
        except _Incomplete:
            return kept[0]
        if kept:
            self.counters.local_puts += 1
            return kept[0]
        found = _read(folder)
        if found is not None:
            self.counters.local_hits += 1
            return found
        return measure()[0]  # an entry of another version: not overwritten, not used

    def partial(self, key: str) -> tuple[Record | None, int]:
        """Returns the last record of what was measured for a key before a budget was spent, None if there is none; and
        how many there are."""
        record, count = None, 0
        while (folder := self.cache.find(PARTIAL, digest(key, str(count)), (FILE,))) is not None:
            record, count = _read(folder) or record, count + 1
        return record, count

    def put_partial(self, key: str, record: Record, count: int) -> None:
        """Stores an incomplete record after `count` others."""
        self.cache.build(PARTIAL, digest(key, str(count)), lambda folder: _write(folder, record), (FILE,))

    def put(self, key: str, record: Record) -> None:
        """Stores a record that came from elsewhere."""
        self.cache.build(KIND, key, lambda folder: _write(folder, record), (FILE,))

    def all_keys(self) -> list[str]:
        """Returns the keys of all records."""
        return known_keys(self.cache.root)


def known_keys(root: Path) -> list[str]:
    """Returns the keys of all records in a disk cache."""
    folder = root / KIND
    return sorted(p.parent.name for p in folder.glob(f"*/{FILE}")) if folder.is_dir() else []


class _Incomplete(Exception):
    """Raised where not everything could be measured: the result holds for now, but not for good."""


def _write(folder: Path, record: Record) -> None:
    (folder / FILE).write_text(record.to_json(), encoding="utf-8")


def _read(folder: Path) -> Record | None:
    try:
        return Record.from_json((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


# Between machines.


def export_records(store: LocalStore) -> dict[str, Any]:
    """Returns all records as one JSON value, which `import_records` reads."""
    found = {key: store.find(key) for key in store.all_keys()}
    return {
        "format": FORMAT,
        "version": VERSION,
        "records": {key: json.loads(record.to_json()) for key, record in found.items() if record is not None},
    }


def import_records(store: LocalStore, data: Any) -> int:
    """Stores an export's records that are not there yet, and returns how many. Raises ValueError for other data."""
    if not isinstance(data, dict) or data.get("format") != FORMAT or not isinstance(data.get("records"), dict):
        raise ValueError("this is no export of `litz tune export`")
    records = {str(key): Record.from_json(json.dumps(value)) for key, value in data["records"].items()}
    if any(len(key) != 40 or not all(c in "0123456789abcdef" for c in key) for key in records):
        raise ValueError("a key is no digest")
    new = {key: record for key, record in records.items() if store.find(key) is None}
    for key, record in new.items():
        store.put(key, record)
    return len(new)
