"""Estimated against measured communication. In: reports of compiled graphs, and a run of them. Out: the reports, with
what the run measured.

    with litz.report.collect() as reports:
        step()                                  # compiles
    with audit(reports) as audited:
        for _ in range(5):
            step()                              # on every rank
    audited.reports[0].to_json()["communication"]
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from litz.report import CompileReport

from .realised import realised_times


@dataclass
class Audited:
    """Filled when the run is over. reports: those that communicate, with `realised` times where the run called them.
    trace: torch.profiler's, as text (JSON)."""

    reports: list[CompileReport] = field(default_factory=list)
    trace: str = ""


@contextmanager
def audit(reports: Sequence[CompileReport]) -> Iterator[Audited]:
    """Profiles what runs in the `with`. Reports may be added to `reports` meanwhile. All ranks should profile: one that
    is slowed down alone makes the others wait for it."""
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    audited = Audited()
    profiler = profile(activities=activities)
    profiler.start()
    try:
        yield audited
    finally:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        profiler.stop()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        audited.trace = path.read_text(encoding="utf-8", errors="replace")
    chosen = [report for report in reports if report.communicates]
    times = realised_times(json.loads(audited.trace), chosen)
    audited.reports = [replace(report, realised=found) for report, found in zip(chosen, times, strict=True)]
