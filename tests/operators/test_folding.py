"""What adds windows up: the gradient of unfold, and fold."""

from __future__ import annotations

import pytest
import torch

from litz.ir import Loop
from operators.harness import check, program_of

aten = torch.ops.aten

# input size, dim, size, step
SLIDING = [
    ((2, 9, 4), 1, 3, 1),
    ((2, 9, 4), 1, 3, 2),
    ((2, 9, 4), -1, 4, 4),
    ((2, 9, 4), 1, 2, 5),  # elements that no window covers
    ((12,), 0, 12, 1),  # one window
    ((12,), 0, 7, 4),
    ((40, 2), 0, 30, 1),  # more windows for an element than are written out
    ((5, 3), 0, 0, 2),  # windows of nothing
    ((0, 7), 1, 3, 2),
]


def grad_of(size: tuple[int, ...], dim: int, length: int, step: int, dtype: torch.dtype) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randint(-9, 9, torch.empty(size).unfold(dim, length, step).shape).to(dtype)


@pytest.mark.each_value
@pytest.mark.parametrize("case", SLIDING, ids=str)
@pytest.mark.parametrize("dynamic", [False, True])
def test_gradient_of_unfold(case: tuple[tuple[int, ...], int, int, int], dynamic: bool) -> None:
    size, dim, length, step = case
    check(
        lambda g: aten.unfold_backward(g, list(size), dim, length, step),
        grad_of(*case, torch.float32),
        dynamic=dynamic and length > 0,
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int64, torch.complex64])
def test_gradient_of_unfold_in_other_types(dtype: torch.dtype) -> None:
    native = dtype != torch.complex64
    check(lambda g: aten.unfold_backward(g, [9, 3], 0, 4, 3), grad_of((9, 3), 0, 4, 3, dtype), native=native)


def test_gradient_of_unfold_of_a_number() -> None:
    check(lambda g: aten.unfold_backward(g, [], 0, 1, 1), torch.tensor([3.0]), native=False)


def test_gradient_of_unfold_reads_transposed_windows() -> None:
    grad = torch.randn(3, 4, 2).permute(1, 2, 0)  # four windows of three elements
    check(lambda g: aten.unfold_backward(g, [9, 2], 0, 3, 2), grad)


# channels, output, kernel, dilation, padding, stride
FOLDS = [
    (2, (6, 7), (3, 2), (1, 1), (0, 0), (1, 1)),
    (1, (8, 8), (2, 2), (1, 1), (0, 0), (2, 2)),
    (3, (7, 6), (3, 3), (1, 1), (1, 1), (2, 3)),
    (2, (9, 9), (3, 2), (2, 3), (2, 1), (2, 1)),
    (2, (9, 9), (2, 2), (1, 1), (0, 0), (4, 3)),  # elements that no window covers
    (1, (5, 6), (5, 6), (1, 1), (0, 0), (1, 1)),  # one window
    (1, (7, 7), (3, 3), (3, 3), (0, 0), (1, 1)),  # one window, spread out
    (1, (12, 12), (7, 6), (1, 1), (3, 2), (1, 1)),  # more windows for an element than are written out
]


@pytest.mark.parametrize("case", FOLDS, ids=str)
@pytest.mark.parametrize("batch", [(), (3,), (0,)], ids=["no batch", "3", "0"])
def test_fold(case: tuple[int, tuple[int, int], *tuple[tuple[int, int], ...]], batch: tuple[int, ...]) -> None:
    channels, output, kernel, dilation, padding, stride = case
    windows = 1
    for n, k, d, p, s in zip(output, kernel, dilation, padding, stride, strict=True):
        windows *= (n + 2 * p - d * (k - 1) - 1) // s + 1
    torch.manual_seed(0)
    columns = torch.randint(-9, 9, (*batch, channels * kernel[0] * kernel[1], windows)).float()
    check(lambda x: aten.col2im(x, output, kernel, dilation, padding, stride), columns)


def test_fold_of_a_symbolic_batch_and_in_a_half_type() -> None:
    columns = torch.randn(3, 2 * 9, 16)
    check(lambda x: aten.col2im(x, [6, 6], [3, 3], [1, 1], [0, 0], [1, 1]), columns, dynamic=True)
    half = torch.randint(-4, 4, (2, 18, 16)).to(torch.bfloat16)
    check(lambda x: aten.col2im(x, [6, 6], [3, 3], [1, 1], [0, 0], [1, 1]), half)


def test_windows_are_gathered() -> None:
    def function(grad: torch.Tensor) -> torch.Tensor:
        inner = aten.unfold_backward(grad, [2, 3, 36, 12], 2, 12, 8)  # 4 windows
        return aten.unfold_backward(inner.reshape(2, 3, 3, 12, 12), [2, 3, 28, 12], 2, 12, 8)

    program = program_of(function, torch.randn(2, 3, 4, 12, 12))
    stores = [store for operation in program.operations if isinstance(operation, Loop) for store in operation.stores]
    assert stores and all(store.mode == "set" and not store.indirect for store in stores), program
