"""A profile: a topology, and what was measured on it. In: a JSON file, or nothing for the built-in one. Out: `Profile`.

The built-in profile is of 2 to 4 NVIDIA H200 with 18 NVLinks each, on two hosts (NCCL 2.28, NVLS off, bf16).
`read_points` reads the CSV that measurements come as.
"""

from __future__ import annotations

import csv
import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from .contention import Contention, contention_at, read_table, table_json
from .fit import UNSEEN, Curve, Point, Regime, fit_curve
from .nccl import KINDS
from .topology import Topology, TopologyError, read_topology

FORMAT = 1
LAUNCH_BYTES = 1 << 18
"""Below this a back-to-back eager call takes as long as the host needs to launch it."""
UNMEASURED = (1.31, 1.31, 1.31)
"""Factors of overlap without the built-in profile's: the worst of 6 to 31 % that were seen on eight H200."""


@dataclass(frozen=True)
class Profile:
    """curves: by kind. launch_us: host time of an eager call, by kind. source: what was measured, and with what.

    gemm_tflops: what a large bf16 matrix product reaches. copy_gb_s: what a copy does, bytes read plus bytes written. 0
    where they were not measured. contention: what overlap costs, by kind. unseen: (bytes, error), by size: what 9 of 10
    messages of up to so many bytes were within, on a world size between those that a curve was fitted to.
    """

    topology: Topology
    curves: Mapping[str, Curve] = field(default_factory=dict)
    launch_us: Mapping[str, float] = field(default_factory=dict)
    source: str = ""
    gemm_tflops: float = 0.0
    copy_gb_s: float = 0.0
    contention: Mapping[str, tuple[Contention, ...]] = field(default_factory=dict)
    unseen: tuple[tuple[float, float], ...] = ()

    def unseen_at(self, size: float) -> float:
        """Returns the error of a curve, as a share, for messages of `size` bytes on a world size that it has not seen;
        `UNSEEN` where nobody measured it."""
        return next((error for upto, error in self.unseen if size <= upto), UNSEEN)

    def slowdown(self, kind: str, size: float) -> Contention:
        """Returns what overlap with a collective of `size` bytes costs: as measured, or on the built-in machine."""
        found = contention_at(self.contention, kind, size) or contention_at(builtin_profile().contention, kind, size)
        return found or Contention(size, *UNMEASURED)

    def dumps(self) -> str:
        """Returns the profile as JSON."""
        data = {
            "format": FORMAT,
            "source": self.source,
            "topology": self.topology.as_json(),
            "launch_us": dict(self.launch_us),
            "gemm_tflops": self.gemm_tflops,
            "copy_gb_s": self.copy_gb_s,
            "contention": table_json(self.contention),
            "unseen": [{"upto": None if upto == math.inf else upto, "error": error} for upto, error in self.unseen],
            "curves": {kind: _curve_json(curve) for kind, curve in self.curves.items()},
        }
        return json.dumps(data, indent=1) + "\n"


def make_profile(
    topology: Topology, points: Mapping[str, list[Point]], launch_us: Mapping[str, float], source: str
) -> Profile:
    """Returns a profile fitted to measured points, by kind."""
    curves = {kind: fit_curve(kind, found) for kind, found in points.items()}
    return Profile(topology, curves, launch_us, source)


def read_points(*paths: Path) -> tuple[dict[str, list[Point]], dict[str, float]]:
    """Returns (points by kind, host's launch µs by kind) of CSV files with the columns collective, world_size, bytes,
    time_us and launch_us, where # starts a comment. Errors: TopologyError naming file and line."""
    points: dict[str, list[Point]] = {}
    launches: dict[str, list[float]] = {}
    for path in paths:
        _read_file(path, points, launches)
    return points, {kind: round(statistics.median(found), 1) for kind, found in launches.items()}


