"""Bugs that the conformance tool found, each as small as it could be made."""

from __future__ import annotations

import pytest
import torch

from support.compare import check


def test_strided_view_of_symbolic_sizes_is_returned_as_a_view() -> None:
    """AOTAutograd makes outputs that alias an input again, with the strides and offset of what the graph returns."""
    check(lambda x: list(torch.chunk(x, 5, -1)), torch.randn(5, 5, 5), dynamic=True)


@pytest.mark.parametrize("dynamic", [False, True])
def test_backward_may_run_twice(dynamic: bool) -> None:
    torch._dynamo.reset()
    x = torch.randn(5, 6, requires_grad=True)
    out = torch.compile(lambda x: (x.sin() * x).cos(), backend="litz", dynamic=dynamic)(x)
    for count in (1, 2):
        out.sum().backward(retain_graph=True)
        expected = count * torch.autograd.grad((x.sin() * x).cos().sum(), x)[0]
        torch.testing.assert_close(x.grad, expected)


def test_a_size_read_off_a_tensor_is_bound() -> None:
    """AOTAutograd traces the graph again where outputs are views of inputs, and forgets which call binds u0."""
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        check(lambda x, n: list(torch.tensor_split(x, n)), torch.randn(5, 5), torch.tensor([1, 2]), dynamic=True)


def test_a_start_read_off_a_tensor() -> None:
    """narrow from the end: the size is a case distinction over u0."""
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        check(lambda x, n: torch.narrow(x, 1, n, 2) + 1, torch.randn(5, 5), torch.tensor(-2), dynamic=True)


def test_max_unpool2d_keeps_channels_last() -> None:
    x = torch.randn(2, 3, 4, 6).to(memory_format=torch.channels_last)
    small, indices = torch.nn.functional.max_pool2d(x, 2, return_indices=True)
    check(lambda a, b: torch.nn.functional.max_unpool2d(a, b, 2), small, indices)


def test_a_tensor_of_five_equal_symbolic_sizes() -> None:
    """s0**5 in an index."""
    x = torch.randn(5, 5, 5, 5, 5, 5).transpose(0, 1)
    check(lambda x: (x + 1).transpose(1, 3) * 2, x, dynamic=True)


def test_the_first_call_conjugates_inside_of_torchs_kernels() -> None:
    """AOTAutograd has the first call under a dispatch mode, where torch's kernel of pinv loses conjugations."""
    torch._dynamo.reset()
    x = torch.randn(5, 5, dtype=torch.complex64) + 9 * torch.eye(5)
    compiled, exact = torch.compile(torch.linalg.pinv, backend="litz"), torch.linalg.inv(x.to(torch.complex128))
    for _ in range(2):
        torch.testing.assert_close(compiled(x).to(torch.complex128), exact, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_part_of_a_conjugate_is_conjugated(dynamic: bool) -> None:
    torch._dynamo.reset()
    x = torch.randn(7, dtype=torch.complex64)
    found = torch.compile(lambda x: x.conj().chunk(2)[-1], backend="litz", dynamic=dynamic)(x)
    torch.testing.assert_close(found, x.conj().chunk(2)[-1])
