"""Calibration files: measured speeds that replace the table's. In: a path. Out: a checked `Calibration`.

The format is JSON, written by `python -m litz_tools.calibrate --out FILE` and easily written by hand:

    {
      "format": "litz-calibration",
      "version": 1,
      "devices": [
        {
          "type": "cuda",                          torch's device type; required
          "name": "NVIDIA H100 80GB HBM3",         as the driver gives it; left out: every device of the type
          "bandwidth_gb_s": 2990.0,                copying, bytes read plus bytes written, 1e9 bytes a second
          "launch_us": 2.1,                        what an empty kernel adds to a stream
          "vector_tflops": {"fp32": 50.1},         ordinary units: fp64, fp32, fp16, bf16
          "matrix_tflops": {"bf16": 690.0},        matmul: fp64, fp32, tf32, fp16, bf16, int8, fp8
          "figures": {"tilings.two_loads_elements": 8},  any figure of the data files (`litz.target.data`)
          "measured": "2026-01-31, torch 2.11.0"   for people
        }
      ]
    }

Every figure may be left out; what is not given stays the table's. Figures are speeds that were reached, so they are
used as they are, while the table's peaks are multiplied by what kernels usually reach of them (`litz.cost.roofline`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from litz_plugins import LitzError

from .data import known_figures, plain

FORMAT = "litz-calibration"
VERSION = 1
VECTOR_TYPES = ("fp64", "fp32", "fp16", "bf16")
MATRIX_TYPES = ("fp64", "fp32", "tf32", "fp16", "bf16", "int8", "fp8")
_NUMBERS = ("bandwidth_gb_s", "launch_us")
_TABLES = {"vector_tflops": VECTOR_TYPES, "matrix_tflops": MATRIX_TYPES}
_ROOMS = "figures"
_TEXTS = ("type", "name", "measured")


class CalibrationError(LitzError):
    """A calibration file cannot be used. ``path``: which; ``problem``: what is wrong with it."""

    def __init__(self, path: str | Path, problem: str) -> None:
        self.path = str(path)
        self.problem = problem
        super().__init__(
            f"the calibration file cannot be used: {problem}",
            where=self.path,
            todo="measure anew with `python -m litz_tools.calibrate --out FILE`, or leave the option `calibration` out",
        )


@dataclass(frozen=True)
class DeviceCalibration:
    """Measured figures of one device, by name as in the file ("bandwidth_gb_s", "matrix_tflops.bf16",
    "figures.tilings.two_loads_elements"). `name` '' means
    every device of the type."""

    type: str
    name: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)
    measured: str = ""


@dataclass(frozen=True)
class Calibration:
    """The figures of a calibration file."""

    path: Path
    devices: tuple[DeviceCalibration, ...]

    def figures(self, type: str, name: str) -> Mapping[str, Any]:
        """Returns the figures for a device: those of its very name before those of every device of its type; {} if
        there are none."""
        fitting = [d for d in self.devices if d.type == type and d.name in ("", name)]
        return max(fitting, key=lambda d: len(d.name)).figures if fitting else {}


def load_calibration(path: str | Path) -> Calibration:
    """Reads and checks a calibration file. Errors: CalibrationError, which says which entry is wrong and what it should
    be."""
    path = Path(path)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CalibrationError(path, "there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise CalibrationError(path, f"the file cannot be read: {error}") from error
    except json.JSONDecodeError as error:
        raise CalibrationError(path, f"the file is no JSON: {error}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise CalibrationError(path, f'the file is no calibration file: "format" should be "{FORMAT}"')
    if data.get("version") != VERSION:
        raise CalibrationError(path, f'the "version" is {data.get("version")!r}; this litz reads {VERSION}')
    devices = data.get("devices")
    if not isinstance(devices, list):
        raise CalibrationError(path, '"devices" should be a list')
    return Calibration(path, tuple(_device(path, f"devices[{n}]", entry) for n, entry in enumerate(devices)))


def _device(path: Path, where: str, entry: Any) -> DeviceCalibration:
    if not isinstance(entry, dict):
        raise CalibrationError(path, f"{where} should be an object")
    figures: dict[str, Any] = {}
    texts: dict[str, str] = {}
    for key, value in entry.items():
        if key in _NUMBERS:
            figures[key] = _positive(path, f"{where}.{key}", value)
        elif key in _TABLES:
            if not isinstance(value, dict):
                raise CalibrationError(path, f"{where}.{key} should be an object of type and TFLOP/s")
            for kind, rate in value.items():
                if kind not in _TABLES[key]:
                    raise CalibrationError(path, f"{where}.{key} has {kind!r}; types are {', '.join(_TABLES[key])}")
                figures[f"{key}.{kind}"] = _positive(path, f"{where}.{key}.{kind}", rate)
        elif key == _ROOMS:
            figures |= {f"{_ROOMS}.{name}": known for name, known in _of_rooms(path, f"{where}.{key}", value)}
        elif key in _TEXTS:
            if not isinstance(value, str):
                raise CalibrationError(path, f"{where}.{key} should be a string, is {value!r}")
            texts[key] = value
        else:
            known = ", ".join((*_TEXTS, *_NUMBERS, *_TABLES, _ROOMS))
            raise CalibrationError(path, f"{where} has {key!r}, which is none of {known}")
    if not texts.get("type"):
        raise CalibrationError(path, f'{where} needs a "type", such as "cuda" or "cpu"')
    return DeviceCalibration(texts["type"], texts.get("name", ""), figures, texts.get("measured", ""))


def _of_rooms(path: Path, where: str, value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict):
        raise CalibrationError(path, f"{where} should be an object of figures by name")
    known = known_figures() if value else {}
    for name, figure in value.items():
        if name not in known:
            raise CalibrationError(path, f"{where} has {name!r}, which no data file of litz or a plugin has")
        if type(found := plain(figure)) is not type(known[name]) and not {type(found), type(known[name])} <= {
            int,
            float,
        }:
            raise CalibrationError(path, f"{where}.{name} should be like {known[name]!r}, is {figure!r}")
        yield name, found


def _positive(path: Path, where: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not (value > 0 and math.isfinite(value)):
        raise CalibrationError(path, f"{where} should be a positive number, is {value!r}")
    return float(value)


def save_calibration(path: str | Path, devices: tuple[DeviceCalibration, ...]) -> None:
    """Writes a calibration file, which `load_calibration` reads. Errors: OSError."""
    entries = []
    for device in devices:
        entry: dict[str, Any] = {"type": device.type}
        if device.name:
            entry["name"] = device.name
        for key, value in device.figures.items():
            table, _, kind = key.partition(".")
            if kind:
                entry.setdefault(table, {})[kind] = value
            else:
                entry[key] = value
        if device.measured:
            entry["measured"] = device.measured
        entries.append(entry)
    document = {"format": FORMAT, "version": VERSION, "devices": entries}
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
