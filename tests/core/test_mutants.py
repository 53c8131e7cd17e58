"""The lists of mutants can be run: each text stands in its file once, each test exists. `make mutants` runs them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mutants.rows import ROOT, Mutant, faults_of, read_mutants
from mutants.run import IN_CI, Ran, judge

MUTANTS = read_mutants()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_can_be_applied(mutant: Mutant) -> None:
    assert not faults_of(mutant)


def test_names_are_unique() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) > 0


def test_what_keeps_a_mutant_from_running_is_said() -> None:
    good = MUTANTS[0]
    assert "stands 0 times" in faults_of(replace(good, old="no such text"))[0]
    assert "is `old`" in faults_of(replace(good, new=good.old))[0]
    assert "not be Python" in faults_of(replace(good, new="(" + good.old))[0]
    assert "no test" in faults_of(replace(good, tests=("tests/core/test_mutants.py::test_of_nothing",)))[0]


def test_a_mutant_is_killed_only_by_tests_that_fail() -> None:
    good = replace(MUTANTS[0], tests=("t.py::a", "t.py::b"))
    assert judge(good, Ran(1, frozenset({"t.py::a", "t.py::b"}), ""), 1.0).killed
    assert judge(good, Ran(1, frozenset({"t.py::a"}), ""), 1.0).blind == ("t.py::b",)
    assert judge(good, Ran(0, frozenset(), ""), 1.0).blind == good.tests
    assert judge(good, Ran(None, frozenset(), ""), 1.0).killed, "tests that never end have seen something"
    assert judge(good, Ran(2, frozenset(), ""), 1.0).note, "tests that cannot be collected have seen nothing"
    assert not judge(good, Ran(1, frozenset({"t.py"}), ""), 1.0).killed, "nor has a file that cannot be imported"


def test_a_mutant_is_tried_with_the_tests_that_ci_runs() -> None:
    assert f"IN_CI := {IN_CI}\n" in (ROOT / "Makefile").read_text()
