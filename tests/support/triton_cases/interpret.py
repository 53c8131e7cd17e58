"""Cases in Triton's interpreter."""

from __future__ import annotations

import traceback
from collections.abc import Sequence

from .case import CASES


def interpret_cases(names: Sequence[str]) -> dict[str, str]:
    """Run cases in Triton's interpreter: for each, "" or what went wrong."""
    from litz_testing.triton_interpreter import interpret_source

    problems = {}
    for name in names:
        try:
            built = CASES[name]()
            memory = built.tensors()
            interpret_source(built.source, *built.arguments(memory))
            built.check(memory)
            problems[name] = ""
        except Exception:
            problems[name] = traceback.format_exc()[-3000:]
    return problems


def interpreted_names() -> list[str]:
    return [name for name in CASES if CASES[name]().interpreted]
