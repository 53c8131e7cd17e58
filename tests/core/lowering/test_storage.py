"""Whose memory a result lies in: what is a view here may be a tensor of its own in eager. Found by the fuzzer."""

from __future__ import annotations

import torch

from core.lowering.harness import check, program_of
from litz.ir import TensorRef


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
