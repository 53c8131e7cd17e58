"""The data files of devices (`figures/`): numbers by name. In: a device's name, or a room. Out: figures.

A room of the compiler says which figures it goes by in a record, a subclass of `Room`. `figures_of(target, Record)`
gives them. Values come from four places, the later before the earlier: `figures/any/`, `figures/gpu/` or
`figures/cpu/` by whether the target has "blocks", the device's own file (`Target.file`), and the target's own
(`Target.figures`), which are a calibration file's or a plugin's. A plugin's rooms have their files in the folder
`figures` of the plugin's package. An entry has a value, and the source, date and command of its measurement:

    [tilings.two_loads_elements]
    value = 16
    source = "Elements of a thread ... On an H200 16 in place of 8 took softmax of 1024 from 71.7 to 68.3 us"
    date = "2026-11-23"
    command = "litz calibrate cuda"
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import entry_points
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, ClassVar, TypeVar, cast

from litz_plugins import Figures, LitzError, Target

CORE = "litz"
"""The package whose data files have the devices' datasheets."""
SHEETS = ("datasheet", "measured", "capabilities")
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
    """The speed of caches, as a multiple of memory's: the first level and the second, of all units together; the second
    to the tiles of a product; data that the kernel before left there; values that a loop loads for each output."""

    table = "caches"
    first_level_times: float  # of the first level
    second_level_times: float  # of the second level
    second_level_usual_times: float  # to the tiles of a product
    left_times: float  # of data that the kernel before left there
    reloaded_times: float  # of values that a loop loads for each output


R = TypeVar("R", bound=Room)


def figures_of(target: Target, room: type[R]) -> R:
    """Returns the figures of a target that a room goes by. Errors: FiguresError if one is missing."""
    found = _figures(target.figures, _kind(target), target.file, room)  # type: ignore[arg-type]  # a type is hashable
    return cast("R", found)


def figure_of(target: Target, name: str) -> Any:
    """Returns the value of one figure for a target, by its full name ("tilings.two_loads_elements"); None if only some
    devices have the figure, and this target is none of them."""
    table, _, row = name.partition(".")
    filed = (_filed(table, package, _kind(target), target.file).get(row) for package in _packages())
    return target.figures.get(name, next((value for value in filed if value is not None), None))


def _kind(target: Target) -> str:
    return "gpu" if "blocks" in target.abilities else "cpu"


@lru_cache(maxsize=256)
def _figures(own: Figures, kind: str, file: str, room: type[Room]) -> Room:
    names = [field.name for field in dataclasses.fields(room)]
    filed = _filed(room.table, package_of(room), kind, file)
    values = {name: value for name, value in filed.items() if name in names}
    values |= {name: own[f"{room.table}.{name}"] for name in names if f"{room.table}.{name}" in own}
    try:
        return room(**values)
    except TypeError as error:
        raise FiguresError(
            f"{room.__name__} for a target of the kind {kind!r}: {error}",
            where=str(folder_of(package_of(room))),
            todo=f"give the figure, '{room.table}.' and its name, in the target's `figures` or in a data file",
        ) from error


def _filed(table: str, package: str, kind: str, file: str) -> Mapping[str, Any]:
    """The values of a table's entries in a package's files: those that all devices of a kind share, and its own."""
    found: dict[str, Any] = {}
    own = (name for name in reversed(list(_alike(file))) if name in _tables(package, ""))
    shared = (f"{folder}/{table}" for folder in ("any", kind) if table in _tables(package, folder))
    for name in (*shared, *own):
        found |= {field: plain(entry["value"]) for field, entry in read(name, package).get(table, {}).items()}
    return found


def _alike(file: str) -> Iterator[str]:
    """The name of a device's file, then of the device that it is like, and so on."""
    while file:
        yield file
        file = read(file).get("like", "")


def package_of(room: type[Room]) -> str:
    """Returns the package whose data files have a room's figures: the room's own."""
    return room.__module__.partition(".")[0]


def folder_of(package: str) -> Traversable:
    """Returns the folder of a package's data files, which may lie in a zip, or may not exist."""
    return files("litz.target" if package == CORE else package) / "figures"


@lru_cache(maxsize=128)
def read(name: str, package: str = CORE) -> Mapping[str, Any]:
    """Returns the tables of a data file. name: its path below the folder, without the suffix ("gpu/tilings")."""
    return tomllib.loads(folder_of(package).joinpath(*f"{name}.toml".split("/")).read_text(encoding="utf-8"))


@lru_cache(maxsize=32)
def _tables(package: str, folder: str) -> tuple[str, ...]:
    """The names of the files of a folder, in order; of the devices' files for "". None if there is no such folder."""
    try:
        found = folder_of(package).joinpath(folder) if folder else folder_of(package)
        return tuple(sorted(file.name[: -len(".toml")] for file in found.iterdir() if file.name.endswith(".toml")))
    except (FileNotFoundError, ImportError, TypeError):  # TypeError: a module of one file has no folder
        return ()


def plain(value: Any) -> Any:
    """Returns a value of a file as what a frozen record may hold: lists as tuples."""
    return tuple(map(plain, value)) if isinstance(value, list) else value


@lru_cache(maxsize=128)
def device_file(name: str) -> Mapping[str, Any]:
    """Returns the tables of a device's file, with what the device that it is like has in place of what it leaves
    out. name: the file's."""
    merged: dict[str, Any] = {}
    for each in reversed(list(_alike(name))):
        for key, value in read(each).items():
            if key != "measured" or each == name:  # what was measured of a device holds for this device alone
                merged[key] = {**merged.get(key, {}), **value} if isinstance(value, dict) else value
    return merged


def device_names() -> Iterator[str]:
    """Yields the names of the devices' files, in order."""
    yield from _tables(CORE, "")


def _packages() -> Sequence[str]:
    """The packages that may have data files: core, and those of installed plugins."""
    return list(dict.fromkeys((CORE, *(point.value.partition(".")[0] for point in entry_points(group="litz")))))


def known_figures() -> Mapping[str, Any]:
    """Returns all figures that any data file of litz or of an installed plugin has, each with one of its values."""
    found: dict[str, Any] = {}
    for package in _packages():
        for folder in ("any", "cpu", "gpu", ""):
            for name in (name for name in _tables(package, folder) if name not in SHEETS):
                for table, rows in read(f"{folder}/{name}" if folder else name, package).items():
                    if isinstance(rows, dict) and table not in SHEETS:
                        found |= {f"{table}.{row}": plain(entry["value"]) for row, entry in rows.items()}
    return found
