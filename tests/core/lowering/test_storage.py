"""Whose memory a result lies in: what is a view here may be a tensor of its own in eager. Found by the fuzzer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from litz.ir import TensorRef
from operators.harness import check, program_of


def make(*size: int) -> torch.Tensor:
    return torch.arange(float(torch.Size(size).numel())).reshape(size)


def test_as_strided_counts_in_the_storage_of_the_flipped_tensor() -> None:
    check(lambda x: x.flip(1).as_strided((2, 1), (9, 1), 8), make(2, 9))
    check(lambda x: x.flip(1)[:, 2:].as_strided((2, 3), (3, 1)), make(2, 9))
    check(lambda x: (x * 2).flip(0).as_strided((4,), (2,), 1), make(3, 3))


def test_a_copy_that_reads_through_an_input_is_no_view_of_it() -> None:
    """flip of one element is the element itself."""
    program = program_of(lambda x: x.flip(0).expand(5), make(1))
    (output,) = program.outputs
    assert isinstance(output, TensorRef) and output.buffer not in program.input_buffers


def test_two_results_of_which_one_reads_through_the_other_are_apart() -> None:
    program = program_of(lambda x: ((y := x + 1), y.flip(0)), make(1))
    first, second = program.outputs
    assert first.buffer != second.buffer


def test_a_view_of_an_input_stays_one() -> None:
    program = program_of(lambda x: x[1:], make(3))
    (output,) = program.outputs
    assert output.buffer in program.input_buffers


def test_extents_that_a_guard_makes_one_broadcast() -> None:
    check(lambda x: torch.clamp(x[5 : x.size(0) // 2 + 1 : 3], min=x), make(10), dynamic=True)
    check(lambda x: x - x[-2 : x.size(0) // 2 + 1 : 2], make(2), dynamic=True)


def test_a_tensor_copied_onto_itself() -> None:
    check(lambda x: x.copy_(x) * 2, make(3))


def test_a_returned_view_lies_in_memory_as_in_eager() -> None:
    check(lambda x: x.exp().flip(1).split((8, 1), 1)[1], make(2, 9))
    check(lambda x: x.exp()[:, 8:], make(2, 9))
    check(lambda x: x.flip(0).diagonal(), make(4, 4))


def test_a_tensor_and_a_view_of_it_share_memory() -> None:
    """Whether it holds numbers, is what it was given seen otherwise, or has gaps; also one of two results."""

    def buffers(function: Callable[..., Any], *inputs: torch.Tensor, dynamic: bool = False) -> set[str]:
        return {output.buffer for output in check(function, *inputs, dynamic=dynamic).outputs}

    assert len(buffers(lambda x: ((y := torch.ones_like(x)), y.reshape(3)), make(3, 1))) == 1
    assert len(buffers(lambda x: ((y := x.flip(0)), y.view(x.size(1) // 2, 2)), make(1, 4), dynamic=True)) == 1
    gaps = torch.arange(4.0).as_strided((2, 1), (3, 3))
    assert len(buffers(lambda x: ((y := torch.slice_scatter(x, x[:1] + 1, 0, 1, 2)), y.expand(2, 2, 1)), gaps)) == 1
    assert len(buffers(lambda x: ((y := x.max(0)[1]), y.view(2, 1)), make(1, 2))) == 1
    assert len(buffers(lambda x: x.max(0), make(1, 2))) == 2


def test_a_result_with_gaps_has_them_here() -> None:
    """A backward graph that gets it was traced for its strides."""
    gaps = torch.arange(8.0).as_strided((2, 2), (5, 2))
    check(lambda x: torch.slice_scatter(x, x[:1] + 1, 0, 1, 2), gaps)


def test_a_view_of_a_strided_input_stays_one_for_symbolic_sizes() -> None:
    """AOTAutograd makes it again from its strides, which a copy would have changed."""
    x = torch.arange(96.0).as_strided((1, 12), (48, 2), 5)
    program = check(lambda x: x.reshape(x.size(0), x.size(1) // 6, 6), x, dynamic=True)
    (output,) = program.outputs
    assert output.buffer in program.input_buffers


def test_as_strided_counts_in_a_storage_with_gaps() -> None:
    gaps = torch.arange(8.0).as_strided((2, 2), (5, 2))
    check(
        lambda x: (x * 1, torch.slice_scatter(x, x[:1] + 1, 0, 1, 2).as_strided((2,), (5,), 2))[1], gaps, native=False
    )


def test_a_view_that_a_library_gives_of_a_tensor_with_gaps_has_them() -> None:
    """The call got a copy without gaps, and loops read its view by the strides of one that has them."""
    gaps = torch.randn(2, 20, dtype=torch.complex128).as_strided((2, 3), (9, 3))

    def written(x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x.real.masked_fill_(mask, 0)
        return x.imag + 1, x.real * 2

    for dynamic in (False, True):
        check(written, gaps, torch.tensor([True]), dynamic=dynamic, native=False)
