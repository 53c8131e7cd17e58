"""Bugs that the conformance tool found, each as small as it could be made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from support.compare import check


def test_strided_view_of_symbolic_sizes_is_returned_as_a_view() -> None:
    """AOTAutograd makes outputs that alias an input again, with the strides and offset of what the graph returns."""
    check(lambda x: list(torch.chunk(x, 5, -1)), torch.randn(5, 5, 5), dynamic=True)


@pytest.mark.parametrize("dynamic", [False, True])
def test_backward_may_run_twice(dynamic: bool) -> None:
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


@pytest.mark.parametrize("dynamic", [False, True])
def test_channel_shuffle_keeps_channels_last(dynamic: bool) -> None:
    x = torch.randn(2, 4, 3, 6).to(memory_format=torch.channels_last)
    f = lambda x: (torch.nn.functional.channel_shuffle(x, 2), torch.native_channel_shuffle(x[:, :, :, ::2], 2))
    check(f, x, dynamic=dynamic)
    check(f, x.contiguous(), dynamic=dynamic)


@pytest.mark.parametrize("op", [torch.channel_shuffle, torch.native_channel_shuffle])
def test_channel_shuffle_of_one_group_is_a_copy(op: Callable[[torch.Tensor, int], torch.Tensor]) -> None:
    x = torch.randn(2, 3, 4)
    shuffled = torch.compile(lambda x: op(x, 1), backend="litz")(x)
    assert torch.equal(shuffled, x)
    assert shuffled.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


def test_a_tensor_of_five_equal_symbolic_sizes() -> None:
    """s0**5 in an index."""
    x = torch.randn(5, 5, 5, 5, 5, 5).transpose(0, 1)
    check(lambda x: (x + 1).transpose(1, 3) * 2, x, dynamic=True)


def test_the_first_call_conjugates_inside_of_torchs_kernels() -> None:
    """AOTAutograd has the first call under a dispatch mode, where torch's kernel of pinv loses conjugations."""
    x = torch.randn(5, 5, dtype=torch.complex64) + 9 * torch.eye(5)
    compiled, exact = torch.compile(torch.linalg.pinv, backend="litz"), torch.linalg.inv(x.to(torch.complex128))
    for _ in range(2):
        torch.testing.assert_close(compiled(x).to(torch.complex128), exact, rtol=1e-3, atol=1e-3)


VIEWS_OF_CONJUGATES: dict[str, Callable[[torch.Tensor], Any]] = {
    "slice": lambda x: x.conj()[x.size(0) // 2 :],
    "select": lambda x: x.conj().select(0, x.size(0) - 1),
    "chunk": lambda x: x.conj().chunk(2)[-1],
    "tensor_split": lambda x: x.conj().tensor_split(3)[1],
    "view": lambda x: x.conj().view(x.size(0) // 2, 2),
    "expand": lambda x: x.conj().expand(3, x.size(0)),
    "imaginary part": lambda x: x.conj().imag[x.size(0) // 2 :],
    "twice": lambda x: x.conj()[x.size(0) // 2 :].conj(),
    "of a result": lambda x: (x * 2).conj().imag[x.size(0) // 2 :],
    "beside the result": lambda x: (y := x * 2, y.conj().imag[x.size(0) // 2 :])[1],
    "of an input that is written": lambda x: (x.mul_(2), x.conj()[x.size(0) // 2 :])[1],
}


@pytest.mark.each_value
@pytest.mark.parametrize(
    "dynamic, inference",
    [
        pytest.param(False, False, id="static"),
        pytest.param(False, True, id="static-inference_mode", marks=pytest.mark.thorough),
        pytest.param(True, False, id="dynamic"),
        pytest.param(True, True, id="dynamic-inference_mode"),
    ],
)
@pytest.mark.parametrize("view", VIEWS_OF_CONJUGATES)
def test_a_view_of_a_conjugate_is_conjugated(view: str, dynamic: bool, inference: bool) -> None:
    """AOTAutograd makes such a result again from the input, where sizes are symbolic without the conjugation."""
    function = VIEWS_OF_CONJUGATES[view]
    compiled = torch.compile(function, backend="litz", dynamic=dynamic)
    with torch.inference_mode(inference):
        for size in (8, 12):
            x = torch.randn(size, dtype=torch.complex64)
            assert torch.equal(compiled(x.clone()).resolve_conj(), function(x.clone()).resolve_conj())


def test_the_gradient_of_a_view_of_a_conjugate() -> None:
    function = VIEWS_OF_CONJUGATES["imaginary part"]
    x, y = (torch.ones(8, dtype=torch.complex64, requires_grad=True) for _ in range(2))
    torch.compile(function, backend="litz", dynamic=True)(x).sum().backward()
    function(y).sum().backward()
    assert torch.equal(x.grad.resolve_conj(), y.grad.resolve_conj())  # type: ignore[union-attr]
