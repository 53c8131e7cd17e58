"""Sums of many sums over rows: the rows are added up first, and the numbers are no less exact."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from litz.pipeline import make_compiler, plan_schedule
from litz.schedule import Kernel
from support.retarget import cuda_schedules

COUNT = 12


def chain(xs: Sequence[Tensor], keepdim: bool = False) -> Tensor:
    total = xs[0].sum(0, keepdim=keepdim)
    for x in xs[1:]:
        total = total + x.sum(0, keepdim=keepdim)
    return total


def viewed(xs: Sequence[Tensor]) -> Tensor:
    total = xs[0].sum(0, keepdim=True).view(-1)
    for x in xs[1:]:
        total = total + x.sum(0, keepdim=True).view(-1)
    return total


def tensors(dtype: torch.dtype = torch.float32, rows: int = 23, count: int = COUNT, width: int = 17) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(rows, width, generator=generator).to(dtype) for _ in range(count)]


def called(fn: Callable[..., Any], *args: Any, dynamic: bool = False) -> Any:
    torch._dynamo.reset()
    return torch.compile(fn, backend="litz", dynamic=dynamic, options={"debug": True})(*args)


@pytest.mark.parametrize("rows", [23, 1, 0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("fn", [chain, viewed, lambda xs: chain(xs, keepdim=True)])
def test_a_long_sum_is_as_exact_as_eagers(fn: Callable[..., Tensor], dtype: torch.dtype, rows: int) -> None:
    xs = tensors(dtype, rows)
    found, eager, exact = called(fn, xs), fn(xs), fn([x.double() for x in xs])
    error, theirs = (found.double() - exact).abs().sum(), (eager.double() - exact).abs().sum()
    slack = 2 * torch.finfo(torch.promote_types(dtype, torch.float32)).eps * exact.abs().sum()
    assert found.dtype == dtype and found.shape == eager.shape and error <= theirs + slack


def test_dynamic_sizes() -> None:
    for rows in (23, 5):
        xs = tensors(rows=rows)
        torch.testing.assert_close(called(viewed, xs, dynamic=True), viewed(xs), rtol=1e-5, atol=1e-5)


def sums(fn: Callable[..., Any], *args: Any) -> list[str]:
    """What was decided by the pass."""
    found: list[Any] = []
    torch._dynamo.reset()
    cuda_schedules(lambda backend: torch.compile(fn, backend=backend, dynamic=False)(*args), decisions=found)
    return [each.chosen for each in found if each.chosen.startswith("one sum of")]


def test_sums_that_stay_as_they_are() -> None:
    xs = tensors()

    def another_reader(xs: list[Tensor]) -> tuple[Tensor, Tensor]:
        first = xs[0].sum(0)
        return first.sin(), first + chain(xs[1:])

    def of_columns(xs: list[Tensor]) -> Tensor:
        total = xs[0].sum(1)
        for x in xs[1:]:
            total = total + x.sum(1)
        return total

    assert sums(chain, xs) and sums(viewed, xs)
    assert not sums(chain, xs[:7]) and not sums(another_reader, xs) and not sums(of_columns, xs)
    assert not sums(chain, tensors(rows=1 << 10, width=(1 << 8) + 1)), "large tensors"


def test_a_recurrent_networks_steps_are_pointwise() -> None:
    torch.manual_seed(0)
    cell = torch.nn.GRUCell(8, 16)
    x = torch.randn(20, 4, 8)

    def loss(x: Tensor) -> Tensor:
        state = torch.zeros(4, 16)
        for step in x:
            state = cell(step, state)
        return state.square().sum()

    compiler = make_compiler()

    def step(backend: Any) -> None:
        torch.compile(loss, backend=backend, dynamic=False)(x).backward()

    torch._dynamo.reset()
    plan = plan_schedule(cuda_schedules(step, compiler)[-1], compiler)
    loops = [step.loop for step in plan.steps if isinstance(step, Kernel)]
    assert sum(any(node.op == "reduce" for node in loop.nodes) for loop in loops) < len(x) / 2
