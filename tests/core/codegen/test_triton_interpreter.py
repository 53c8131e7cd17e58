"""Generated Triton kernels against the IR interpreter, on the CPU, in Triton's interpreter.

Triton reads TRITON_INTERPRET when it is imported, so the cases run in a process of their own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

pytest.importorskip("triton")

from support.interpreted import asked_for, interpreted, mostly
from support.triton_cases import interpreted_names
from support.warm import run_warm

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.xdist_group("triton interpreter")  # the cases run once


THOROUGH = [
    *("rows-reduced-9000-float32", "rows-reduced-9001-float32", "rows-reduced-9000-bfloat16"),
    *(name for name in interpreted_names() if name.startswith("written-") and name.endswith(("-dense", "-all"))),
]
"""They take seconds each, and differ from others by their type, or have more values between those that are hard to
round."""


@pytest.fixture(scope="session")
def problems(request: pytest.FixtureRequest) -> Mapping[str, str]:
    """For each case that is asked for "" or what went wrong."""
    return interpreted("support.triton_cases", asked_for(request, __name__))


@pytest.mark.parametrize("name", mostly(interpreted_names(), THOROUGH))
def test_gives_what_the_ir_means(name: str, problems: Mapping[str, str]) -> None:
    if "only 0-dimensional arrays can be converted" in problems[name]:
        pytest.skip("the interpreter of Triton 3.6 has no loops of variable length with NumPy 2.4 or later")
    assert problems[name] == ""


def test_an_index_out_of_range_is_an_error() -> None:
    """In the interpreter; on a device it is a device-side assertion, as in eager."""
    code = """
import torch
from support.triton_cases import CASES
from litz_testing.triton_interpreter import interpret_source
case = CASES["embedding"]()
memory = case.tensors()
memory["rows"][3] = 11
try:
    interpret_source(case.source, *case.arguments(memory))
except Exception as error:
    print(error)
"""
    paths = [str(ROOT / "tests"), str(ROOT / "core/src"), str(ROOT / "plugins/src")]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(paths)}
    done = run_warm(["-c", code], environment, imported=True)
    assert "index out of range for size 11" in done.stdout, done.stderr[-2000:]
