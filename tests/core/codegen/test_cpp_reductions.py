"""A reduction that is a row and nothing else, as C++: every way to walk, every type, split and whole."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from core.codegen.test_cpp_loops import SHAPES, reduction_case
from litz.codegen.cpp import forms
from litz.ir.reductions import ROWS
from support.new_reductions import registered


@pytest.fixture(autouse=True)
def rows() -> Iterator[None]:
    with registered():
        yield


@pytest.mark.parametrize("name", ["row", "long row", "column", "window", "channels last", "empty"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8], ids=str)
def test_a_row_is_enough(name: str, dtype: torch.dtype) -> None:
    if name not in SHAPES:
        pytest.skip("no such shape")
    kinds = ["squares", "log_sum_exp", "largest"] if dtype.is_floating_point else ["squares", "parity"]
    tolerance = 1e-10 if dtype == torch.float64 else 1e-4
    reduction_case(name, dtype, kinds).check(
        **({"rtol": tolerance, "atol": tolerance} if dtype.is_floating_point else {})
    )


@pytest.mark.parametrize("name", ["row", "column", "window"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.bool], ids=str)
def test_rows_with_forms_by_hand_do_without(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the row says and what the form made by hand says is one thing."""
    monkeypatch.setattr(forms, "FORMS", {})
    monkeypatch.setattr("litz.codegen.cpp.accumulators.FORMS", {})
    monkeypatch.setattr("litz.codegen.cpp.accumulators.OF_BOOL", {})
    kinds = [
        kind for row in ROWS if row.means(dtype) and not (row.ordered and dtype == torch.bool) for kind in row.results
    ]
    case = reduction_case(name, dtype, kinds)
    case.check(**({"rtol": 1e-4, "atol": 2e-4} if dtype.is_floating_point else {}))
    if dtype.is_floating_point:
        x = case.inputs["x"].reshape(-1)
        x[5], x[77] = float("nan"), float("inf")
        case = reduction_case(name, dtype, ["max", "min", "argmax", "argmin", "any", "sum"])
        case.inputs["x"].reshape(-1)[5], case.inputs["x"].reshape(-1)[77] = float("nan"), float("inf")
        case.check(rtol=1e-4, atol=2e-4)
