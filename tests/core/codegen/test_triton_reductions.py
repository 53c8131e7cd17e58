"""A reduction that is a row and nothing else, as Triton: in its interpreter, and compiled for sm_90."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

pytest.importorskip("triton")

from support.interpreted import interpreted
from support.new_reductions import registered
from support.triton_compiled import compile_only
from support.triton_new_reductions import problems, source_of, sources

pytestmark = pytest.mark.xdist_group("triton interpreter")


@pytest.fixture(scope="session")
def wrong() -> Mapping[str, str]:
    """For each case "" or what went wrong."""
    return interpreted("support.triton_new_reductions")


@pytest.mark.parametrize("name", problems())
def test_a_row_is_enough(name: str, wrong: Mapping[str, str]) -> None:
    if "only 0-dimensional arrays can be converted" in wrong[name]:
        pytest.skip("the interpreter of Triton 3.6 has no loops of variable length with NumPy 2.4 or later")
    assert wrong[name] == ""


@pytest.mark.parametrize("name", ["row-torch.float64", "row-torch.int8", "long-torch.bfloat16", "row-by row"])
def test_compiles_for_hopper(name: str) -> None:
    with registered():
        source = source_of(name, sources()[name]())
    assert compile_only(source)["cubin"]
