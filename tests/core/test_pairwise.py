"""The cases that a matrix of axes has: each pair of values, no impossible one, the same in each run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

import pytest

from support import attention_backward_matrix as backward
from support import attention_matrix as forward
from support import convolution_matrix as convolutions
from support import gemm_matrix as gemm
from support.pairwise import Axes, Row, Rule, holds, matrix, pairs_of, pairs_wanted

TESTS = Path(__file__).parents[1]
AXES: Axes = {
    "type": ("f32", "bf16", "f16"),
    "size": ("many", "one", "none"),
    "before": ("as-is", "exp", "gathered"),
    "after": ("stored", "relu", "softmax"),
    "lies": ("rows", "columns"),
}
NEVER: tuple[Rule, ...] = (
    {"before": "gathered", "size": "none"},
    {"after": "softmax", "size": ("one", "none"), "type": "bf16"},
)


@pytest.mark.parametrize("never", [(), NEVER])
@pytest.mark.parametrize("spare", [(), ({"before": "exp", "after": ("relu", "softmax")},)])
def test_each_pair_stands_in_a_row(never: tuple[Rule, ...], spare: tuple[Rule, ...]) -> None:
    rows = matrix(AXES, never, spare).values()
    found = {pair for row in rows for pair in pairs_of(row)}
    possible = [
        dict(zip(AXES, values, strict=True))
        for values in product(*AXES.values())
        if not any(holds(rule, dict(zip(AXES, values, strict=True))) for rule in never)
    ]
    everything = {pair for row in possible for pair in pairs_of(row)}
    assert set(pairs_wanted(AXES, never, spare)) <= found <= everything
    assert set(pairs_wanted(AXES, never)) == everything
    assert all(tuple(row) == tuple(AXES) for row in rows)


@pytest.mark.parametrize(
    ("axes", "never", "spare", "rows", "first"),
    [
        (forward.AXES, forward.NEVER, forward.SPARE, forward.ROWS, forward.FIRST),
        (backward.AXES, backward.NEVER, (), backward.ROWS, backward.FIRST),
        (gemm.AXES, gemm.NEVER, (), gemm.ROWS, gemm.FIRST),
        (convolutions.AXES, convolutions.NEVER, (), convolutions.ROWS, convolutions.FIRST),
    ],
    ids=["attention", "attention's backward", "products", "convolutions"],
)
def test_the_matrices_of_kernels(
    axes: Axes, never: Sequence[Rule], spare: Sequence[Rule], rows: Mapping[str, Row], first: int
) -> None:
    """first: rows that CI runs."""
    wanted = set(pairs_wanted(axes, never, spare))
    assert wanted <= {pair for row in rows.values() for pair in pairs_of(row)}
    assert not any(holds(rule, row) for rule in never for row in rows.values())
    in_ci = {pair for row in list(rows.values())[:first] for pair in pairs_of(row)}
    assert len(wanted & in_ci) > 0.69 * len(wanted)
    assert {each for pair in in_ci for each in pair} == {(axis, value) for axis in axes for value in axes[axis]}


def test_the_rows_are_the_same_in_each_process() -> None:
    """Names of tests must not change with the seed of hashes."""
    program = f"from support.pairwise import matrix; print(list(matrix({AXES!r}, {NEVER!r})))"
    command = [sys.executable, "-S", "-c", program]  # imports no torch

    def said(seed: str) -> str:
        environ = {**os.environ, "PYTHONPATH": str(TESTS), "PYTHONHASHSEED": seed}
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout

    assert said("1") == said("2") == f"{list(matrix(AXES, NEVER))}\n"


def test_it_is_not_much_larger_than_it_must_be() -> None:
    """Nine at least: each of three values with each of three."""
    assert len(matrix(AXES)) <= 13
    many = {f"axis{n}": [f"{n}{letter}" for letter in "abcd"] for n in range(10)}
    assert len(matrix(many)) <= 36


def test_a_pair_that_only_other_axes_make_impossible_is_not_wanted() -> None:
    axes = {"a": ("a0", "a1"), "b": ("b0", "b1"), "c": ("c0", "c1")}
    never: tuple[Rule, ...] = ({"a": "a1", "c": "c0"}, {"b": "b1", "c": "c1"})
    assert frozenset({("a", "a1"), ("b", "b1")}) not in set(pairs_wanted(axes, never))
    assert not any(row["a"] == "a1" and row["b"] == "b1" for row in matrix(axes, never).values())


def test_names_say_what_is_not_ordinary() -> None:
    names = list(matrix({"type": ("f32", "bf16"), "after": ("stored", "relu")}))
    assert sorted(names) == ["bf16", "bf16-relu", "plain", "relu"]


def test_a_row_that_must_be_there_is_there() -> None:
    wanted = {"type": "f16", "size": "none", "after": "softmax"}
    assert any(wanted.items() <= row.items() for row in matrix(AXES, NEVER, also=[wanted]).values())


def test_mistakes_are_told() -> None:
    with pytest.raises(ValueError, match="two values are called x"):
        matrix({"a": ("x", "y"), "b": ("x",)})
    with pytest.raises(ValueError, match="type has no value f64"):
        matrix(AXES, [{"type": "f64"}])
    with pytest.raises(ValueError, match="no row has"):
        matrix(AXES, NEVER, also=[{"before": "gathered", "size": "none"}])
