"""Rows that a product gathers, on a GPU: no worse than eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from litz import report

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def experts(weights: torch.Tensor, chosen: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.einsum("ti,taoi->tao", x, weights[chosen])


def tokens(x: torch.Tensor, rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return x[rows] @ weights


def judge(function: Callable[..., Any], *inputs: torch.Tensor, mode: str | None = None) -> report.CompileReport:
    torch._dynamo.reset()
    with torch.no_grad(), report.collect() as reports:
        compiled = torch.compile(function, backend="litz", mode=mode)
        actual = [compiled(*inputs) for _ in range(3)][-1]
    exact = function(*(x.double() if x.is_floating_point() else x for x in inputs))
    ours, theirs = ((x.double() - exact).square().mean().sqrt().item() for x in (actual, function(*inputs)))
    assert ours <= 1.1 * theirs + 1e-6, f"{ours:.3e} against eager's {theirs:.3e}"
    return reports[0]


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_experts_of_tokens(count: int, dtype: torch.dtype) -> None:
    weights = torch.randn(8, 7168, 2048, device="cuda", dtype=dtype)
    chosen = torch.randint(-8, 8, (count, 2), device="cuda")
    found = judge(experts, weights, chosen, torch.randn(count, 2048, device="cuda", dtype=dtype))
    assert "with 1 producer" in str(found.decisions)


@pytest.mark.parametrize("rows", [64, 1000])
def test_tokens_of_an_expert_are_measured(rows: int) -> None:
    x = torch.randn(4096, 512, device="cuda", dtype=torch.bfloat16)
    at = torch.randint(0, 4096, (rows,), device="cuda")
    judge(tokens, x, at, torch.randn(512, 768, device="cuda", dtype=torch.bfloat16), mode="max-autotune")
