"""Powers of special values: as eager has them, for each type and each way to give the exponent."""

from __future__ import annotations

import math

import pytest
import torch

from support.compare import device_param, litz

INF, NAN = math.inf, math.nan
BASES = [NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -2.5, 1e-5, 7.0, -7.0, 100.0]
EXPONENTS = [0.5, -0.5, 2, -1, 3, 0, 1, -2, -3, 0.25, 2.5, -2.5, INF, -INF, NAN, 8, 9, -9]
ALIKE = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float32: 2e-6, torch.float64: 1e-14}


def same(got: torch.Tensor, want: torch.Tensor) -> None:
    """Up to a few roundings; of subnormal numbers (1e-5 to the power of 8 or 9 in float32) to one unit."""
    info = torch.finfo(want.dtype)
    unit = info.smallest_normal * info.eps
    torch.testing.assert_close(got, want, rtol=ALIKE[want.dtype], atol=unit, equal_nan=True)
    known = ~want.isnan()
    assert torch.equal(torch.signbit(got[known]), torch.signbit(want[known]))


@device_param
@pytest.mark.parametrize("dtype", ALIKE, ids=str)
def test_special_values(device: str, dtype: torch.dtype) -> None:
    """Eager takes a root for a number of 0.5, save for float16 on a CPU; a tensor of 0.5 is an exponent like others,
    but g++ takes a root for the vectors of pow(x, 0.5). On a GPU eager takes a tensor of the CPU for a number, so the
    exponent without dimensions lies where x does."""
    x = torch.tensor(BASES, device=device).to(dtype)

    def powers(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        numbers = [x**exponent for exponent in EXPONENTS]
        tensors = [torch.pow(x, torch.full_like(x, exponent)) for exponent in EXPONENTS]
        half = torch.tensor(0.5, device=x.device)
        return (*numbers, *tensors, torch.pow(x, half), *(torch.pow(base, x) for base in (0.5, 2, -1, 0)))

    for got, want in zip(litz(powers)(x), powers(x), strict=True):
        same(got, want)


@device_param
@pytest.mark.parametrize("dtype", ALIKE, ids=str)
def test_exponents_of_each_element(device: str, dtype: torch.dtype) -> None:
    x = torch.tensor(BASES, device=device).to(dtype)[:, None]
    y = torch.tensor([float(each) for each in EXPONENTS], device=device).to(dtype)
    same(litz(torch.pow)(x, y), torch.pow(x, y))
