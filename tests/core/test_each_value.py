"""Which cases of a test with several parameters CI runs."""

from __future__ import annotations

import itertools

import pytest

from support.each_value import cover, leave_unnamed_out


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


@pytest.mark.each_value
@pytest.mark.parametrize("one", [{"a": 1}, {"a": 2}])
@pytest.mark.parametrize("other", [1, True, 0.5])
def test_the_mark(one: dict[str, int], other: float, request: pytest.FixtureRequest) -> None:
    """This test's own cases: values without a hash, and values that are equal and not the same."""
    own = [
        item
        for item in request.session.items
        if item.nodeid.startswith(f"{request.node.parent.nodeid}::test_the_mark[")
    ]
    assert len([item for item in own if not item.get_closest_marker("thorough")]) == 3


def test_a_product_with_gaps() -> None:
    cases = [{"a": 0, "b": 0}, {"a": 1, "b": 0}, {"a": 1, "b": 1}]
    assert cover(cases) == {0, 2}


@pytest.mark.ci_cases("a-1", "b-2")
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("letter", ["a", "b"])
def test_named_cases(letter: str, number: int, request: pytest.FixtureRequest) -> None:
    """This test's own cases."""
    assert bool(request.node.get_closest_marker("thorough")) == ((letter, number) not in (("a", 1), ("b", 2)))


def test_a_name_that_no_case_has_is_an_error(request: pytest.FixtureRequest) -> None:
    own = [item for item in request.session.items if item.name.startswith("test_named_cases[")]
    assert {"a-1", "b-2"} <= {item.callspec.id for item in own}
    with pytest.raises(pytest.UsageError, match=r"ci_cases names \['c-3'\]"):
        leave_unnamed_out("test", own, ("a-1", "b-2", "c-3"))
