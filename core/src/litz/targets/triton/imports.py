"""The imports of a generated Triton module: one place for all that write one.

In: the text of its functions. Out: the lines that go before them.
"""

from __future__ import annotations

import re
from collections.abc import Collection

HELPERS = "litz.targets.triton.helpers"
"""The module of device functions; their names begin with `_`. `libdevice` comes from there as well."""
_CALLED = re.compile(r"(?<![\w.])_[a-z]\w*")
_IMPORTED = re.compile(rf"^from {re.escape(HELPERS)} import ([^\n]*)\n", re.M)


def import_lines(body: str) -> list[str]:
    """Returns the lines that import what a kernel's functions call."""
    helpers = sorted(set(_CALLED.findall(body)))
    return lines_for([*helpers, "libdevice"] if "libdevice." in body else helpers)


def lines_for(helpers: Collection[str]) -> list[str]:
    """Returns the lines that import Triton and some helpers, in their order."""
    lines = ["import triton", "import triton.language as tl"]
    return [*lines, f"from {HELPERS} import {', '.join(helpers)}"] if helpers else lines


def imported_helpers(text: str) -> frozenset[str]:
    """Returns the names of the helpers that a module imports."""
    found = _IMPORTED.search(text)
    return frozenset(found[1].split(", ")) if found else frozenset()


__all__ = ["HELPERS", "import_lines", "imported_helpers", "lines_for"]
