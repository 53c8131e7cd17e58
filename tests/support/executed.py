"""What ran: the lines of litz's generated wrappers, in the order of their execution, and what each line does.

    found = executed(lambda: compiled(x))
    kinds(found)   # ["all_reduce", "relu", "mm", "wait_tensor", "add"]

The lines are watched while Python runs them, so nothing that was scheduled and did not run is among them.
"""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

_CALL = re.compile(r"^(?:(?P<result>[\w, ]+?),? = )?(?P<called>[A-Za-z]\w*|_c10d_functional_\w+)\((?P<arguments>.*)\)")
_ENDS = ("_default", "_out", "_Tensor", "_dtype")


def executed(run: Callable[[], Any]) -> list[str]:
    """The lines of wrappers that `run()` runs, stripped. Compile before: what is compiled meanwhile is traced too."""
    found: list[str] = []

    def line(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            found.append(linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip())
        return line

    def frame(frame: FrameType, event: str, argument: Any) -> Any:
        return line if frame.f_code.co_filename.endswith("wrapper.py") else None

    before = sys.gettrace()
    sys.settrace(frame)
    try:
        run()
    finally:
        sys.settrace(before)
    assert any(text.startswith("return") for text in found), "no wrapper of litz's ran"
    return found


def steps(lines: list[str]) -> list[tuple[str, str, str]]:
    """Of each launch and call: (what it does, what its result is called or "", its arguments as text).

    A kernel does what its comment says (`add + mul`), an op what it is called without namespace and overload.
    """
    found = []
    for text in lines:
        called = _CALL.match(text)
        if called is None:
            continue
        name = called["called"]
        if re.fullmatch(r"kernel\d+", name):
            kind = text.partition("  # ")[2]
        elif name.startswith("_c10d_functional_"):
            kind = name.removeprefix("_c10d_functional_").removesuffix("_default")
        elif name.startswith("aten_"):
            kind = re.sub("|".join(f"{end}$" for end in _ENDS), "", name.removeprefix("aten_"))
        else:
            continue
        found.append((kind, called["result"] or "", called["arguments"]))
    return found


def kinds(lines: list[str]) -> list[str]:
    """What each launch and call does, in order."""
    return [kind for kind, _, _ in steps(lines)]
