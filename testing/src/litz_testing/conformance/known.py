"""Failures that are expected, each with its reason. docs/conformance.md says the same at more length."""

from __future__ import annotations

import re
from dataclasses import dataclass

from litz_testing.torch_compile import TORCH

from .check import Outcome


@dataclass(frozen=True)
class Known:
    """cases: a regular expression for case names, matched from the start. reason: why, in a sentence. detail: one for
    what is wrong (`Outcome.detail`), matched likewise. before: the first torch that has it right."""

    cases: str
    reason: str
    detail: str = ""
    before: tuple[int, int] | None = None


KNOWN: tuple[Known, ...] = (
    Known(
        r"unique/\w+/\d+/dynamic/",
        "torch's fake kernel of unique with dim promises a contiguous result, eager's is transposed: litz copies",
    ),
    Known(
        r"fft\.(fft|ifft|rfft|rfft2|rfftn|ihfft|ihfftn)/",
        "torch's fake kernel of _fft_r2c on a CPU promises a contiguous result, eager's has the transformed dimension "
        "innermost: litz copies (Inductor raises an error)",
        detail=r"result 0: strides [^;]*$",
        before=(2, 12),
    ),
)


TRACED = "torch's tracing: the backend aot_eager, which compiles nothing, fails in the same way"


def reason_of(outcome: Outcome) -> str | None:
    """Returns why the case is expected to fail; None if it is not."""
    if outcome.traced:
        return TRACED
    return next((known.reason for known in KNOWN if _covers(known, outcome)), None)


def _covers(known: Known, outcome: Outcome) -> bool:
    if known.before is not None and known.before <= TORCH:
        return False
    return bool(re.match(known.cases, outcome.case) and re.match(known.detail, outcome.detail))
