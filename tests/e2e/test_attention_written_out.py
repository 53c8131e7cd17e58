"""Attention that is written out, on a GPU: the kernel against float64, no worse than eager, and that it is taken."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from litz import report
from support.written_out_cases import CASES, added_low, causal_low, filled, plain, soft_cap

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def judge(function: Callable[..., Any], *inputs: Any, mode: str | None = None) -> report.CompileReport:
    """Fail where the compiled function's error is above eager's, or where other elements are NaN."""
    torch._dynamo.reset()
    with torch.no_grad(), report.collect() as reports:
        compiled = torch.compile(function, backend="litz", mode=mode)
        actual = [compiled(*inputs) for _ in range(3)][-1]
        eager = function(*inputs)
        exact = function(*(x.double() if x.is_floating_point() else x for x in inputs))
    assert torch.equal(actual.isnan(), eager.isnan())
    errors = [(x.double() - exact).where(~eager.isnan(), 0.0) for x in (actual, eager)]
    ours, theirs = (error.square().mean().sqrt().item() for error in errors)
    assert ours <= 1.1 * theirs + 1e-6, f"{ours:.3e} against eager's {theirs:.3e}"
    return reports[0]


def operands(length: int, dtype: torch.dtype, width: int = 64) -> list[torch.Tensor]:
    return [torch.randn(4, 16, length, width, device="cuda", dtype=dtype) for _ in range(3)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("function", [plain, causal_low, soft_cap])
@pytest.mark.parametrize("mode", [None, "reduce-overhead", "max-autotune"])
def test_a_kernel_is_no_worse_than_eager(function: Any, width: int, dtype: torch.dtype, mode: str | None) -> None:
    found = judge(function, *operands(1000, dtype, width), mode=mode)
    if mode != "max-autotune":
        told = str(found.decisions)
        assert "triton attention" in told or "written out it takes" in told


@pytest.mark.parametrize("function", [filled, added_low])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_rows_that_are_masked(function: Any, dtype: torch.dtype) -> None:
    """NaN where a mask is -inf, even weights where it is the least number; tiles of masked keys before others."""
    mask = torch.rand(1024, 1024, device="cuda") < 0.5
    mask[:, :300], mask[:, -1], mask[5], mask[-1] = False, True, False, False
    judge(function, *operands(1024, dtype), mask)


@pytest.mark.parametrize("name", CASES)
def test_small_ones_are_right(name: str) -> None:
    """Whichever way is chosen."""
    case = CASES[name]
    inputs = [x.cuda() if isinstance(x, torch.Tensor) else x for x in case.make()]
    judge(case.function, *inputs)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5", "deberta"])
def test_models(name: str) -> None:
    pytest.importorskip("transformers")
    from support.eager_models import eager_model

    model, given = eager_model(name)
    model = model.eval().cuda()
    given = {key: value.cuda() if isinstance(value, torch.Tensor) else value for key, value in given.items()}
    exact_model, half = copy.deepcopy(model).double(), model.bfloat16()
    torch._dynamo.reset()
    with torch.no_grad(), report.collect() as reports:
        actual = torch.compile(half, backend="litz")(**given)[0]
        eager, exact = half(**given)[0], exact_model(**given)[0]
    ours, theirs = ((x.double() - exact).square().mean().sqrt().item() for x in (actual, eager))
    assert ours <= 1.1 * theirs, f"{ours:.3e} against eager's {theirs:.3e}"
    # Which is taken the estimate says.
    told = str([found.decisions for found in reports])
    assert "triton attention" in told or "written out it takes" in told
