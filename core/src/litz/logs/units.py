"""Numbers that all stages use: the likely value of a size; and those for people, in a few characters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

UNKNOWN_SIZE = 8192
"""The value that a size which depends on data counts as: for costs and for speed only."""


def likely_value(expr: Any, hints: Mapping[Any, int]) -> int:
    """Returns a likely value of a size, by the hints of its symbols; exact for a number. expr: from sympy."""
    if expr.is_Integer:
        return int(expr)
    return int(expr.xreplace({symbol: hints.get(symbol, UNKNOWN_SIZE) for symbol in expr.free_symbols}))


def size_text(count: float) -> str:
    """Returns an amount of bytes for people: "512 B", "1.5 MiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def time_text(us: float) -> str:
    """Returns microseconds for people: "3.2 µs", "1.25 ms", "2 s"."""
    if us < 1e3:
        return f"{us:.3g} µs"
    return f"{us / 1e3:.3g} ms" if us < 1e6 else f"{us / 1e6:.3g} s"


def count_text(count: int, noun: str) -> str:
    """Returns a number and its noun, in the plural where needed: "1 kernel", "4 kernels"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
