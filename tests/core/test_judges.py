"""What tests compare with where eager is not right, and where C leaves a result open."""

from __future__ import annotations

import math

import torch

from litz_testing.tensors import eager_or_exact, in_range


def test_float64_judges_only_where_infinities_and_nan_differ() -> None:
    inf, nan = math.inf, math.nan
    got = torch.tensor([1.0, inf, nan, inf, 3e38, -inf, 5.0])
    want = torch.tensor([2.0, inf, nan, nan, inf, inf, nan])
    exact = torch.tensor([3.0, 1e300, 7.0, 1e300, 3e38, -1e300, 6.0], dtype=torch.float64)
    expected = torch.tensor([2.0, inf, nan, inf, 3e38, -inf, 6.0])
    assert torch.equal(eager_or_exact(got, want, exact).nan_to_num(8.0), expected.nan_to_num(8.0))


def test_conversions_that_c_defines() -> None:
    x = torch.tensor([0.0, -0.9, -1.0, 255.9, 256.0, math.nan, math.inf])
    assert in_range(x, torch.uint8).tolist() == [True, True, False, True, False, False, False]
    top = torch.tensor([2.0**32 - 256, 2.0**32, 2.0**63, 2.0**62])
    assert in_range(top, torch.uint32).tolist() == [True, False, False, False]
    assert in_range(top, torch.int64).tolist() == [True, True, False, True]
