"""Operands on several devices: a library carries a tensor over, and a number of the CPU's is a kernel's argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from litz.ir import Extern, Loop
from litz_testing.gpu_programs import gpu_program

X = torch.arange(12.0).reshape(3, 4) - 5


def slices(x: torch.Tensor) -> Any:
    return torch.slice_scatter(torch.ones(5, 4), x, 0, 1, 4)


def diagonals(x: torch.Tensor) -> Any:
    return torch.diagonal_scatter(torch.ones(4, 4), torch.mv(x.t(), x.sum(1)))


def written(x: torch.Tensor) -> Any:
    y = torch.ones(3, 4)
    return y.copy_(x)


def moved(x: torch.Tensor) -> Any:
    return (x * 2).cpu() + 1


CARRIED = (slices, diagonals, written, moved)


def numbers(x: torch.Tensor) -> Any:
    return x * torch.tensor(2.5) + torch.arange(4).to(x.device)


@pytest.mark.parametrize("f", CARRIED)
def test_a_library_carries_a_tensor_to_another_device(f: Callable[..., Any]) -> None:
    program = gpu_program(f, [X])
    (carried,) = [
        operation
        for operation in program.operations
        if isinstance(operation, Extern) and {program.buffers[name].device.type for name in operation.reads} >= {"cuda"}
        if "cpu" in {program.buffers[name].device.type for name in operation.outputs if name}
    ]
    assert all(len({program.buffers[name].device for name in loop.reads}) <= 1 for loop in program.loops), carried


def test_a_number_of_the_cpus_is_read_by_a_kernel() -> None:
    program = gpu_program(numbers, [X])
    number, loop = program.operations
    assert isinstance(loop, Loop) and loop.device.type == "cuda"
    assert {program.buffers[name].device.type for name in loop.reads} == {"cpu", "cuda"} and number.device.type == "cpu"


@pytest.mark.gpu
@pytest.mark.parametrize("f", [*CARRIED, numbers])
def test_values_of_several_devices(f: Callable[..., Any]) -> None:
    x = X.cuda()
    for _ in range(3):
        torch.testing.assert_close(torch.compile(f, backend="litz", fullgraph=True)(x), f(x))
