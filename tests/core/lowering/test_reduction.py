"""Reductions against eager: dtypes, dimensions, layouts, empty tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from operators.harness import check, program_of

aten = torch.ops.aten
F32, BF16, I64, BOOL = torch.float32, torch.bfloat16, torch.int64, torch.bool
Function = Callable[[torch.Tensor], Any]


def values(dtype: torch.dtype, *size: int) -> torch.Tensor:
    count = torch.Size(size).numel()
    base = (torch.arange(count) * 37 % 41 - 20).reshape(size)
    return base > 0 if dtype == BOOL else (base / 8).to(dtype) if dtype.is_floating_point else base.to(dtype)


ALL_DTYPES: dict[str, Function] = {
    "sum": lambda x: x.sum(),
    "sum dim": lambda x: x.sum(1),
    "sum keepdim": lambda x: x.sum((0, -1), keepdim=True),
    "sum dtype": lambda x: x.sum(0, dtype=torch.float64),
    "prod dim": lambda x: x[:, :3, 0].prod(1, keepdim=True),
    "amax": lambda x: x.amax((0, 2)),
    "amin": lambda x: x.amin(-1, keepdim=True),
    "max": lambda x: x.max(),
    "max dim": lambda x: tuple(x.max(1)),
    "min dim keepdim": lambda x: tuple(x.min(-1, keepdim=True)),
    "any": lambda x: x.any(),
    "any dim": lambda x: x.any(1),
    "all dim": lambda x: x.all(1, keepdim=True),
    "count_nonzero": lambda x: torch.count_nonzero(x, dim=1),
    "aminmax": lambda x: tuple(torch.aminmax(x, dim=1)),
}

NUMBERS: dict[str, Function] = {
    "argmax": lambda x: x.argmax(),
    "argmax dim": lambda x: x.argmax(1),
    "argmin keepdim": lambda x: x.argmin(0, keepdim=True),
}

FLOATS: dict[str, Function] = {
    "mean": lambda x: x.mean(),
    "mean dims": lambda x: x.mean((0, 2), keepdim=True),
    "mean dtype": lambda x: x.mean(1, dtype=F32),
    "var": lambda x: x.var(1),
    "var all": lambda x: x.var(),
    "var population": lambda x: x.var((0, 1), correction=0, keepdim=True),
    "var_mean": lambda x: torch.var_mean(x, 1, keepdim=True),
    "std": lambda x: x.std(-1),
    "std_mean": lambda x: torch.std_mean(x, (0, 1)),
    "norm 2": lambda x: torch.linalg.vector_norm(x, 2, 1),
    "norm 1": lambda x: torch.linalg.vector_norm(x, 1, (0, 1), keepdim=True),
    "norm 3": lambda x: torch.linalg.vector_norm(x, 3),
    "norm inf": lambda x: torch.linalg.vector_norm(x, float("inf"), 1),
    "norm -inf": lambda x: torch.linalg.vector_norm(x, -float("inf"), 1),
    "norm 0": lambda x: torch.linalg.vector_norm(x, 0, 1),
    "logsumexp": lambda x: x.logsumexp(1),
    "logsumexp keepdim": lambda x: x.logsumexp((0, 2), keepdim=True),
    "softmax": lambda x: x.softmax(-1),
    "softmax first": lambda x: x.softmax(0),
    "log_softmax": lambda x: x.log_softmax(1),
    "softmax to float": lambda x: torch.softmax(x, 1, dtype=F32),
    "softmax backward": lambda x: aten._softmax_backward_data(x.flip(0), x.softmax(1), 1, x.dtype),
    "log_softmax backward": lambda x: aten._log_softmax_backward_data(x.flip(0), x.log_softmax(1), 1, x.dtype),
}


def tolerances(dtype: torch.dtype) -> dict[str, Any]:
    return {"rtol": 2e-2, "atol": 2e-2} if dtype == BF16 else {}


@pytest.mark.parametrize("name", ALL_DTYPES)
@pytest.mark.parametrize("dtype", [F32, BF16, I64, BOOL])
def test_any_dtype(name: str, dtype: torch.dtype) -> None:
    check(ALL_DTYPES[name], values(dtype, 3, 5, 4), **tolerances(dtype))


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("dtype", [F32, BF16, I64])
def test_positions(name: str, dtype: torch.dtype) -> None:
    check(NUMBERS[name], values(dtype, 3, 5, 4))


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("dtype", [F32, BF16, torch.float64])
def test_floats(name: str, dtype: torch.dtype) -> None:
    check(FLOATS[name], values(dtype, 3, 5, 4), **tolerances(dtype))


EVERY = {**ALL_DTYPES, **NUMBERS, **FLOATS}


@pytest.mark.parametrize("name", EVERY)
def test_symbolic_sizes(name: str) -> None:
    check(EVERY[name], values(F32, 3, 5, 4), dynamic=True)


@pytest.mark.parametrize("name", EVERY)
def test_layouts(name: str) -> None:
    # The strides that torch's fake kernels of these two ops claim are not eager's.
    check(EVERY[name], values(F32, 4, 5, 3).transpose(0, 2), strides="backward" not in name)
    check(EVERY[name], values(F32, 1, 5, 4).expand(3, 5, 4))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x.sum(), x.mean(), x.prod(), x.any(), x.all(), x.logsumexp(0)),
        lambda x: (x.amax(), x.argmax(), x.softmax(0), x.sum(0), x.sum(-1, keepdim=True), x.sum([])),
        lambda x: (torch.var(x, correction=0), x.max(0)[0]),
    ],
)
def test_zero_dimensional(function: Function) -> None:
    check(function, torch.tensor(2.5))


@pytest.mark.parametrize("size", [(0, 3), (3, 0), (2, 0, 3)])
def test_empty(size: tuple[int, ...]) -> None:
    x = torch.ones(size)
    check(lambda x: (x.sum(), x.sum(0), x.sum(-1), x.prod(), x.any(0), x.all(-1), x.mean(), x.mean(0)), x)
    check(lambda x: x.softmax(-1), x)
    check(lambda x: x.var(0), x, native=False)


def test_nan_and_infinity() -> None:
    x = torch.tensor([[1.0, float("nan"), 2.0], [float("inf"), 1.0, 3.0], [-float("inf")] * 3])
    check(lambda x: (x.amax(1), x.amin(1), x.argmax(1), x.max(1), x.logsumexp(1), x.sum(1), x.softmax(1)), x)


def test_first_of_equals() -> None:
    x = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]])
    check(lambda x: (x.argmax(1), x.argmin(1), x.max(1), x.argmax()), x)


def test_var_of_one_element() -> None:
    check(lambda x: (x.var(1), x.var(1, correction=0), torch.std_mean(x, 1)), torch.ones(4, 1))


def test_half_sums_accumulate_in_float32() -> None:
    check(lambda x: (x.sum(), x.mean(0)), torch.full((5000, 2), 0.1, dtype=BF16))


def test_value_and_position_share_a_loop() -> None:
    assert len(program_of(lambda x: x.max(1), torch.randn(4, 5)).loops) == 1
    assert len(program_of(lambda x: torch.var_mean(x, 1), torch.randn(4, 5)).loops) == 1
