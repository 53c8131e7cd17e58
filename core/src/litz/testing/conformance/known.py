"""Failures that are expected, each with its reason. docs/conformance.md says the same at more length."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .check import Outcome


@dataclass(frozen=True)
class Known:
    """cases: a regular expression for case names, matched from the start. reason: why, in a sentence."""

    cases: str
    reason: str


KNOWN: tuple[Known, ...] = (
    Known(
        r"unique/\w+/\d+/dynamic/",
        "torch's fake kernel of unique with dim promises a contiguous result, eager's is transposed: litz copies",
    ),
)


TRACED = "torch's tracing: the backend aot_eager, which compiles nothing, fails in the same way"


def reason_of(outcome: Outcome) -> str | None:
    """Why the case is expected to fail, None if it is not."""
    if outcome.traced:
        return TRACED
    return next((known.reason for known in KNOWN if re.match(known.cases, outcome.case)), None)
