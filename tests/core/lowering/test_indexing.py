"""Reads at computed positions, and slices laid over a tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from litz.ir.interpret import interpret
from operators.harness import check, program_of

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool]
Function = Callable[..., Any]


def make(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    values = torch.arange(torch.Size(size).numel()).reshape(size) % 97 - 40
    return values > 3 if dtype == torch.bool else values.to(dtype)


FIRST, SECOND = torch.tensor([2, 0, -1, 1]), torch.tensor([[1], [0], [2]])

INDEX: dict[str, Function] = {
    "first": lambda x, i, j: x[i],
    "second": lambda x, i, j: x[:, i],
    "two apart": lambda x, i, j: x[i, :, i],
    "two adjacent": lambda x, i, j: x[:, i, j],
    "broadcast": lambda x, i, j: x[i, j],
    "with a slice": lambda x, i, j: x[1:, i[:2], ::2],
    "with None": lambda x, i, j: x[None, i, None],
    "scalar and tensor": lambda x, i, j: x[1, :, i],
    "two dimensions": lambda x, i, j: x[j],
    "int32": lambda x, i, j: x[i.to(torch.int32)],
    "a number": lambda x, i, j: torch.ops.aten.index(x, [None, i[0]]),
    "transposed": lambda x, i, j: x.transpose(0, 2)[i, :, j],
    "arange": lambda x, i, j: x[torch.arange(3), :, torch.arange(3)],
    "back to front": lambda x, i, j: x[:, torch.arange(-1, -4, -1)],
}


@pytest.mark.parametrize("name", INDEX)
@pytest.mark.parametrize("dynamic", [False, True])
def test_index(name: str, dynamic: bool) -> None:
    check(INDEX[name], make(3, 4, 5), FIRST, SECOND, dynamic=dynamic)


@pytest.mark.parametrize("dtype", DTYPES)
def test_index_dtypes(dtype: torch.dtype) -> None:
    check(lambda x, i: x[:, i], make(3, 4, dtype=dtype), FIRST)


def test_index_of_nothing() -> None:
    check(lambda x, i: x[i], make(3, 4), torch.empty(0, dtype=torch.int64))
    check(lambda x, i: x[:, i], torch.empty(0, 4), FIRST)


def test_index_out_of_range_is_an_error() -> None:
    program = program_of(lambda x, i: x[i], make(3), FIRST)
    with pytest.raises(IndexError):
        interpret(program, [make(3), torch.tensor([0, 3, 1, 2])])
    with pytest.raises(IndexError):
        interpret(program, [make(3), torch.tensor([-4, 0, 1, 2])])


def test_index_by_mask_stays_with_the_library() -> None:
    x = make(3, 4)
    check(lambda x: x[x > 0].sum(), x, native=False)


def test_unsafe_index() -> None:
    check(lambda x, i, j: torch.ops.aten._unsafe_index(x, [None, i, j]), make(3, 4, 5), FIRST, SECOND)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_gather(dtype: torch.dtype, dim: int, dynamic: bool) -> None:
    index = torch.randint(0, 3, (2, 3, 2))
    check(lambda x, i: x.gather(dim, i), make(3, 4, 5, dtype=dtype), index, dynamic=dynamic)


def test_gather_of_numbers_and_nothing() -> None:
    check(lambda x, i: x.gather(0, i), torch.tensor(2.0), torch.tensor(0))
    check(lambda x, i: x.gather(0, i), torch.tensor(2.0), torch.tensor([0, 0]))
    check(lambda x, i: x.gather(0, i), make(3), torch.tensor(2))
    check(lambda x, i: x.gather(1, i), make(3, 4), torch.empty(3, 0, dtype=torch.int64))
    check(lambda x, i: x.gather(1, i.expand(3, 4)), make(4, 3).t(), torch.tensor([[1, 0, 2, 3]]))


def test_index_select_embedding_take() -> None:
    check(lambda x, i: x.index_select(1, i.abs()), make(3, 4), FIRST)
    check(lambda w, i: torch.nn.functional.embedding(i.abs(), w, padding_idx=0), make(5, 3), SECOND)
    check(lambda w, i: torch.nn.functional.embedding(i, w), make(5, 3), torch.tensor(2))
    check(lambda x, i: x.take(i.abs() + 5), make(3, 4), FIRST)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_slices_laid_over(dtype: torch.dtype, dynamic: bool) -> None:
    def function(x: torch.Tensor, row: torch.Tensor, block: torch.Tensor) -> Any:
        return (
            torch.select_scatter(x, row, 0, 1),
            torch.select_scatter(x, row, 0, -1),
            torch.slice_scatter(x, block, 1, 1, 3),
            torch.slice_scatter(x, block, 1, -4, None, 2),
            torch.slice_scatter(x, x + x, 1),
        )

    inputs = (make(3, 4, dtype=dtype), make(4, dtype=dtype), make(3, 2, dtype=dtype))
    check(function, *inputs, dynamic=dynamic)


@pytest.mark.parametrize("dynamic", [False, True])
def test_diagonal_laid_over(dynamic: bool) -> None:
    inputs = make(3, 4), make(4)
    check(lambda x, row: torch.diagonal_scatter(x, row[:3], 1), *inputs, dynamic=dynamic)
    check(lambda x, row: torch.diagonal_scatter(x, row[:2], -1), *inputs, dynamic=dynamic)
    check(lambda x, y: torch.diagonal_scatter(x, y, 0, 2, 0), make(3, 2, 4), make(2, 3), dynamic=dynamic)


def test_writes_through_views() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x[:, 1] = 2
        x[0, 1:3] += y[0, :2]
        x.diagonal().mul_(3)
        x[::2] = y[::2]
        return x

    check(function, make(4, 4), make(4, 4))
    check(function, make(4, 4).t(), make(4, 4))


def test_as_strided_scatter() -> None:
    check(lambda x, y: torch.as_strided_scatter(x, y, (2, 2), (3, 1), 1), make(3, 4), make(2, 2))


@pytest.mark.parametrize("stride", [(2, 0), (0, 0)])
def test_as_strided_scatter_over_one_place_is_torchs_error(stride: tuple[int, int]) -> None:
    scatter = torch.compile(lambda x, y: torch.as_strided_scatter(x, y, (2, 2), stride, 1), backend="litz")
    with pytest.raises(RuntimeError, match="single memory location"):
        scatter(make(3, 4), make(2, 2))


def test_masked_scatter_stays_with_the_library() -> None:
    check(lambda x, s: x.masked_scatter(x > 0, s), make(3, 5), make(15), native=False)
