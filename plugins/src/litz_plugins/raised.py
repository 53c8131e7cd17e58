"""Where in a plugin's own code an exception was raised. In: the exception, and the package of the plugin. Out:
"litz_gentle/ops.py:41, in lower_gelu"."""

from __future__ import annotations

import traceback
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

OTHERS = frozenset({"litz", "litz_plugins", "torch"})
"""Packages whose lines say nothing of a plugin's fault."""


def package_of(obj: Any) -> str:
    """Returns the top package of a plugin's code, by the module or object with its hooks, or a function of it."""
    if isinstance(obj, ModuleType):
        name = obj.__name__
    else:
        name = getattr(obj, "__module__", None) or type(obj).__module__
    return str(name).partition(".")[0]


def raised_at(cause: BaseException | str, package: str) -> str:
    """Returns where an exception was raised: the last of its frames in ``package``, else the last outside of litz and
    torch; '' where there is none (a check of litz's refused what a plugin returned)."""
    if isinstance(cause, str):
        return ""
    frames = [(frame, line) for frame, line in traceback.walk_tb(cause.__traceback__) if _top(frame) not in OTHERS]
    own = [found for found in frames if _top(found[0]) == package]
    if not frames:
        return ""
    frame, line = (own or frames)[-1]
    return f"{_file(frame)}:{line}, in {frame.f_code.co_name}"


def _top(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _file(frame: FrameType) -> str:
    """The file of a frame, from its top package on."""
    path = Path(frame.f_code.co_filename)
    depth = str(frame.f_globals.get("__name__", "")).count(".") + (2 if path.name == "__init__.py" else 1)
    return "/".join(path.parts[-depth:])


__all__ = ["package_of", "raised_at"]
