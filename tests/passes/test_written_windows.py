"""Windows of `unfold` that are written: what lies in no window stays, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor


def new(x: Tensor) -> Any:
    y = x * 1
    y.unfold(0, 2, 3).select(1, -1).neg_()
    return y


def given(x: Tensor) -> Any:
    """Windows of a view of an input; others are only read."""
    windows = x[1:].unfold(0, 2, 3)
    windows.masked_fill_(windows > 0, 9.0)
    return windows * 2, x.unfold(0, 2, 1) + 1


def twice(x: Tensor) -> Any:
    """Windows of windows, written through a part and by an assignment, of a tensor that lies in columns."""
    y = x.t() * 2
    windows = y.unfold(0, 2, 2)
    windows[:, 1].mul_(3)
    windows.unfold(1, 2, 3)[:, :1].add_(1)
    windows[0] = 4
    return y, windows


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("fn", [new, given, twice])
def test_values_and_inputs_are_eagers(fn: Callable[[Tensor], Any], dynamic: bool) -> None:
    compiled = torch.compile(fn, backend="litz", dynamic=dynamic)
    for rows in (6, 9) if dynamic else (8,):
        x = torch.randn(rows, 7, generator=torch.Generator().manual_seed(rows))
        first, second = x.clone(), x.clone()
        torch.testing.assert_close(compiled(second), fn(first))
        torch.testing.assert_close(second, first)


@pytest.mark.parametrize("fn", [new, twice])
def test_gradients_are_eagers(fn: Callable[[Tensor], Any]) -> None:
    found = []
    for called in (fn, torch.compile(fn, backend="litz")):
        x = torch.randn(8, 7, generator=torch.Generator().manual_seed(0), requires_grad=True)
        result = called(x)
        result = result if isinstance(result, Tensor) else result[0]
        (gradient,) = torch.autograd.grad(result, x, torch.linspace(-1, 1, 56).view(result.shape))
        found.append(gradient)
    torch.testing.assert_close(found[1], found[0])


def test_a_tensor_read_as_another_type_is_left_alone() -> None:
    def f(x: Tensor) -> Tensor:
        y = x * 1
        y.view(torch.int32).unfold(0, 2, 2).mul_(0)  # each element lies in a window
        return y

    x = torch.randn(8)
    torch.testing.assert_close(torch.compile(f, backend="litz")(x), f(x))


def test_windows_that_share_elements_are_refused_as_by_torch() -> None:
    def f(x: Tensor) -> Tensor:
        y = x * 1
        y.unfold(0, 3, 1).mul_(2)
        return y

    with pytest.raises(RuntimeError, match="internal overlap"):
        torch.compile(f, backend="litz")(torch.randn(8))
