"""Scans of half types compiled, with float64 as the judge: a GPU's own kernels for them round at each step."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from support.compare import NO_GPU, close, litz

pytestmark = [
    pytest.mark.gpu,
    NO_GPU,
    pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"]),
]
OPS = {"cumsum": torch.cumsum, "cumprod": torch.cumprod, "logcumsumexp": torch.logcumsumexp}
ops = pytest.mark.parametrize("op", OPS.values(), ids=list(OPS))
Op = Callable[[torch.Tensor, int], torch.Tensor]
INF, NAN = float("inf"), float("nan")


def near_one(*size: int, dtype: torch.dtype) -> torch.Tensor:
    """Factors whose product stays in the range of float16."""
    return (1 + 1e-3 * torch.randn(size)).to("cuda", dtype)


def rounded_once(op: Op, x: torch.Tensor, dim: int, found: torch.Tensor) -> None:
    """Fail where `found` is off by more than half a unit in the last place and the roundings of float32's scan."""
    exact = op(x.double(), dim)
    assert found.dtype == x.dtype
    expected = torch.where(exact.abs() > torch.finfo(x.dtype).max, exact.to(x.dtype).double(), exact)
    torch.testing.assert_close(found.double(), expected, rtol=0.6 * torch.finfo(x.dtype).eps, atol=1e-5, equal_nan=True)


@ops
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_long_rows(op: Op, dynamic: bool, dtype: torch.dtype) -> None:
    """Flattened, so that the library scans the only row; alone, and with a kernel before."""
    x = near_one(100, 1000, dtype=dtype) / (2 if op is torch.cumsum else 1)  # float16 does not hold 100,000
    alone = litz(lambda x: op(x.view(-1), 0), dynamic=dynamic)
    for given in (x, x[:80]) if dynamic else (x,):
        rounded_once(op, given.view(-1), 0, alone(given))
    rounded_once(op, x.view(-1), 0, litz(lambda x: op(x.relu().view(-1), 0), dynamic=dynamic)(x))


@ops
@pytest.mark.parametrize("size", [(16, 32), (20, 30), (1, 7), (3, 1), (2, 0)], ids=str)
def test_short_rows(op: Op, size: tuple[int, int], dtype: torch.dtype) -> None:
    x = torch.rand(size, device="cuda").to(dtype)
    for dim in (0, 1):
        for given in (x, x.t(), x[::2]):
            rounded_once(op, given, dim, litz(lambda x, dim=dim: op(x, dim))(given))


@ops
def test_infinities_and_nan(op: Op, dtype: torch.dtype) -> None:
    x = torch.tensor([[-INF, -INF, 1, 2], [1, -INF, INF, 3], [0, NAN, 2, 1], [-INF, INF, 1, 2]], dtype=dtype).cuda()
    for dim in (0, 1):
        rounded_once(op, x, dim, litz(lambda x, dim=dim: op(x, dim))(x))
    long = near_one(100_000, dtype=dtype) / 2
    long[:3], long[70_000] = -INF if op is torch.logcumsumexp else 0, NAN
    rounded_once(op, long, 0, litz(lambda x: op(x, 0))(long))


@ops
def test_gradients(op: Op, dtype: torch.dtype) -> None:
    """As near to float64 as eager's, or nearer."""

    def run(fn: Op, x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        value = fn(x, 0)
        weights = torch.linspace(0.005, 0.01, value.numel(), device="cuda").to(dtype).to(x.dtype)
        (found,) = torch.autograd.grad(value, x, weights)
        return found

    x = near_one(70_000, dtype=dtype)
    close(run(litz(op), x), run(op, x), run(op, x.double()))


def test_dtype(dtype: torch.dtype) -> None:
    x = near_one(100_000, dtype=dtype) / 2
    sums = litz(lambda x: x.cumsum(0, dtype=torch.float32))(x)
    torch.testing.assert_close(sums.double(), x.double().cumsum(0), rtol=1e-5, atol=1e-5)
    rounded = litz(lambda x: x.float().cumsum(0, dtype=x.dtype))(x)
    rounded_once(torch.cumsum, x, 0, rounded)
