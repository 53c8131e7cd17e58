"""Writes at computed positions."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from litz.ir import Extern, Loop
from litz.ir.interpret import interpret

from .harness import check, program_of

DTYPES = [torch.float32, torch.bfloat16, torch.int64]


def make(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    values = torch.arange(torch.Size(size).numel()).reshape(size) % 7 - 3
    return values > 0 if dtype == torch.bool else values.to(dtype)


DISTINCT, REPEATED = torch.tensor([2, 0, -1]), torch.tensor([1, 1, 0, 1])


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool])
@pytest.mark.parametrize("dynamic", [False, True])
def test_index_put(dtype: torch.dtype, dynamic: bool) -> None:
    def function(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> Any:
        return x.index_put((i,), v), x.index_put((i, i), v[0, :3])

    check(function, make(4, 5, dtype=dtype), DISTINCT, make(3, 5, dtype=dtype), dynamic=dynamic)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_index_put_accumulates(dtype: torch.dtype, dynamic: bool) -> None:
    def function(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> Any:
        return x.index_put((i,), v, accumulate=True), x.index_put((i, i), v[:, 0], accumulate=True)

    check(function, make(3, 5, dtype=dtype), REPEATED, make(4, 5, dtype=dtype), dynamic=dynamic)


def test_values_of_more_dimensions_than_places_are_refused_as_in_eager() -> None:
    def function(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.index_put(x, (i,), v)

    args = torch.ones(5, 2), torch.tensor([1, 2]), torch.ones(1, 2, 2)
    for call in (function, torch.compile(function, backend="litz")):
        with pytest.raises(RuntimeError, match="shape mismatch"):
            call(*args)


def test_index_put_of_views() -> None:
    check(lambda x, i: torch.ops.aten.index_put(x, [None, i], x[:, :3] * 2), make(5, 4).t(), DISTINCT)
    check(lambda x, i: torch.ops.aten._unsafe_index_put(x, [i], x.sum(), True), make(4, 5), REPEATED)


@pytest.mark.parametrize("accumulate", [False, True])
def test_index_put_by_mask(accumulate: bool) -> None:
    put, x, value = torch.ops.aten.index_put, make(4, 5), torch.tensor(5.0)
    check(lambda x, v: put(x, [x > 0], v, accumulate), x, value)
    check(lambda x, v: put(x, [x[:, 0] > 0], v.reshape(1), accumulate), x, value)
    check(lambda x, v: put(x, [None, x[0] > 0], v, accumulate), x, value)
    check(lambda x, v: put(x, [x > 0], v, accumulate), x, torch.arange(float((x > 0).sum())), native=False)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [0, 1])
def test_scatter(dtype: torch.dtype, dim: int) -> None:
    index = torch.tensor([[0, 1, 2], [2, 0, 1]])
    source = make(3, 4, dtype=dtype)
    check(lambda x, i, s: x.scatter(dim, i, s), make(3, 5, dtype=dtype), index, source)
    check(lambda x, i: x.scatter(dim, i, 4), make(3, 5, dtype=dtype), index)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduce", ["add", "multiply"])
def test_scatter_with_reduce(dtype: torch.dtype, reduce: str) -> None:
    index = torch.tensor([[0, 1, 0], [2, 1, 1]])
    check(lambda x, i, s: x.scatter(1, i, s, reduce=reduce), make(3, 5, dtype=dtype), index, make(3, 4, dtype=dtype))
    check(lambda x, i: x.scatter(1, i, 3, reduce=reduce), make(3, 5, dtype=dtype), index)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_scatter_add(dtype: torch.dtype, dynamic: bool) -> None:
    index = torch.tensor([[0, 1, 0], [2, 1, 1]])
    inputs = make(3, 5, dtype=dtype), index, make(3, 4, dtype=dtype)
    check(lambda x, i, s: x.scatter_add(0, i, s), *inputs, dynamic=dynamic)
    check(lambda x, i, s: x.t().scatter_add(1, i, s), *inputs, dynamic=dynamic)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduce", ["sum", "prod", "amax", "amin", "mean"])
@pytest.mark.parametrize("include_self", [False, True])
def test_scatter_reduce(dtype: torch.dtype, reduce: str, include_self: bool) -> None:
    index = torch.tensor([[0, 1, 0, 0], [2, 1, 1, 2]])
    inputs = make(3, 5, dtype=dtype) + 4, index, make(2, 4, dtype=dtype) * 3
    check(lambda x, i, s: x.scatter_reduce(1, i, s, reduce, include_self=include_self), *inputs, rtol=2e-2, atol=1e-2)


def test_scatter_of_numbers_and_nothing() -> None:
    zero = torch.tensor(0)
    check(lambda x, i, s: x.scatter(0, i, s), torch.tensor(2.0), zero, torch.tensor(3.0))
    check(lambda x, i, s: x.scatter_add(0, i, s), make(3), zero, torch.tensor(3.0))
    check(lambda x, i, s: x.scatter_reduce(0, i, s, "mean"), torch.tensor(2.0), zero, torch.tensor(3.0))
    check(lambda x, i, s: x.scatter_add(0, i, s), make(3), torch.empty(0, dtype=torch.int64), torch.empty(0))


@pytest.mark.parametrize("dtype", DTYPES)
def test_index_add_and_copy(dtype: torch.dtype) -> None:
    inputs = make(3, 5, dtype=dtype), REPEATED, make(3, 4, dtype=dtype)
    check(lambda x, i, s: x.index_add(1, i, s, alpha=2), *inputs)
    inputs = make(3, 5, dtype=dtype), DISTINCT.abs() * 2, make(3, 3, dtype=dtype)
    check(lambda x, i, s: x.index_copy(1, i[:2], s[:, :2]), *inputs)


def test_embedding_backward() -> None:
    op = torch.ops.aten.embedding_dense_backward.default
    index = torch.tensor([[0, 2], [2, 3]])
    check(lambda g, i: op(g, i, 5, 3, False), torch.randn(2, 2, 4), index)
    check(lambda g, i: op(g.bfloat16(), i, 5, -1, False), make(2, 2, 4), index)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool])
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("dynamic", [False, True])
def test_one_of_each_row_of_zeros_is_no_scatter(dtype: torch.dtype, dim: int, dynamic: bool) -> None:
    """Each element says by its position whether it is the one: no fill, and no stores at computed places."""
    size = [3, 4, 5]
    size[dim] = 1
    index = torch.arange(torch.Size(size).numel()).reshape(size) % 3
    source = make(*size, dtype=dtype)

    def function(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> Any:
        found = [torch.zeros_like(x).scatter(dim, i, 1), torch.full_like(x, 2).scatter(dim, i, s)]
        return found if dtype == torch.bool else [*found, torch.full_like(x, 2).scatter_add(dim, i, s)]

    program = check(function, make(3, 4, 5, dtype=dtype), index, source, dynamic=dynamic)
    assert len(program.operations) == (2 if dtype == torch.bool else 3)
    assert all(store.is_plain and store.mode == "set" for loop in program.loops for store in loop.stores)


@pytest.mark.parametrize(
    ("function", "index"),
    [
        (lambda x, i: torch.zeros_like(x).scatter(1, i, 1), torch.tensor([[0], [2]])),
        (lambda x, i: torch.zeros_like(x).scatter(1, i, 1), torch.tensor([[0, 2], [2, 3], [1, 1]])),
        (lambda x, i: x.scatter(1, i, 1), torch.tensor([[0], [2], [4]])),
        (lambda x, i: torch.zeros_like(x).scatter_reduce(1, i, x, "amax"), torch.tensor([[0], [2], [4]])),
    ],
    ids=["some rows", "two of a row", "of data", "the greatest"],
)
def test_other_scatters_are_stores(function: Any, index: torch.Tensor) -> None:
    program = check(function, make(3, 5), index)
    assert any(not store.is_plain for loop in program.loops for store in loop.stores)


@pytest.mark.parametrize("size", [(0, 4), (4, 1), (1, 1), (1,)])
def test_one_of_each_row_at_the_edges(size: tuple[int, ...]) -> None:
    index = torch.zeros((*size[:-1], 1), dtype=torch.int64)
    check(lambda x, i: torch.zeros_like(x).scatter(-1, i, 3), make(*size), index)
    check(lambda x, i: torch.zeros_like(x).scatter_add(-1, i, x[..., :1] + 1), make(*size), index)


@pytest.mark.parametrize("at", [-1, 5])
def test_an_index_that_is_no_position_is_an_error(at: int) -> None:
    program = program_of(lambda x, i: torch.zeros_like(x).scatter(1, i, 1), make(2, 5), torch.tensor([[0], [1]]))
    with pytest.raises(IndexError):
        interpret(program, [make(2, 5), torch.tensor([[0], [at]])])


def test_the_copy_comes_before_the_stores() -> None:
    program = program_of(lambda x, i, v: x.index_put((i,), v, accumulate=True), make(3), REPEATED, make(4))
    copy, put = program.operations
    assert isinstance(copy, Loop) and isinstance(put, Loop)
    assert copy.stores[0].mode == "set" and put.stores[0].mode == "add" and copy.writes == put.writes


def test_half_types_accumulate_in_float32() -> None:
    x, ones = torch.zeros(1, dtype=torch.bfloat16), torch.ones(1000, dtype=torch.bfloat16)
    program = program_of(lambda x, s: x.index_put((torch.zeros(1000, dtype=torch.int64),), s, accumulate=True), x, ones)
    assert any(b.dtype == torch.float32 for b in program.buffers.values())


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8])
def test_narrow_types(dtype: torch.dtype) -> None:
    inputs, native = (make(3, 5, dtype=dtype), REPEATED, make(4, 5, dtype=dtype)), dtype != torch.bool
    check(lambda x, i, v: x.index_put((i,), v, accumulate=True), *inputs, native=native)


def test_deterministic_algorithms_stay_with_the_library() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        program = program_of(lambda x, i, v: x.index_put((i,), v, accumulate=True), make(3), REPEATED, make(4))
    finally:
        torch.use_deterministic_algorithms(False)
    assert any(isinstance(operation, Extern) for operation in program.operations)
