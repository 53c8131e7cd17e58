"""A reduction that is a row and nothing else, as Triton: in its interpreter, and compiled for sm_90."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

pytest.importorskip("triton")

from support.interpreted import asked_for, interpreted, mostly
from support.new_reductions import registered
from support.triton_compiled import compile_only
from support.triton_new_reductions import problems, source_of, sources

pytestmark = pytest.mark.xdist_group("triton interpreter")


THOROUGH = [
    *(f"{size}-torch.{dtype}" for size in ("long", "columns", "one") for dtype in ("float64", "int64", "int32")),
    *("split-log_sum_exp-1200", "split-largest-1200"),
]
"""Each dtype is in a row, and each size in the other dtypes; each split is of 1201 rows."""


@pytest.fixture(scope="session")
def wrong(request: pytest.FixtureRequest) -> Mapping[str, str]:
    """For each case that is asked for "" or what went wrong."""
    return interpreted("support.triton_new_reductions", asked_for(request, __name__))


@pytest.mark.parametrize("name", mostly(problems(), THOROUGH))
def test_a_row_is_enough(name: str, wrong: Mapping[str, str]) -> None:
    if "only 0-dimensional arrays can be converted" in wrong[name]:
        pytest.skip("the interpreter of Triton 3.6 has no loops of variable length with NumPy 2.4 or later")
    assert wrong[name] == ""


@pytest.mark.parametrize(
    "name",
    ["row-torch.float64", "row-torch.int8", "long-torch.bfloat16", "row-by row", "row-combined", "long-combined"],
)
def test_compiles_for_hopper(name: str) -> None:
    with registered():
        source = source_of(name, sources()[name]())
    assert compile_only(source)["cubin"]
