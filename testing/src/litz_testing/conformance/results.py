"""Outcomes as JSON and as a table. In: Outcomes. Out: text."""

from __future__ import annotations

import json
import platform
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

import torch

from .check import Outcome
from .known import reason_of

STATUSES = ("passed", "wrong", "error", "timeout", "skipped")


def dtype_of(outcome: Outcome) -> str:
    """Returns the dtype in the name of a case, OP/DTYPE/..."""
    return outcome.case.split("/")[1]


def op_of(outcome: Outcome) -> str:
    """Returns the operator in the name of a case, OP/DTYPE/..."""
    return outcome.case.split("/")[0]


def counts(outcomes: Iterable[Outcome]) -> dict[str, Counter[str]]:
    """Returns, per dtype and for "all", how many cases have each status, and how those that ran were compiled."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for outcome in outcomes:
        for row in (dtype_of(outcome), "all"):
            found[row][outcome.status] += 1
            if outcome.status != "skipped" and outcome.how:
                found[row][outcome.how] += 1
            if outcome.failed and reason_of(outcome):
                found[row]["known"] += 1
    return {row: found[row] for row in sorted(found, key=lambda row: (row == "all", row))}


def table(outcomes: Sequence[Outcome]) -> str:
    """Returns a Markdown table with a row per dtype."""
    columns = (*STATUSES[:4], "known", "native", "extern", "eager", "skipped")
    lines = ["| dtype | " + " | ".join(columns) + " | passed of run |", "|---" * (len(columns) + 2) + "|"]
    for dtype, count in counts(outcomes).items():
        run = sum(count[status] for status in STATUSES[:4])
        share = f"{100 * count['passed'] / run:.2f} %" if run else ""
        lines.append(f"| {dtype} | " + " | ".join(str(count[column]) for column in columns) + f" | {share} |")
    return "\n".join(lines)


def failures(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Returns the cases that ran and did not pass."""
    return [outcome for outcome in outcomes if outcome.failed]


def failures_text(outcomes: Iterable[Outcome]) -> str:
    """Returns the failures as text, one line for each operator, dtype and reason."""
    grouped: dict[tuple[str, str, str, str], int] = Counter()
    for outcome in failures(outcomes):
        reason = reason_of(outcome)
        text = f"known: {reason}" if reason else outcome.detail
        grouped[op_of(outcome), dtype_of(outcome), outcome.status, text] += 1
    return "\n".join(
        f"{op} {dtype} {status} x{count}: {text}" for (op, dtype, status, text), count in sorted(grouped.items())
    )


def write(path: Path, outcomes: Sequence[Outcome], settings: Mapping[str, Any]) -> None:
    """Writes settings, counts and all outcomes as JSON."""
    found = {
        "format": "litz-conformance",
        "version": 1,
        "date": date.today().isoformat(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "settings": dict(settings),
        "counts": counts(outcomes),
        "cases": [asdict(outcome) for outcome in outcomes],
    }
    path.write_text(json.dumps(found, indent=1), encoding="utf-8")


def read(path: Path) -> list[Outcome]:
    """Returns the outcomes that `write` wrote."""
    return [Outcome(**case) for case in json.loads(path.read_text(encoding="utf-8"))["cases"]]


def ratio(ours: Iterable[Outcome], peers: Iterable[Outcome]) -> str:
    """Returns, as text, how many of the cases that the peer passes litz passes."""
    mine = {outcome.case: outcome.status for outcome in ours}
    theirs = [outcome.case for outcome in peers if outcome.status == "passed" and outcome.case in mine]
    passed = sum(mine[case] == "passed" for case in theirs)
    share = f" ({100 * passed / len(theirs):.2f} %)" if theirs else ""
    return f"litz passes {passed} of the {len(theirs)} cases that the peer passes{share}"


def behind(ours: Iterable[Outcome], peers: Iterable[Outcome]) -> list[str]:
    """Returns the cases that the peer passes and litz fails."""
    passed = {outcome.case for outcome in peers if outcome.status == "passed"}
    return [outcome.case for outcome in failures(ours) if outcome.case in passed]
