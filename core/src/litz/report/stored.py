"""Reports that are kept with compiled graphs. In: a CompileReport. Out: JSON-able data, and from it the same report,
but for the nouns, and for what belongs to one compile: times, paths, hits, and where steps come from.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from litz.origins.operations import Origin
from litz_plugins import Decision, Estimate, Weighed

from .report import CompileReport
from .step import NOWHERE, Step, origin_fields

if TYPE_CHECKING:
    from litz.schedule.implementations import ContractionRecord

_PLAIN = ("kind", "device", "loops_before", "kernels_after", "memory_peak_bytes", "memory_total_bytes", "memory_reused")


def to_data(report: CompileReport) -> dict[str, Any]:
    """Returns a report as the data that `from_data` reads."""
    data = {
        **{name: getattr(report, name) for name in _PLAIN},
        "externs": dict(report.externs),
        "memory_held": list(report.memory_held),
        "steps": [asdict(replace(step, **NOWHERE)) for step in report.steps],
        "decisions": [asdict(decision) for decision in report.decisions],
        "contractions": [asdict(record) for record in report.contractions],
        "attachments": dict(report.attachments),
        "taken": list(report.taken),
        "left_out": list(report.left_out),
        "weighed": [asdict(found) for found in report.weighed.values()],
    }
    plain: dict[str, Any] = json.loads(json.dumps(data, default=str))
    return plain


def from_data(
    name: str, data: Mapping[str, Any], origins: Mapping[str, tuple[Origin, ...]] | None = None, **known: Any
) -> CompileReport:
    """Returns the report of a graph. origins: what its steps come from, as far as is known. known: fields that belong
    to this compile."""
    steps = map(_step, data["steps"])
    return CompileReport(
        name=name,
        **{field: data[field] for field in _PLAIN},
        externs=Counter(data["externs"]),
        memory_held=tuple(data["memory_held"]),
        steps=tuple(replace(step, **origin_fields((origins or {}).get(step.name, ()))) for step in steps),
        decisions=tuple(map(_decision, data["decisions"])),
        contractions=tuple(map(_contraction, data["contractions"])),
        attachments=data["attachments"],
        taken=tuple(data["taken"]),
        left_out=tuple(data["left_out"]),
        weighed={row["key"]: _weighed(row) for row in data["weighed"]},
        **known,
    )


def _step(row: Mapping[str, Any]) -> Step:
    estimate = row["estimate"]
    return Step(**{**_tuples(row), "estimate": None if estimate is None else Estimate(**estimate)})


def _decision(row: Mapping[str, Any]) -> Decision:
    return Decision(**{**row, "considered": tuple((name, us) for name, us in row["considered"])})


def _weighed(row: Mapping[str, Any]) -> Weighed:
    return Weighed(**{**row, "ways": tuple((name, us) for name, us in row["ways"])})


def _contraction(row: Mapping[str, Any]) -> ContractionRecord:
    from litz.schedule.implementations import ContractionRecord, Implementation  # here: most are read by nobody

    ways = tuple(Implementation(**way) for way in row["implementations"])
    return ContractionRecord(**{**_tuples(row), "implementations": ways})


def _tuples(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
