"""The data files of devices (`figures/`): numbers by name. In: a device's name, or a room. Out: figures.

A room of the compiler says which figures it goes by in a record, a subclass of `Room`. `figures_of(target, Record)`
gives them. Values come from three places, the later before the earlier: `figures/any/`, `figures/gpu/` or
`figures/cpu/` by whether the target has "blocks", and the target's own (`Target.figures`), which are its device's file,
a calibration file's or a plugin's. An entry of a file has a value, and the source, date and command of its measurement:

    [tilings.two_loads_elements]
    value = 16
    source = "Elements of a thread ... On an H200 16 in place of 8 took softmax of 1024 from 71.7 to 68.3 us"
    date = "2026-11-23"
    command = "litz calibrate --device cuda"
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any, ClassVar, TypeVar, cast

from litz_plugins import Figures, LitzError, Target

FOLDER = files("litz.target") / "figures"
"""The folder of the data files, which may lie in a zip."""
SHEETS = ("datasheet", "measured", "few_rows", "capabilities")
"""Tables of a device's file, and files, that are no room's figures."""


class FiguresError(LitzError):
    """A room's figures are not complete, or a name is no figure's."""


@dataclass(frozen=True)
class Room:
    """Figures that a room of the compiler goes by. table: the first part of their names; each field is the second. A
    field with a default is measured for some devices alone."""

    table: ClassVar[str]


@dataclass(frozen=True)
class CacheFigures(Room):
    """How much faster than memory caches give data: the first level and the second, of all units together; the second
    to the tiles of a product; data that the kernel before left there; values that a loop loads for each output."""

    table = "caches"
    first_level_times: float
    second_level_times: float
    second_level_usual_times: float
    left_times: float
    reloaded_times: float


R = TypeVar("R", bound=Room)


def figures_of(target: Target, room: type[R]) -> R:
    """Returns the figures of a target that a room goes by. Errors: FiguresError if one is missing."""
    kind = "gpu" if "blocks" in target.abilities else "cpu"
    found = _figures(target.figures, kind, room)  # type: ignore[arg-type]  # a type is hashable
    return cast("R", found)


def figure_of(target: Target, name: str) -> Any:
    """Returns the value of one figure for a target, by its full name ("tilings.two_loads_elements"); None if only some
    devices have the figure, and this target is none of them."""
    table, _, row = name.partition(".")
    kind = "gpu" if "blocks" in target.abilities else "cpu"
    return target.figures.get(name, _shared(kind, table).get(row))


@lru_cache(maxsize=256)
def _figures(own: Figures, kind: str, room: type[Room]) -> Room:
    names = [field.name for field in dataclasses.fields(room)]
    values = {name: value for name, value in _shared(kind, room.table).items() if name in names}
    values |= {name: own[f"{room.table}.{name}"] for name in names if f"{room.table}.{name}" in own}
    try:
        return room(**values)
    except TypeError as error:
        raise FiguresError(
            f"{room.__name__} for a target of the kind {kind!r}: {error}",
            where=str(FOLDER),
            todo=f"give the figure, '{room.table}.' and its name, in the target's `figures` or in a data file",
        ) from error


@lru_cache(maxsize=64)
def _shared(kind: str, table: str) -> Mapping[str, Any]:
    """The values of a room's entries in the files that all devices of a kind share."""
    found: dict[str, Any] = {}
    for folder in ("any", kind):
        if table in _tables(folder):
            found |= {name: plain(entry["value"]) for name, entry in read(f"{folder}/{table}")[table].items()}
    return found


@lru_cache(maxsize=128)
def read(name: str) -> Mapping[str, Any]:
    """Returns the tables of a data file. name: its path below the folder, without the suffix ("gpu/tilings")."""
    return tomllib.loads(FOLDER.joinpath(*f"{name}.toml".split("/")).read_text(encoding="utf-8"))


@lru_cache(maxsize=8)
def _tables(folder: str) -> tuple[str, ...]:
    """The names of the files of a folder, in order; of the devices' files for ""."""
    found = FOLDER.joinpath(folder) if folder else FOLDER
    return tuple(sorted(file.name[: -len(".toml")] for file in found.iterdir() if file.name.endswith(".toml")))


def plain(value: Any) -> Any:
    """Returns a value of a file as what a frozen record may hold: lists as tuples."""
    return tuple(map(plain, value)) if isinstance(value, list) else value


@lru_cache(maxsize=128)
def device_file(name: str) -> Mapping[str, Any]:
    """Returns the tables of a device's file, with what the device that it is like has in place of what it leaves
    out. name: the file's."""
    own = read(name)
    if "like" not in own:
        return own
    base = {key: rows for key, rows in device_file(own["like"]).items() if key != "measured"}
    merged = {key: {**base.get(key, {}), **own[key]} for key in own if isinstance(own[key], dict)}
    return {**base, **own, **merged}


def device_figures(name: str) -> Figures:
    """Returns the figures of rooms that a device's file has."""
    tables = {key: rows for key, rows in device_file(name).items() if isinstance(rows, dict) and key not in SHEETS}
    return Figures(
        {f"{key}.{row}": plain(entry["value"]) for key, rows in tables.items() for row, entry in rows.items()}
    )


def device_names() -> Iterator[str]:
    """Yields the names of the devices' files, in order."""
    yield from _tables("")


def known_figures() -> Mapping[str, Any]:
    """Returns all figures that any data file has, each with one of its values."""
    names = [(folder, name) for folder in ("any", "cpu", "gpu") for name in _tables(folder)]
    shared = (read(f"{folder}/{name}") for folder, name in names if name not in SHEETS)
    found = {
        f"{key}.{row}": plain(entry["value"])
        for tables in shared
        for key, rows in tables.items()
        for row, entry in rows.items()
    }
    return found | {name: value for device in device_names() for name, value in device_figures(device).items()}
