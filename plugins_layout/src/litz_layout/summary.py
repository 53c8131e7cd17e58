"""A plan as a table, for `litz explain` and the report's folder. In: a problem, its labels, the copies. Out: text."""

from __future__ import annotations

from collections.abc import Sequence

from litz_layout.frames import NAMES
from litz_layout.problem import Problem
from litz_plugins import Conversion

MANY = 40
"""Convolutions shown; the rest is counted."""


def make_table(problem: Problem, labels: tuple[int, ...], conversions: Sequence[Conversion]) -> str:
    """Returns the copies (cost in µs, and who asked), then the convolutions (µs in either layout), as a table."""
    lines: list[str] = []
    if conversions:
        rows = [("copy of", "for", "µs", "why")]
        for item in conversions:
            us = "?" if item.us is None else f"{item.us:.1f}"
            rows.append((item.tensor, _few(item.users), us, item.reason))
        lines += [*_columns(rows), ""]
    rows4 = [("convolution", "works in", "µs first", "µs last")]
    shown = list(_convolutions(problem, labels))
    for name, label, (first, last) in shown[:MANY]:
        rows4.append((name, NAMES[label], _us(first), _us(last)))
    lines += _columns(rows4)
    if len(shown) > MANY:
        lines.append(f"and {len(shown) - MANY} more")
    sources = dict.fromkeys(cost.why for cost in problem.convolutions.values())
    lines += ["", *(f"source: {text}" for text in sources)]
    return "\n".join(lines) + "\n"


def _convolutions(problem: Problem, labels: tuple[int, ...]) -> list[tuple[str, int, tuple[float, float]]]:
    pairs = zip(problem.variables, labels, strict=True)
    return [
        (variable.node.name, label, problem.convolutions[variable.node].us)
        for variable, label in pairs
        if variable.node in problem.convolutions
    ]


def _us(us: float) -> str:
    return "never" if us >= 1e6 else f"{us:.1f}"


def _few(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 2 else f"{names[0]} and {len(names) - 1} more"


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows in columns, the last as wide as it is."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]) - 1)]
    return [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]) for row in rows
    ]
