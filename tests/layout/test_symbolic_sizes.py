"""Convolutions whose sizes are symbols, which FX writes as nodes within lists."""

from __future__ import annotations

import torch


def test_the_gradient_of_a_transposed_convolution() -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(3, 5, 3, 3), torch.randn(5)

    def up(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.conv_transpose2d(x, weight, bias, stride=2, padding=2, output_padding=1)

    inputs = [value.requires_grad_() for value in (torch.randn(2, 3, 5, 4), weight, bias)]
    compiled = torch.compile(up, backend="litz", dynamic=True)
    for x in (inputs[0], torch.randn(3, 3, 7, 6).requires_grad_()):
        ours = torch.autograd.grad(compiled(x, weight, bias).square().sum(), (x, weight, bias))
        eagers = torch.autograd.grad(up(x, weight, bias).square().sum(), (x, weight, bias))
        torch.testing.assert_close(ours, eagers, rtol=1e-4, atol=1e-3)
