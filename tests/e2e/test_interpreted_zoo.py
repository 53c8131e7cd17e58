"""Whole models in training by the GPU's kernels, without a GPU: gradients against float64, in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from support.interpreted import asked_for, interpreted, mostly

pytest.importorskip("triton")
pytest.importorskip("transformers")

from support.interpreted_zoo import CASES

FEW = ("gpt2", "dlrm")
"""Attention, a table used twice and slices; sparse tables and scatters."""


@pytest.fixture(scope="module")
def problems(request: pytest.FixtureRequest) -> Mapping[str, str]:
    return interpreted("support.interpreted_zoo", asked_for(request, __name__))


@pytest.mark.parametrize("name", mostly(CASES, [name for name in CASES if name not in FEW]))
def test_gradients_as_float64(problems: Mapping[str, str], name: str) -> None:
    assert not problems[name]
