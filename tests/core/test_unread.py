"""Reports that are made where somebody reads them."""

from __future__ import annotations

import copy
import pickle

from litz.report import unread
from litz.report.report import CompileReport


def test_an_unread_report_is_made_once_and_its_copies_are_reports() -> None:
    made: list[CompileReport] = []

    def make() -> CompileReport:
        made.append(CompileReport("graph", "inference", "cpu", (), 1, 1, {}))
        return made[-1]

    report = unread(make, name="graph")
    assert report.name == "graph" and isinstance(report, CompileReport) and not made
    for other in (copy.copy(report), copy.deepcopy(report), pickle.loads(pickle.dumps(report))):
        assert type(other) is CompileReport and other == made[0]
    assert len(made) == 1 and not hasattr(report, "_no_field")
