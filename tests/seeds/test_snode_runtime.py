"""Estimated run times of compiled graphs, without running them: zero for what does nothing, more than zero for work.

The cases are those of the seed document test_snode_runtime, collectives aside (they are the collectives plugin's). On a
machine with a GPU the tensors are real; elsewhere they are fake CUDA tensors, and the device is taken for an H100.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from litz.pipeline import schedule_only

HAS_GPU = torch.cuda.is_available()
pytestmark = [pytest.mark.gpu] if HAS_GPU else []


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    """No test reuses what another compiled."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def calculate_runtime(f: Callable[..., Any], *args: torch.Tensor, **options: Any) -> float:
    """Estimated microseconds of everything that `f(*args)` compiles to."""
    schedules = schedule_only(f, args, **options)
    return sum((schedule.estimates[step.name].us for schedule in schedules for step in schedule.steps), 0.0)


_MODE = FakeTensorMode(allow_non_fake_inputs=True)


def T(*size: int, dtype: torch.dtype = torch.float32, device: str = "cuda") -> torch.Tensor:
    """A tensor of random numbers; a fake one where there is no GPU to hold it."""
    if device == "cuda" and not HAS_GPU:
        with _MODE:
            return torch.empty(size, dtype=dtype, device=device)
    return torch.randn(size, dtype=dtype, device=device)


def assert_zero(x: float) -> None:
    assert isinstance(x, float)
    assert x == 0.0


def assert_not_zero(x: float) -> None:
    assert isinstance(x, float)
    assert x > 0.0
    assert x < 1e6, "a second, for a few kilobytes"


class TestUnsupported:
    def test_no_op(self) -> None:
        def f(a: torch.Tensor) -> torch.Tensor:
            return a

        assert_zero(calculate_runtime(f, T(10, 10)))

    def test_no_cuda(self) -> None:
        def f(a: torch.Tensor) -> torch.Tensor:
            return a

        assert_zero(calculate_runtime(f, T(10, 10, device="cpu")))


class TestComputeBounded:
    def test_conv1d(self) -> None:
        def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.conv1d(x, y)

        assert_not_zero(calculate_runtime(f, T(33, 16, 30), T(20, 16, 5)))

    def test_conv2d(self) -> None:
        def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.conv2d(x, y, padding=1)

        assert_not_zero(calculate_runtime(f, T(8, 4, 3, 3), T(1, 4, 5, 5)))

    def test_conv2d_transpose(self) -> None:
        def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.conv_transpose2d(x, y, padding=1)

        assert_not_zero(calculate_runtime(f, T(8, 1, 1, 1), T(1, 4, 5, 5)))

    def test_conv3d(self) -> None:
        def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.conv3d(x, y)

        assert_not_zero(calculate_runtime(f, T(20, 16, 50, 10, 20), T(33, 16, 3, 3, 3)))

    def test_mm(self) -> None:
        def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return torch.mm(a, b)

        assert_not_zero(calculate_runtime(f, T(10, 10), T(10, 10)))

    def test_addmm(self) -> None:
        def f(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
            return torch.addmm(a, b, c)

        assert_not_zero(calculate_runtime(f, T(10, 10), T(10, 10), T(10, 10)))

    def test_bmm(self) -> None:
        def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return torch.bmm(a, b)

        assert_not_zero(calculate_runtime(f, T(10, 10, 10), T(10, 10, 10)))


class TestMemoryBounded:
    def test_relu(self) -> None:
        def f(a: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.relu(a)

        assert_not_zero(calculate_runtime(f, T(10, 10)))

    def test_horizontal_reduction_pointwise(self) -> None:
        def f(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            b = a.sum(dim=1)
            c = a.cos()
            return b, c

        assert_not_zero(calculate_runtime(f, T(10, 10)))

    def test_pointwise(self) -> None:
        def f(x: torch.Tensor) -> torch.Tensor:
            return x.cos()

        assert_not_zero(calculate_runtime(f, T(10)))

    @torch._dynamo.config.patch(assume_static_by_default=False)
    def test_dynamic(self) -> None:
        def f(x: torch.Tensor) -> torch.Tensor:
            return x.cos()

        assert_not_zero(calculate_runtime(f, T(10)))
