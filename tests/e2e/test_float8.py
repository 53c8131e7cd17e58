"""float8 through torch.compile: quantised activations, caches, weights, bit by bit as eager where nothing is summed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from support.compare import device_param
from support.executed import executed, kinds
from support.float8 import every_byte

pytestmark = device_param
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
Tensor = torch.Tensor


def run(fn: Callable[..., Any], *given: Tensor, **options: Any) -> tuple[Any, list[str]]:
    """What litz computes, and its kernels and calls."""
    torch._dynamo.reset()
    compiled = torch.compile(fn, backend="litz", **options)
    compiled(*[x.clone() for x in given])
    found: list[Any] = []
    names = kinds(executed(lambda: found.append(compiled(*given))))
    return found[0], names


def same_bits(one: Tensor, other: Tensor) -> None:
    assert one.dtype == other.dtype and one.stride() == other.stride()
    if one.dtype in (E4M3, E5M2):
        nan = one.float().isnan()
        assert torch.equal(nan, other.float().isnan())
        one, other = (x.view(torch.uint8).masked_fill(nan, 0) for x in (one, other))
    assert torch.equal(one, other), (one != other).sum()


def same_quantised(ours: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor]) -> None:
    """Bit for bit; on CUDA, where eager divides by a number as it multiplies by the inverse, but for a last bit of some
    scales, and what that rounds otherwise."""
    if not ours[1].is_cuda:
        same_bits(ours[0], theirs[0])
        assert torch.equal(ours[1], theirs[1])
        return
    torch.testing.assert_close(ours[1], theirs[1], rtol=2e-7, atol=0.0)
    bytes_, others = (each[0].view(torch.uint8).to(torch.int16) for each in (ours, theirs))
    apart = (bytes_ - others).abs()
    assert apart.max() <= 1 and (apart > 0).float().mean() < 0.01


def quantised(x: Tensor, dtype: torch.dtype = E4M3) -> tuple[Tensor, Tensor]:
    most = torch.finfo(dtype).max
    scale = x.abs().amax(-1, keepdim=True).float() / most
    return (x.float() / scale).clamp(-most, most).to(dtype), scale


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=str)
@pytest.mark.parametrize("size", [(64, 512), (3, 1), (1, 37), (2, 3, 1000)], ids=str)
def test_quantising_rows_is_one_kernel(device: str, size: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randn(*size, device=device).bfloat16()
    found, names = run(lambda x: quantised(x, dtype), x)
    same_quantised(found, quantised(x, dtype))
    assert len(names) == 1, names


def test_quantising_a_tensor(device: str) -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        scale = x.abs().amax().float() / 448.0
        return (x.float() / scale).to(E4M3), scale

    x = torch.randn(300, 700, device=device).bfloat16()
    found, _ = run(f, x)
    same_quantised(found, f(x))


@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=str)
def test_what_is_too_large_is_as_in_eager(device: str, dtype: torch.dtype) -> None:
    """Saturated, infinite or NaN, by torch's version: but what a CPU's torch does is what litz does."""
    x = torch.tensor([448.0, 464.0, 464.1, 480, 57344, 61439, 61440, 1e9, float("inf"), float("nan")], device=device)
    x = torch.cat([x, -x]).repeat(40)
    (got,), _ = run(lambda x: (x.to(dtype),), x)
    same_bits(got.cpu(), x.cpu().to(dtype))


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_cache_is_written_and_read(device: str, dynamic: bool) -> None:
    def step(cache: Tensor, new: Tensor, at: Tensor) -> Tensor:
        cache[:, :, at] = (new * 2).to(cache.dtype)
        return cache.to(new.dtype).sum(-1)

    cache, new = torch.randn(2, 4, 40, 16, device=device).to(E4M3), torch.randn(2, 4, 1, 16, device=device)
    at = torch.tensor([5], device=device)
    mine, theirs = cache.clone(), cache.clone()
    torch._dynamo.reset()
    got = torch.compile(step, backend="litz", dynamic=dynamic)(mine, new, at)
    torch.testing.assert_close(got, step(theirs, new, at))
    same_bits(mine, theirs)


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=str)
@pytest.mark.parametrize("rows", [1, 5, 70])
def test_weights_of_float8(device: str, rows: int, dtype: torch.dtype) -> None:
    w, x = torch.randn(256, 512, device=device).to(dtype), torch.randn(rows, 512, device=device).bfloat16()
    scale = torch.rand(256, device=device).bfloat16()

    def f(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
        return F.linear(x, w.to(x.dtype)) * scale

    got, _ = run(f, x, w, scale)
    exact = F.linear(x.double(), w.double()) * scale.double()
    error, eager = ((y.double() - exact).norm() / exact.norm() for y in (got, f(x, w, scale)))
    assert error <= 1.1 * eager + 1e-6


def test_gradients_go_through_a_conversion(device: str) -> None:
    """As eager has them: the gradient is rounded to float8 on its way."""

    def f(x: Tensor) -> Tensor:
        return (x.to(E5M2).to(torch.float32) * x).sum()

    ours, theirs = (torch.randn(40, 30, generator=torch.Generator().manual_seed(1)).to(device) for _ in range(2))
    for x, fn in ((ours.requires_grad_(), torch.compile(f, backend="litz")), (theirs.requires_grad_(), f)):
        fn(x).backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_copies_keep_every_bit(device: str) -> None:
    x = every_byte(E5M2).reshape(16, 16).to(device)
    (got, bits), _ = run(lambda x: (torch.cat([x.t(), x]), x.t().contiguous().view(torch.uint8)), x)
    assert torch.equal(got.view(torch.uint8), torch.cat([x.t(), x]).view(torch.uint8))
    assert torch.equal(bits, x.t().contiguous().view(torch.uint8))


def test_empty_and_single(device: str) -> None:
    def f(*xs: Tensor) -> list[Tensor]:
        return [(x + 1).to(E4M3).to(torch.bfloat16) for x in xs]

    xs = [torch.randn(size, device=device) for size in ((0, 8), (4, 0), (1, 1), ())]
    got, _ = run(f, *xs)
    torch.testing.assert_close(got, f(*xs), rtol=0, atol=0)
