"""The gradients of padding."""

from __future__ import annotations

import pytest
import torch

from operators.harness import check


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mode", ["reflection", "replication"])
@pytest.mark.parametrize(
    "size, padding", [((2, 6), (1, 2)), ((2, 5, 6), (2, 0, 1, 3)), ((1, 3, 4, 5), (1, 0, 1, 1, 1, 0))]
)
def test_pad_backward(dtype: torch.dtype, mode: str, size: tuple[int, ...], padding: tuple[int, ...]) -> None:
    count = len(padding) // 2
    op = getattr(torch.ops.aten, f"{mode}_pad{count}d_backward").default
    forward = getattr(torch.ops.aten, f"{mode}_pad{count}d").default
    x = torch.randn(size)
    grad = torch.randn_like(forward(x, padding))
    x, grad = x.to(dtype), grad.to(dtype)
    tolerance = {"rtol": 3e-2, "atol": 3e-2} if dtype == torch.bfloat16 else {}
    check(lambda g, x: op(g, x, padding), grad, x, **tolerance)