def _read_file(path: Path, points: dict[str, list[Point]], launches: dict[str, list[float]]) -> None:
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    for number, row in enumerate(csv.DictReader(lines), 2):
        try:
            kind, size, us = row["collective"], int(row["bytes"]), float(row["time_us"])
            points.setdefault(kind, []).append((size, int(row["world_size"]), us))
            if size <= LAUNCH_BYTES:
                launches.setdefault(kind, []).append(float(row["launch_us"]))
        except (KeyError, TypeError, ValueError) as cause:
            raise TopologyError(f"{path}, line {number}: {cause}", todo="see docs/collectives.md") from cause
        if kind not in KINDS or us <= 0:
            raise TopologyError(f"{path}, line {number}: a time > 0 of one of {', '.join(KINDS)} is expected")


def read_profile(path: Path) -> Profile:
    """Returns the profile in a JSON file, which must have a topology. Raises TopologyError."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as cause:
        raise TopologyError(f"the profile {path} cannot be read: {cause.strerror}") from cause
    return parse_profile(text, str(path))


def parse_profile(text: str, where: str) -> Profile:
    """Returns the profile in a text; see `read_profile`. where: the file, for messages."""
    try:
        data = json.loads(text)
    except ValueError as cause:
        raise TopologyError(f"{where} is no JSON: {cause}") from cause
    if not isinstance(data, dict) or not isinstance(data.get("topology"), dict):
        raise TopologyError(f"{where} is no profile: it has no object 'topology'", todo="see docs/collectives.md")
    if data.get("format", FORMAT) != FORMAT:
        raise TopologyError(f"{where} has format {data['format']!r}; this litz reads format {FORMAT}")
    topology = read_topology(data["topology"], where)
    try:
        curves = {kind: _curve(kind, value) for kind, value in data.get("curves", {}).items()}
        launch_us = {str(kind): float(us) for kind, us in data.get("launch_us", {}).items()}
        gemm_tflops, copy_gb_s = (_not_negative(data.get(name, 0.0)) for name in ("gemm_tflops", "copy_gb_s"))
        contention = read_table(data.get("contention", {}))
        unseen = tuple((_upto(row), _not_negative(row["error"])) for row in data.get("unseen", ()))
    except (KeyError, TypeError, ValueError, AttributeError) as cause:
        raise TopologyError(f"{where}: a curve is not as `litz calibrate-collectives` writes it: {cause!r}") from cause
    source = str(data.get("source", where))
    return Profile(topology, curves, launch_us, source, gemm_tflops, copy_gb_s, contention, unseen)


@cache
def builtin_profile() -> Profile:
    """Returns litz's own profile of NVLink, for machines that were not measured."""
    name = "h200_nv18.json"
    return parse_profile(
        (resources.files(__package__) / "profiles" / name).read_text(encoding="utf-8"), f"built-in {name}"
    )


_COEFFICIENTS = ("base", "hop", "wire", "local", "error")


def _curve_json(curve: Curve) -> dict[str, Any]:
    regimes = [
        {
            "upto": None if regime.upto == float("inf") else round(regime.upto),
            **{name: float(f"{getattr(regime, name):.4g}") for name in (*_COEFFICIENTS, "unseen")},
        }
        for regime in curve.regimes
    ]
    return {"world_sizes": list(curve.world_sizes), "regimes": regimes}


def _curve(kind: str, data: Mapping[str, Any]) -> Curve:
    if kind not in KINDS:
        raise ValueError(f"no kind of collective: {kind}")
    regimes = tuple(_regime(item) for item in data["regimes"])
    if not regimes or regimes[-1].upto != float("inf"):
        raise ValueError(f"the last regime of {kind} ends")
    return Curve(kind, tuple(int(n) for n in data["world_sizes"]), regimes)


def _regime(data: Mapping[str, Any]) -> Regime:
    upto = _upto(data)
    base, hop, wire, local, error = (_not_negative(data[name]) for name in _COEFFICIENTS)
    return Regime(upto, base, hop, wire, local, error, _not_negative(data.get("unseen", error + UNSEEN)))


def _upto(data: Mapping[str, Any]) -> float:
    return math.inf if data["upto"] is None else float(data["upto"])


def _not_negative(value: Any) -> float:
    if not float(value) >= 0:
        raise ValueError(f"a coefficient is {value}")
    return float(value)
