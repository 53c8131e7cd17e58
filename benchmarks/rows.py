"""Rows of `benchmarks.side_by_side`: what was measured of a model, and the file that they are kept in.

In: rows. Out: JSON, and rows again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.device_time import DeviceKernel
from benchmarks.own_kernels import Own


@dataclass
class Figures:
    """One peer. wall_ms: of a step, the host included; gpu_ms: the sum of its kernels, and `launches` their number;
    first_s: seconds of the first call, dynamo's own work included; peak_mib: of parameters, inputs and what a step
    takes beyond them (with CUDA graphs: what the peer has reserved); error: against float64. graphs: CUDA graphs
    recorded by its mode. trace: the kernels of a step, in order. own: what litz's kernels do, and what they move."""

    wall_ms: float = math.nan
    gpu_ms: float = math.nan
    launches: float = math.nan
    first_s: float = math.nan
    peak_mib: float = math.nan
    error: float = math.nan
    graphs: int = 0
    problem: str = ""
    trace: list[DeviceKernel] = field(default_factory=list)
    own: list[Own] = field(default_factory=list)


@dataclass
class Row:
    """One model in one task and mode. seconds: how long all of it took. dynamo_graphs: captured, for each compiler.
    problem: why there is nothing to be seen of it. note: what else is to be said. alone: nobody compiled meanwhile."""

    model: str
    task: str
    mode: str
    family: str = ""
    type: str = ""
    batch: int = 0
    seconds: float = 0.0
    dynamo_graphs: float = 0
    problem: str = ""
    note: str = ""
    alone: bool = True
    peers: dict[str, Figures] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, str]:
        return self.model, self.task, self.mode


def write_rows(path: Path, rows: Sequence[Row], facts: Mapping[str, Any]) -> None:
    """The file of --out, whole at any time: who stops the process loses no row."""
    data = []
    for row in rows:
        peers = {
            peer: {**asdict(replace(figures, trace=[])), "trace": _packed(figures.trace)}
            for peer, figures in row.peers.items()
        }
        data.append({**vars(row), "peers": peers})
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(json.dumps({**facts, "rows": data}))
    fresh.replace(path)


def _packed(trace: Sequence[DeviceKernel]) -> dict[str, list[Any]]:
    """Each name once, and (which, microseconds) of every launch: a step of eager has thousands."""
    names = list(dict.fromkeys(kernel.name for kernel in trace))
    where = {name: number for number, name in enumerate(names)}
    return {"names": names, "launches": [[where[kernel.name], round(kernel.us, 3)] for kernel in trace]}


def _unpacked(packed: Mapping[str, list[Any]]) -> list[DeviceKernel]:
    return [DeviceKernel(packed["names"][which], 1, us) for which, us in packed["launches"]]


def as_record(row: Row, small: bool) -> dict[str, Any]:
    """What a line of benchmarks/results has of a row (`benchmarks.record`). small: models in the size for a CPU."""
    names = {
        "gpu_ms": "kernel_ms",
        "launches": "kernels",
        "wall_ms": "wall_ms",
        "first_s": "cold_s",
        "peak_mib": "peak_mib",
    }
    peers = {
        peer: {name: getattr(figures, own) for own, name in (names | {"error": "error"}).items()}
        for peer, figures in row.peers.items()
    }
    notes = [row.note, "" if row.alone else "other models compiled meanwhile", "the size for a CPU" if small else ""]
    return ({} if row.alone else {"alone": False}) | {
        "task": "inference" if row.task == "small" else row.task,
        "case": row.model + (", batch of one" if row.task == "small" else ""),
        "mode": row.mode,
        "dtype": row.type,
        "peers": peers,
        "problems": {peer: figures.problem for peer, figures in row.peers.items() if figures.problem},
        "note": "; ".join(filter(None, notes)),
    }


def read_facts(path: Path) -> dict[str, Any]:
    """Where the rows of a file were measured, and the copy's speed there."""
    return {name: value for name, value in json.loads(path.read_text()).items() if name != "rows"}


def read_rows(path: Path) -> list[Row]:
    """The rows of a file of --out."""
    rows = []
    for data in json.loads(path.read_text())["rows"]:
        peers = {
            peer: Figures(
                **{**figures, "trace": _unpacked(figures["trace"]), "own": [Own(**o) for o in figures["own"]]}
            )
            for peer, figures in data.pop("peers").items()
        }
        rows.append(Row(**data, peers=peers))
    return rows
