"""Gradients of a table that is looked up several times: scattered into one tensor, and the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from litz.ir import Loop
from litz.pipeline import make_compiler
from litz.schedule import Schedule
from support.retarget import cuda_schedules

ROWS, WIDTH = 50, 16


def twice(table: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """An encoder and a decoder that share a table."""
    return F.embedding(first, table).sin().sum() + F.embedding(second, table).square().sum()


def with_head(table: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """The same, and the product with the table that gives logits."""
    hidden = F.embedding(first, table).sin() + F.embedding(second, table)[: len(first)].mean(0)
    return F.cross_entropy(hidden @ table.t(), first)


def three_times(table: Tensor, first: Tensor, second: Tensor) -> Tensor:
    return twice(table, first, second) + F.embedding(second.flip(0), table).cos().sum()


def indexed(table: Tensor, first: Tensor, second: Tensor) -> Tensor:
    return table[first].exp().sum() + table[second].cos().sum()


FUNCTIONS = [twice, with_head, three_times, indexed]


def arguments(dtype: torch.dtype, count: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(ROWS, WIDTH, generator=generator).to(dtype).requires_grad_()
    first, second = (torch.randint(ROWS, (n,), generator=generator) for n in (count, 40))
    return table, first, second


def gradient(fn: Callable[..., Tensor], table: Tensor, *indices: Tensor) -> Tensor:
    (found,) = torch.autograd.grad(fn(table, *indices), table)
    return found


@pytest.mark.each_value
@pytest.mark.parametrize("count", [200, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_the_sum_is_as_exact_as_eagers(fn: Callable[..., Tensor], dtype: torch.dtype, count: int) -> None:
    table, *indices = arguments(dtype, count)
    compiled = torch.compile(fn, backend="litz", dynamic=False, options={"debug": True})
    found, eager = gradient(compiled, table, *indices), gradient(fn, table, *indices)
    exact = gradient(fn, table.detach().double().requires_grad_(), *indices)
    error, theirs = (found.double() - exact).abs().sum(), (eager.double() - exact).abs().sum()
    assert found.dtype == dtype and error <= 1.5 * theirs + 8 * torch.finfo(dtype).eps * exact.abs().sum()


def backward_of(fn: Callable[..., Any], *args: Tensor) -> Schedule:
    """The schedule of the backward, for a GPU."""

    def run(backend: Any) -> None:
        torch.compile(fn, backend=backend, dynamic=False)(*args).backward()

    return cuda_schedules(run, make_compiler())[-1]


def filled(schedule: Schedule) -> int:
    """How many tensors of the table's size are filled with zeros, to be scattered into."""
    loops = [loop for kernel in schedule.kernels for loop in kernel.loops if isinstance(loop, Loop)]
    scattered = {store.buffer for loop in loops for store in loop.stores if store.mode == "add"}
    return len(scattered)


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_one_tensor_is_scattered_into(fn: Callable[..., Tensor], dtype: torch.dtype) -> None:
    schedule = backward_of(fn, *arguments(dtype, 200))
    assert filled(schedule) == (2 if fn is indexed and dtype is torch.bfloat16 else 1)
    table = ROWS * WIDTH
    copies = [
        loop
        for kernel in schedule.kernels
        for loop in kernel.loops
        if loop.numel == table and loop.reads and all(node.op == "load" for node in loop.nodes)
    ]
    assert not copies, "the second scatter writes where the first one did"


def test_a_scatter_that_is_added_twice_counts_twice() -> None:
    def scattered(table: Tensor, index: Tensor) -> Tensor:
        return torch.zeros(ROWS, WIDTH).index_put((index,), table[index], accumulate=True)

    def fn(table: Tensor, first: Tensor, second: Tensor) -> Tensor:
        one, other = scattered(table, first), scattered(table, second)
        return one + one + other

    table, first, second = arguments(torch.float32, 20)
    with torch.no_grad():
        compiled = torch.compile(fn, backend="litz", dynamic=False, options={"debug": True})
        torch.testing.assert_close(compiled(table, first, second), fn(table, first, second))


def test_sums_that_stay_as_they_are() -> None:
    def two_tables(table: Tensor, first: Tensor, second: Tensor) -> Tensor:
        return twice(table * 2, first, first) + twice(table.cos(), second, second)

    def of_another_size(table: Tensor, first: Tensor, second: Tensor) -> Tensor:
        return table[:20][first % 20].sin().sum() + table[second].cos().sum()

    args = arguments(torch.float32, 200)
    assert filled(backward_of(two_tables, *args)) == 2
    assert filled(backward_of(of_another_size, *args)) == 2
