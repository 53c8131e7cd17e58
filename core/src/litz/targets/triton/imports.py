"""The imports of a generated Triton module: one place for all that write one.

In: the text of its functions. Out: the lines that go before them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

HELPERS = "litz.targets.triton.helpers"
"""The module of core's device functions; their names begin with `_`. `libdevice` comes from there as well."""
_CALLED = re.compile(r"(?<![\w.])_[a-z]\w*")
_IMPORTED = re.compile(r"^from (litz\w*(?:\.\w+)+) import ([^\n]*)\n", re.M)


def import_lines(body: str, homes: Mapping[str, str] | None = None) -> list[str]:
    """Returns the lines that import what a kernel's functions call. homes: the modules of functions that are not
    core's."""
    found: dict[str, list[str]] = {}
    for name in (*sorted(set(_CALLED.findall(body))), *["libdevice"] * ("libdevice." in body)):
        found.setdefault((homes or {}).get(name, HELPERS), []).append(name)
    return lines_for(found)


def lines_for(helpers: Mapping[str, Collection[str]]) -> list[str]:
    """Returns the lines that import Triton and some helpers of each module, in their order."""
    lines = (f"from {module} import {', '.join(names)}" for module, names in sorted(helpers.items()))
    return ["import triton", "import triton.language as tl", *lines]


def imported_helpers(text: str) -> Mapping[str, Collection[str]]:
    """Returns the names of the helpers that a text imports, by module."""
    return {module: names.split(", ") for module, names in _IMPORTED.findall(text)}
