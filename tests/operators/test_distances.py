"""Pairwise distances and masked_scatter."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from support.compare import check

NORMS = [0.0, 0.5, 1.0, 2.0, 3.0, float("inf")]


def with_dynamic(values: list[Any], usual: tuple[Any, ...]) -> list[Any]:
    """Each value with sizes that are known; with those that are not, only the `usual` unless `make test-all` asks."""
    known = [pytest.param(value, False) for value in values]
    thorough = pytest.mark.thorough
    return known + [pytest.param(value, True, marks=[thorough] * (value not in usual)) for value in values]


@pytest.mark.each_value
@pytest.mark.parametrize(("p", "dynamic"), with_dynamic(NORMS, (0.5, 2.0)))
def test_distances(p: float, dynamic: bool) -> None:
    x, y = torch.randn(2, 7, 5), torch.randn(2, 6, 5)
    x[:, 3] = y[:, 2]
    exact = "donot_use_mm_for_euclid_dist"
    check(lambda x, y, z: (torch.cdist(x, y, p, exact), torch.nn.functional.pdist(z, p)), x, y, x[0], dynamic=dynamic)


@pytest.mark.ci_cases("2.0", "3.0", "inf")
@pytest.mark.parametrize("p", NORMS)
def test_distances_of_nan(p: float) -> None:
    x, y = torch.randn(3, 5), torch.randn(2, 5)
    x[0, 2], x[1], y[1, 0] = torch.nan, torch.inf, torch.inf
    check(lambda x, y: (torch.cdist(x, y, p), torch.nn.functional.pdist(x, p)), x, y)


@pytest.mark.parametrize("shape", [(0, 5), (1, 5), (4, 0), (2, 1)])
def test_distances_of_little(shape: tuple[int, int]) -> None:
    check(lambda x: torch.nn.functional.pdist(x), torch.randn(shape))
    check(lambda x: torch.cdist(x, x, 1.0), torch.randn(shape))


def test_many_rows_are_a_matrix_product() -> None:
    check(torch.cdist, torch.randn(40, 8), torch.randn(30, 8))


TYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool]


@pytest.mark.each_value
@pytest.mark.parametrize(("dtype", "dynamic"), with_dynamic(TYPES, (torch.bfloat16, torch.int64)))
def test_masked_scatter(dtype: torch.dtype, dynamic: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x, source = (torch.randint(-3, 4, (5, 33), generator=generator).to(dtype) for _ in range(2))
    mask = torch.rand(5, 33, generator=generator) > 0.6
    mask[0, 0] = False

    def scattered(x: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> tuple[torch.Tensor, ...]:
        turned = x.t().masked_scatter(mask[:1].t(), source), x.t().masked_scatter(mask.t(), source)
        return x.masked_scatter(mask, source), *turned

    check(scattered, x, mask, source, dynamic=dynamic)
    check(lambda x, m, s: x.masked_scatter(m, s), x, torch.zeros_like(mask), source[:0])


def test_masked_scatter_of_complex_numbers_is_the_library_s() -> None:
    """With its error: an index into `source` that is out of range is no fault of the caller's."""

    def f(x: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        return x.masked_scatter(mask, source)

    x, mask = torch.randn(2, 2, dtype=torch.complex64), torch.tensor([True, True])
    torch.testing.assert_close(torch.compile(f, backend="litz")(x, mask, x + 1), f(x, mask, x + 1))
    with pytest.raises(RuntimeError, match="Number of elements of source"):
        torch.compile(f, backend="litz")(x, mask, x[0, :1])
