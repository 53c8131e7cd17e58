"""The errors of litz-tools: one message with what, where and what to do; and alive after pickling."""

from __future__ import annotations

import inspect
import pickle

import pytest

import litz_tools.errors as errors
from litz_plugins import LitzError
from litz_tools.errors import BisectError, KernelFileError, MeasuringError, ReportFileError, WrapperFileError

EXAMPLES = [
    (BisectError("too few calls", where="in f", todo="call more"), ["too few calls", "in f", "call more"]),
    (KernelFileError("it is not there", path="/x"), ["it is not there", "/x", "benchmark_kernels"]),
    (KernelFileError("it is not there"), ["litz bench-kernels"]),
    (MeasuringError("there is no such device"), ["there is no such device", "litz calibrate", "litz calibrate cpu"]),
    (ReportFileError("it is no page", path="/x"), ["it is no page", "/x", "LITZ_REPORT_DIR"]),
    (WrapperFileError("it is not there", path="/x"), ["it is not there", "/x", "LITZ_REPORT_DIR"]),
]


@pytest.mark.parametrize(("error", "parts"), EXAMPLES)
def test_message_says_what_is_needed_and_survives_pickling(error: LitzError, parts: list[str]) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and vars(again) == vars(error) and str(again) == str(error)
    assert all(part in str(again) for part in parts), str(again)


def test_every_error_is_covered_here() -> None:
    classes = {c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, LitzError)}
    assert classes - {LitzError} == {type(error) for error, _ in EXAMPLES}
