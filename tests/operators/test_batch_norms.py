"""Norms of batches on a CPU, and their gradients, of numbers whose squares float32 does not hold."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from litz_testing.tensors import lies_otherwise

LAID: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rows": lambda x: x,
    "turned": lambda x: x.permute(*reversed(range(x.dim()))).contiguous().permute(*reversed(range(x.dim()))),
    "gaps": lambda x: torch.stack((x, x), -1)[..., 0],
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x,
}
Norm = Callable[..., tuple[torch.Tensor, ...]]


def norms(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, ...]:
    mean, variance = torch.zeros_like(bias), torch.ones_like(bias)
    normed = F.batch_norm(x, mean, variance, weight, bias, training=True, momentum=1e-6)
    return normed, mean, variance, F.instance_norm(x) if x.dim() > 2 else F.batch_norm(x, None, None, training=True)


def trained(function: Norm, x: torch.Tensor, dtype: torch.dtype) -> list[torch.Tensor]:
    """Returns results and gradients. dtype: of weight and bias."""
    x = x.detach().requires_grad_()
    weight, bias = (torch.linspace(start, 2, x.shape[1], dtype=dtype).requires_grad_() for start in (0.5, -1))
    normed, mean, variance, other = function(x, weight, bias)
    weights = torch.linspace(-1, 1, x.numel(), dtype=x.dtype).view(x.shape)
    gradients = torch.autograd.grad(((normed - other) * weights).sum(), (x, weight, bias))
    return [value.detach() for value in (normed, mean, variance, other, *gradients)]


@pytest.mark.each_value
@pytest.mark.parametrize("how", LAID)
@pytest.mark.parametrize("shape", [(8, 4, 5), (6, 3), (2, 4, 3, 5), (64, 4, 7, 7)], ids=str)
@pytest.mark.parametrize("size", [1.0, 2e19, 1e25, 1e36])
def test_norms_and_their_gradients_are_those_of_float64(shape: tuple[int, ...], how: str, size: float) -> None:
    torch._dynamo.reset()
    x = LAID[how](torch.randn(shape) * size)
    found = trained(torch.compile(norms, backend="litz"), x, torch.float32)
    for value, want in zip(found, trained(norms, x.double(), torch.float64), strict=True):
        scale = float(want.abs().max())
        held = value.double() if scale < 3e38 else value.clamp(max=3e38).double()  # a running variance of 1e44
        assert (held - want.clamp(max=3e38)).abs().max() <= 4e-6 * min(scale, 3e38), scale


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms_of_bfloat16_are_those_of_float64(dtype: torch.dtype) -> None:
    """Of small numbers and of large ones, by the same kernels."""
    compiled = torch.compile(norms, backend="litz", dynamic=True)
    for size in (1.0, 2e19):
        x = (torch.randn(8, 4, 5) * size).bfloat16()
        found = trained(compiled, x, dtype)
        assert [value.dtype for value in found] == [value.dtype for value in trained(norms, x, dtype)]
        for value, want in zip(found, trained(norms, x.double(), torch.float64), strict=True):
            assert (value.double() - want).abs().max() <= 2e-2 * want.abs().max(), size


@pytest.mark.each_value
@pytest.mark.parametrize("how", LAID)
@pytest.mark.parametrize("of_gradient", LAID)
@pytest.mark.parametrize("shape", [(8, 4, 5), (2, 4, 3, 5)], ids=str)
@pytest.mark.parametrize("training", [True, False])
def test_a_gradient_of_a_norm_lies_as_in_eager(
    shape: tuple[int, ...], how: str, of_gradient: str, training: bool
) -> None:
    """Which hooks see, and whoever asks for the gradient of what is no leaf."""

    def function(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        return (F.batch_norm(x, torch.zeros(4), torch.ones(4), training=training) * by).sum()

    torch._dynamo.reset()
    x, by = LAID[how](torch.randn(shape)).requires_grad_(), LAID[of_gradient](torch.randn(shape))
    wanted, found = (
        torch.autograd.grad(made(x, by), x)[0] for made in (function, torch.compile(function, backend="litz"))
    )
    assert not lies_otherwise(found, wanted), (found.stride(), wanted.stride())
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)
