"""Which cases of a test with several parameters CI runs."""

from __future__ import annotations

import itertools

import pytest

from support.each_value import cover


@pytest.mark.parametrize("sizes", [(1, 1), (3, 2), (2, 5), (4, 3, 2), (6, 6)])
def test_each_value_is_there_in_the_fewest_cases(sizes: tuple[int, ...]) -> None:
    cases = [dict(enumerate(case)) for case in itertools.product(*map(range, sizes))]
    kept = [cases[number] for number in cover(cases)]
    for parameter, size in enumerate(sizes):
        assert {case[parameter] for case in kept} == set(range(size))
    assert len(kept) == max(sizes)


def test_values_of_the_other_parameters_take_turns() -> None:
    cases = [{"name": name, "dynamic": dynamic} for dynamic in (0, 1) for name in range(6)]
    assert sum(cases[number]["dynamic"] for number in cover(cases)) == 3


def test_a_product_with_gaps() -> None:
    cases = [{"a": 0, "b": 0}, {"a": 1, "b": 0}, {"a": 1, "b": 1}]
    assert cover(cases) == {0, 2}
