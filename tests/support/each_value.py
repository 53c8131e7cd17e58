"""Cases of a test with several parameters that CI runs: each value of each parameter, not each combination.

A test with the mark `each_value` has the product of its parameters as cases. CI runs some of these cases, and
`make test-all` runs all. The cases that CI leaves out get the mark `thorough`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence

import pytest

ELSEWHERE = ("gpu", "gpu2", "thorough")
"""Marks of cases that CI does not run anyway."""


def leave_combinations_out(items: Iterable[pytest.Item]) -> None:
    """Marks, of each test that has `each_value`, the cases that CI can do without as `thorough`."""
    tests: dict[str, list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("each_value"):
            if not any(item.get_closest_marker(mark) for mark in ELSEWHERE):
                tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in tests.values():
        kept = cover([{name: _key(value) for name, value in case.callspec.params.items()} for case in cases])
        for number, case in enumerate(cases):
            if number not in kept:
                case.add_marker(pytest.mark.thorough)


def _key(value: object) -> Hashable:
    """Stands for a value, which may be of a type that has no hash; True is another value than 1."""
    try:
        hash(value)
    except TypeError:
        return id(value)
    return type(value), value


def cover(cases: Sequence[Mapping[str, Hashable]]) -> set[int]:
    """Returns which of the cases, by number, together have each value of each parameter: each time the case with the
    most values that are missing, and of several the one whose values have been taken least often."""
    missing = {pair for case in cases for pair in case.items()}
    taken: Counter[tuple[str, Hashable]] = Counter()
    kept: set[int] = set()
    while missing:
        rest = (number for number in range(len(cases)) if number not in kept)
        best = max(
            rest,
            key=lambda number: (
                sum(pair in missing for pair in cases[number].items()),
                -sum(taken[pair] for pair in cases[number].items()),
            ),
        )
        kept.add(best)
        taken.update(cases[best].items())
        missing -= set(cases[best].items())
    return kept


__all__ = ["cover", "leave_combinations_out"]
