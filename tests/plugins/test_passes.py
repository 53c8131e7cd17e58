"""Sorting passes: stable, by stage, with cycles and clashes named."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from litz_plugins import Pass, PassOrderError
from litz_plugins.passes import sort_passes


def make(name, stage="program", after=(), before=(), plugin=""):
    return Pass(name, stage, lambda noun, context: noun, after=after, before=before, plugin=plugin)


def names(passes):
    return [p.name for p in sort_passes(passes)]


def test_registration_order_stays_where_nothing_is_said():
    assert names([make("c"), make("a"), make("b")]) == ["c", "a", "b"]


def test_after_and_before():
    assert names([make("a", after=("b",)), make("b"), make("c", before=("b",))]) == ["c", "b", "a"]


def test_absent_names_are_ignored():
    assert names([make("a", after=("gone",), before=("missing",)), make("b")]) == ["a", "b"]


def test_stages_come_in_order():
    passes = [make("s", "schedule"), make("p", "program", after=("g",)), make("g", "graph")]
    assert names(passes) == ["g", "p", "s"]


def test_order_against_the_stages_is_an_error():
    with pytest.raises(PassOrderError, match=r"'g' \(graph stage, plugin 'x'\) cannot run after 's'") as error:
        sort_passes([make("g", "graph", after=("s",), plugin="x"), make("s", "schedule")])
    assert error.value.passes == ("g", "s")


def test_a_cycle_is_named_and_only_the_cycle():
    passes = [
        make("free"),
        make("a", after=("c",), plugin="one"),
        make("b", after=("a",), plugin="two"),
        make("c", after=("b",)),
        make("behind", after=("c",)),
    ]
    with pytest.raises(PassOrderError) as error:
        sort_passes(passes)
    assert error.value.passes == ("a", "b", "c")
    assert set(error.value.plugins) == {"one", "two", ""}
    assert "a (plugin 'one') -> b (plugin 'two') -> c (core) -> a (plugin 'one')" in str(error.value)
    assert "free" not in str(error.value) and "behind" not in str(error.value)


def test_a_pass_that_waits_for_itself_is_a_cycle():
    with pytest.raises(PassOrderError) as error:
        sort_passes([make("a", after=("a",))])
    assert error.value.passes == ("a",)


def test_one_name_twice_names_both_plugins():
    with pytest.raises(PassOrderError, match="plugin 'one' and from plugin 'two'") as error:
        sort_passes([make("fuse", plugin="one"), make("fuse", "graph", plugin="two")])
    assert error.value.plugins == ("one", "two")


@given(st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.tuples(*[st.integers(0, n - 1)] * 2)))))
def test_every_edge_is_kept_or_a_cycle_is_named(case):
    count, edges = case
    passes = [make(str(i), after=tuple(str(a) for a, b in edges if b == i)) for i in range(count)]
    try:
        order = names(passes)
    except PassOrderError as error:
        cycle = [int(name) for name in error.passes]
        assert all((a, b) in edges for a, b in itertools.pairwise([*cycle, cycle[0]]))
    else:
        assert sorted(order) == sorted(str(i) for i in range(count))
        assert all(order.index(str(a)) < order.index(str(b)) for a, b in edges)
