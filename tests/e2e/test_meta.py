"""Models of meta tensors, which have no memory: a compiled call gives eager's sizes, strides and dtypes."""

from __future__ import annotations

import pytest
import torch
from torch.utils._pytree import tree_map


def described(value: torch.Tensor) -> tuple[object, ...]:
    return value.device.type, value.dtype, tuple(value.shape), value.stride(), value.requires_grad


def network(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Kernels, calls, a view and a reduction to another dtype."""
    y = torch.softmax(torch.nn.functional.conv2d(x, weight).relu() + 1, 1)
    return y.transpose(1, 3), (y > 0.5).sum(-1)


@pytest.mark.ci_cases("reduce-overhead", "max-autotune")
@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune"])
def test_inference_of_several_sizes(mode: str) -> None:
    compiled = torch.compile(network, backend="litz", mode=mode)
    weight = torch.empty(4, 3, 2, 2, device="meta")
    for size in (5, 7, 9):
        x = torch.empty(size, 3, size, 6, device="meta")
        assert tree_map(described, compiled(x, weight)) == tree_map(described, network(x, weight))


def test_training_and_what_is_written() -> None:

    def step(x: torch.Tensor, weight: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        seen.add_(x.sum(0))
        return torch.nn.functional.layer_norm(x @ weight, (4,)).square().mean()

    weight = torch.empty(6, 4, device="meta", requires_grad=True)
    seen = torch.empty(6, device="meta")
    loss = torch.compile(step, backend="litz", options={"debug": True})(torch.empty(5, 6, device="meta"), weight, seen)
    loss.backward()
    assert described(loss) == ("meta", torch.float32, (), (), True)
    assert weight.grad is not None and described(weight.grad) == ("meta", torch.float32, (6, 4), (4, 1), False)
