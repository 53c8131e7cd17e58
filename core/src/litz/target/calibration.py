"""Figures measured here, in place of the data files'. In: a TOML file, or a folder of them. Out: a `Calibration`.

A file is as a device's data file (`figures/`), and `litz calibrate` writes it:

    type = "cuda"                       # torch's device type; required
    name = "NVIDIA H100 80GB HBM3"      # as the driver gives it; left out: every device of the type

    [measured]                          # speeds that were reached
    bandwidth_gb_s = 2990.0             # copying, bytes read plus bytes written, 1e9 bytes a second
    launch_us = 2.1                     # what an empty kernel adds to a stream
    vector_tflops = { fp32 = 50.1 }     # ordinary units: fp64, fp32, fp16, bf16
    matrix_tflops = { bf16 = 690.0 }    # matmul: fp64, fp32, tf32, fp16, bf16, int8, fp8

    [tilings.two_loads_elements]        # any figure of the data files (`litz.target.data`)
    value = 8

Every table may be left out; what is not given stays the data files'. A table may say its `source`, `date` and
`command`. Speeds were reached, so they are used as they are, while a datasheet's peaks are multiplied by what kernels
usually reach of them (`litz.cost.roofline`).
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from litz_plugins import LitzError

from .data import known_figures, plain

_NUMBERS = ("bandwidth_gb_s", "launch_us")
_TABLES = {
    "vector_tflops": ("fp64", "fp32", "fp16", "bf16"),
    "matrix_tflops": ("fp64", "fp32", "tf32", "fp16", "bf16", "int8", "fp8"),
}
_SAID = ("source", "date", "command")


class CalibrationError(LitzError):
    """A calibration file cannot be used. ``path``: which; ``problem``: what is wrong with it."""

    def __init__(self, path: str | Path, problem: str) -> None:
        self.path = str(path)
        self.problem = problem
        super().__init__(
            f"the calibration file cannot be used: {problem}",
            where=self.path,
            todo="measure anew with `litz calibrate cpu` or `cuda` (litz-tools), or leave the option `calibration` out",
        )


@dataclass(frozen=True)
class DeviceCalibration:
    """Measured figures of one device, by name: "bandwidth_gb_s", "matrix_tflops.bf16",
    "figures.tilings.two_loads_elements". `name` '' means every device of the type."""

    type: str  # "cuda", "cpu"
    name: str = ""  # the device's; '' for every device of the type
    figures: Mapping[str, Any] = field(default_factory=dict)  # by name


@dataclass(frozen=True)
class Calibration:
    """The figures of a calibration file, or of a folder's."""

    devices: tuple[DeviceCalibration, ...]

    def figures(self, type: str, name: str) -> Mapping[str, Any]:
        """Returns the figures for a device: those of its very name before those of every device of its type; {} if
        there are none."""
        fitting = [d for d in self.devices if d.type == type and d.name in ("", name)]
        return max(fitting, key=lambda d: len(d.name)).figures if fitting else {}


def calibration_files(path: Path) -> list[Path]:
    """Returns the files that a path stands for: those of a folder whose names end in ".toml", or the path itself."""
    return sorted(path.glob("*.toml")) if path.is_dir() else [path]


def load_calibration(path: str | Path) -> Calibration:
    """Reads and checks a calibration file, or each of a folder. Errors: CalibrationError, which says which entry is
    wrong and what it should be."""
    return Calibration(tuple(_read(file) for file in calibration_files(Path(path))))


def _read(path: Path) -> DeviceCalibration:
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CalibrationError(path, "there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise CalibrationError(path, f"the file cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise CalibrationError(path, f"the file is no TOML: {error}") from None
    texts = {key: tables.pop(key, "") for key in ("type", "name")}
    for key, text in texts.items():
        if not isinstance(text, str):
            raise CalibrationError(path, f"{key} should be a string, is {text!r}")
    if not texts["type"]:
        raise CalibrationError(path, 'the file needs a "type", such as "cuda" or "cpu"')
    figures = dict(speeds_in(path, tables.pop("measured", {})))
    figures |= {f"figures.{name}": value for name, value in _of_rooms(path, tables)}
    return DeviceCalibration(**texts, figures=figures)


def speeds_in(path: Path, table: Any) -> Iterator[tuple[str, float]]:
    """Yields the speeds of a file's table "measured", by name. Errors: CalibrationError."""
    if not isinstance(table, dict):
        raise CalibrationError(path, "measured should be a table")
    for key, value in table.items():
        if key in _NUMBERS:
            yield key, _positive(path, key, value)
        elif key in _TABLES:
            if not isinstance(value, dict):
                raise CalibrationError(path, f"measured.{key} should be a table of type and TFLOP/s")
            for kind, rate in value.items():
                if kind not in _TABLES[key]:
                    raise CalibrationError(path, f"measured.{key} has {kind!r}; types are {', '.join(_TABLES[key])}")
                yield f"{key}.{kind}", _positive(path, f"{key}.{kind}", rate)
        elif key not in _SAID:
            known = ", ".join((*_NUMBERS, *_TABLES, *_SAID))
            raise CalibrationError(path, f"measured has {key!r}, which is none of {known}")


def _of_rooms(path: Path, tables: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    known = known_figures() if tables else {}
    for table, rows in tables.items():
        for row, entry in rows.items() if isinstance(rows, dict) else [("", rows)]:
            name = f"{table}.{row}" if row else table
            if name not in known:
                raise CalibrationError(path, f"the file has {name!r}, which no data file of litz or a plugin has")
            if not isinstance(entry, dict) or "value" not in entry:
                raise CalibrationError(path, f"{name} should be a table with a value")
            found, like = plain(entry["value"]), known[name]
            if type(found) is not type(like) and not {type(found), type(like)} <= {int, float}:
                raise CalibrationError(path, f"{name} should be like {like!r}, is {entry['value']!r}")
            yield name, found


def _positive(path: Path, name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not (value > 0 and math.isfinite(value)):
        raise CalibrationError(path, f"measured.{name} should be a positive number, is {value!r}")
    return float(value)
