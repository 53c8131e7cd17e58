"""Cases of a test with parameters that CI runs. The others get the mark `thorough`: `make test-all` runs them.

A test with the mark `each_value` has the product of its parameters as cases: CI runs as many as have each value of each
parameter, not each combination. A test with the mark `ci_cases("a", "b")` has its cases by name: CI runs these alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence

import pytest

ELSEWHERE = ("gpu", "gpu2", "thorough")
"""Marks of cases that CI does not run anyway."""


def leave_cases_out(items: Iterable[pytest.Item]) -> None:
    """Marks, of each test that has `each_value` or `ci_cases`, the cases that CI can do without as `thorough`. Raises
    pytest.UsageError for a name in `ci_cases` that no case of a whole test has."""
    tests: dict[str, list[pytest.Function]] = {}
    named: dict[str, list[pytest.Function]] = {}
    for item in items:
        if not isinstance(item, pytest.Function):
            continue
        if item.get_closest_marker("ci_cases"):
            named.setdefault(item.nodeid.partition("[")[0], []).append(item)
        elif item.get_closest_marker("each_value"):
            if not any(item.get_closest_marker(mark) for mark in ELSEWHERE):
                tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, cases in named.items():
        mark = cases[0].get_closest_marker("ci_cases")
        assert mark is not None
        leave_unnamed_out(name, cases, mark.args)
    for cases in tests.values():
        kept = cover([{name: _key(value) for name, value in case.callspec.params.items()} for case in cases])
        for number, case in enumerate(cases):
            if number not in kept:
                case.add_marker(pytest.mark.thorough)


def leave_unnamed_out(test: str, cases: Sequence[pytest.Function], names: Sequence[str]) -> None:
    """Marks the cases of a test without one of these names as `thorough`. Raises pytest.UsageError for a name that no
    case has."""
    for case in cases:
        if case.callspec.id not in names:
            case.add_marker(pytest.mark.thorough)
    missing = set(names) - {case.callspec.id for case in cases}
    if missing and len(cases) > 1:  # of a run of one case by its name, the others are not there
        raise pytest.UsageError(f"{test}: ci_cases names {sorted(missing)}, which no case is called")


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


__all__ = ["cover", "leave_cases_out", "leave_unnamed_out"]
