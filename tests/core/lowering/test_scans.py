"""Cumulative ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from core.lowering.harness import check
from support.retarget import cuda_schedules

DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.bool]


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("dynamic", [False, True])
def test_cumsum_and_cumprod(dtype: torch.dtype, dim: int, dynamic: bool) -> None:
    x = torch.randint(-1, 3, (3, 4, 5)).to(dtype)
    check(lambda x: (x.cumsum(dim), x.cumprod(dim)), x, dynamic=dynamic)
    check(lambda x: x.transpose(0, 2).cumsum(dim), x, dynamic=dynamic)


def test_result_dtype() -> None:
    check(lambda x: x.cumsum(0, dtype=torch.float32), torch.ones(300, dtype=torch.bfloat16))
    check(lambda x: x.cumsum(0, dtype=torch.int32), torch.tensor([1.7, 1.7, 1.7]))
    check(lambda x: x.cumsum(0), torch.ones(300, dtype=torch.bfloat16))


def test_shapes() -> None:
    check(lambda x: x.cumsum(0), torch.tensor(3.0))
    check(lambda x: x.cumsum(0), torch.tensor(True))
    check(lambda x: x.cumsum(1), torch.ones(3, 1))
    check(lambda x: x.cumsum(0), torch.ones(1, 3))
    check(lambda x: x.cumsum(1), torch.ones(3, 0))
    check(lambda x: x.cumsum(0), torch.ones(1, 1).expand(4, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_cumulative_extremes(dtype: torch.dtype) -> None:
    x = torch.randint(-9, 9, (4, 6)).to(dtype)
    check(lambda x: (x.cummax(1).values, x.cummin(0).values), x)
    check(lambda x: x.cummax(1), x, native=False)
    check(lambda x: x.float().logcumsumexp(1), x, native=False)


@pytest.mark.parametrize("fn", [lambda x: x.cumsum(-1), lambda x: x.argmax(-1), lambda x: x.min(-1)])
def test_few_long_rows_are_the_librarys_on_a_gpu(fn: Callable[[torch.Tensor], Any]) -> None:
    def externs(*size: int) -> int:
        torch._dynamo.reset()
        (schedule,) = cuda_schedules(lambda backend: torch.compile(fn, backend=backend)(torch.zeros(size)))
        return len(schedule.program.externs)

    assert (externs(1, 2**20), externs(512, 2**17), externs(2, 2**10)) == (1, 0, 0)
