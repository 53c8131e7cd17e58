"""Exponents that a tensor's type does not hold exactly: powers as eager has them."""

from __future__ import annotations

import pytest
import torch

from support.compare import device_param, litz


@device_param
@pytest.mark.parametrize("exponent", [1e-46, -1e-46, 1 + 1e-9, 2.0**24 + 1])
def test_an_exponent_that_rounds_to_a_whole_number(device: str, exponent: float) -> None:
    """A negative number to 1e-46 is NaN, to 0 it is 1; an odd exponent keeps the sign."""
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.0, -1.0, 3e38, -2.5, 0.5], device=device)
    torch.testing.assert_close(litz(lambda x: x**exponent)(x), x**exponent, equal_nan=True)
