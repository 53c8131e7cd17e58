"""What the GPU's kernels of whole graphs compute, forward and backward, in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from support.interpreted import interpreted
from support.interpreted_graphs import CASES

pytest.importorskip("triton")


@pytest.fixture(scope="module")
def problems() -> Mapping[str, str]:
    return interpreted("support.interpreted_graphs")


@pytest.mark.parametrize("name", CASES)
def test_as_float64(problems: Mapping[str, str], name: str) -> None:
    assert not problems[name]
