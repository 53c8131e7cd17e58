"""A budget as people write it. In: "20GiB", "80%" or a number of bytes. Out: bytes. Imports no torch: `litz options`
checks a budget, too."""

from __future__ import annotations

import re

from litz_plugins.units import parse_size


def bytes_of(text: str, eager: int) -> int:
    """Returns the bytes of a budget. eager: the bytes that 100% stands for. Errors: ValueError."""
    share = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", text)
    found = int(float(share[1]) / 100 * eager) if share else parse_size(text)
    if found <= 0:
        raise ValueError(f"{text!r} leaves no memory at all")
    return found


__all__ = ["bytes_of"]
